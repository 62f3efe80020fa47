"""A signed extract convinces whoever has the key, and nobody who was handed a changed file."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent

from homo_dp.budget import main
from homo_dp.core.errors import InputError
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.ledger import Budget, Charge, Ledger
from homo_dp.privacy.ledger.rows import row_hash
from homo_dp.runs.signed_extract import _signed
from homo_dp.tracking.report.ledger_extract import _row_fields
from homo_dp.transport.keys import new_key_pair, read_key_pair, write_key_pair


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_key_pair(new_key_pair("bank_a"), tmp_path)
    write_key_pair(new_key_pair("other"), tmp_path)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for number in (1, 2):
            event = GaussianDpEvent(4.0)
            charge = Charge(
                "run-1",
                "patients",
                "record",
                "add_or_remove_one",
                "a",
                number,
                "update",
                event,
                1e-5,
                4.0,
                "aggregator",
            )
            ledger.charge(charge, Budget())
    command = [
        "ledger",
        "export",
        str(tmp_path / "ledger.sqlite"),
        "--key",
        str(tmp_path / "bank_a.key"),
    ]
    assert main([*command, "-o", str(tmp_path / "extract.json"), "--quiet"]) == 0
    return tmp_path


def check(place: Path, key: str = "bank_a.pub") -> int:
    return main(
        ["ledger", "check", str(place / "extract.json"), "--key", str(place / key), "--quiet"]
    )


def test_an_extract_is_checked_without_the_party(place: Path) -> None:
    assert check(place) == 0


def test_a_check_gives_the_total_of_all_runs(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "check", str(place / "extract.json"), "--json"]) == 0
    (total,) = json.loads(capsys.readouterr().out)["totals"]
    expected = epsilon(ComposedDpEvent([GaussianDpEvent(4.0)] * 2), 1e-5).rdp
    assert total == {
        "dataset": "patients",
        "runs": 1,
        "releases": 2,
        "epsilon": pytest.approx(expected, rel=1e-9),
        "delta": 1e-5,
    }
    assert main(["ledger", "check", str(place / "extract.json")]) == 0
    assert "in total" in capsys.readouterr().out


def test_a_changed_epsilon_is_found(place: Path) -> None:
    file = place / "extract.json"
    content = json.loads(file.read_text())
    content["rows"][1]["epsilon_pld"] = content["rows"][1]["epsilon"] = 0.01
    file.write_text(json.dumps(content))
    assert check(place) == 1


def test_a_removed_row_and_another_signer_are_found(place: Path) -> None:
    assert check(place, "other.pub") == 1
    file = place / "extract.json"
    content = json.loads(file.read_text())
    del content["rows"][0]
    file.write_text(json.dumps(content))
    assert check(place) == 1


def signed_again(place: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The extract after the party itself changed it: signed by its key, each row with its own
    hash.
    """
    file = place / "extract.json"
    content = json.loads(file.read_text())
    del content["signature"]
    change(content)
    key = read_key_pair(place / "bank_a.key")
    file.write_text(
        json.dumps(
            content | {"signature": base64.b64encode(key.signer.sign(_signed(content))).decode()}
        )
    )


def test_a_party_that_signs_a_smaller_epsilon_is_found(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lie(content: dict[str, Any]) -> None:
        before = content["rows"][0]["previous_hash"]
        for row in content["rows"]:
            row |= {
                "epsilon": 0.01,
                "epsilon_pld": 0.01,
                "epsilon_rdp": 0.01,
                "previous_hash": before,
            }
            before = row["hash"] = row_hash(_row_fields(row))
        content["head"]["hash"] = before

    signed_again(place, lie)
    assert (
        main(["ledger", "check", str(place / "extract.json"), "--key", str(place / "bank_a.pub")])
        == 1
    )
    assert "its events cost epsilon" in capsys.readouterr().out


@pytest.mark.parametrize(
    "broken",
    [
        {"head": [1]},
        {"head": None},
        {"rows": []},
        {"rows": [{"row": 1}]},
        {"rows": [7]},
        {"party": {"a": 1}},
    ],
    ids=str,
)
def test_a_party_that_signs_something_else_is_refused(place: Path, broken: dict[str, Any]) -> None:
    signed_again(place, lambda content: content.update(broken))
    with pytest.raises(InputError, match=r"extract\.json"):
        check(place)


def test_a_row_that_names_its_data_by_a_list_is_refused(place: Path) -> None:
    signed_again(place, lambda content: content["rows"][0].update(dataset=["patients"]))
    with pytest.raises(InputError, match=r"rows\.0\.dataset"):
        check(place)
