"""A signed extract convinces whoever has the key, and nobody who was handed a changed file."""

import json
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent

from homo_dp.budget import main
from homo_dp.privacy.ledger import Budget, Charge, Ledger
from homo_dp.transport.keys import new_key_pair, write_key_pair


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
    command = ["ledger", "export", str(tmp_path / "ledger.sqlite"), "--key", str(tmp_path / "bank_a.key")]
    assert main([*command, "-o", str(tmp_path / "extract.json"), "--quiet"]) == 0
    return tmp_path


def check(place: Path, key: str = "bank_a.pub") -> int:
    return main(["ledger", "check", str(place / "extract.json"), "--key", str(place / key), "--quiet"])


def test_an_extract_is_checked_without_the_party(place: Path) -> None:
    assert check(place) == 0


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
