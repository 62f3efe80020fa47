"""A party's dry run: it says what would be given away, charges nothing, and refuses what caps
refuse.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError, DataError
from homo_dp.privacy.errors import PrivacyError
from homo_dp.runs.party_dry_run import show_party_plan
from tests.runs.parts import private_table


def shown(folder: Path, capsys: pytest.CaptureFixture[str], **keys: Any) -> dict[str, Any]:
    table = {name.replace(".all", ".a"): value for name, value in private_table(folder).items()}
    base = {"federation.run": "r", "party.name": "a", "party.state_dir": str(folder / "s")}
    ledger = {"privacy.ledger": str(folder / "ledger.sqlite"), "data.rows.a": 300}
    show_party_plan(load_config(None, {**table, **base, **ledger, **keys}), Screen(as_json=True))
    assert not (folder / "ledger.sqlite").exists()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_price_is_shown_and_nothing_is_charged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(tmp_path, capsys, **{"privacy.target_epsilon": 2.0})
    assert found["party"] == "a"
    assert 1.9 < found["plan"]["epsilon (PLD)"] <= 2.0


def test_a_price_above_the_cap_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PrivacyError, match="epsilon"):
        shown(tmp_path, capsys, **{"privacy.noise_multiplier": 0.5, "party.caps.epsilon": 0.1})
    with pytest.raises(ConfigError, match=r"party\.name"):
        shown(tmp_path, capsys, **{"party.name": None})


def test_what_is_left_open_is_what_the_aggregator_would_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rules choose for the run, so a party that looks before the plan comes may not see the
    defaults instead.
    """
    keys = {"privacy.target_epsilon": 2.0, "federation.parties": [{"name": name} for name in "abc"]}
    found = shown(tmp_path, capsys, **keys)["plan"]
    # 16 gradients, the scales of columns and a second moment before them
    assert found["rounds"] == 18
    assert found["sample rate"] == 1.0


def test_releases_that_this_party_would_refuse_are_named_before_a_plan_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {name.replace(".all", ".a"): value for name, value in private_table(tmp_path).items()}
    keys = {**table, "federation.run": "r", "party.name": "a", "data.rows.a": 300}
    keys |= {"privacy.target_epsilon": 2.0, "party.state_dir": str(tmp_path / "s")}
    for caps, refused in (
        ({}, False),
        ({"party.caps.releases": ["update"]}, True),
        ({"party.caps.releases": ["update", "columns", "second_moment"]}, False),
    ):
        show_party_plan(load_config(None, {**keys, **caps}), Screen())
        printed = capsys.readouterr()
        found = " ".join((printed.out + printed.err).split())
        assert "releases update, columns, second_moment" in found
        assert ("would refuse such a plan" in found) is refused
        assert ("also asks for columns, second_moment" in found) is refused


def test_curves_that_the_aggregator_would_take_are_in_the_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {name.replace(".all", ".a"): value for name, value in private_table(tmp_path).items()}
    keys = {**table, "federation.run": "r", "party.name": "a", "data.rows.a": 50_000}
    for named, words in (
        ({}, "clipped to 1.414"),
        ({"model.name": "logistic_regression"}, "clipped to 1.155"),
    ):
        show_party_plan(
            load_config(None, {**keys, **named, "party.state_dir": str(tmp_path / "s")}), Screen()
        )
        printed = capsys.readouterr().out
        # the length of a row: sqrt(numbers / 3 + 1)
        assert f"second moment of rows {words}, once" in printed
        assert ("squares and roots of 1 number beside them" in printed) is not bool(named)


def test_a_party_that_leaves_the_label_to_the_plan_sees_its_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,x,outcome\n" + "".join(f"{n},{n},{n % 2}\n" for n in range(300)))
    keys = {
        "data.files.a": str(path),
        "data.rows.a": 300,
        "federation.run": "r",
        "party.name": "a",
        "party.state_dir": str(tmp_path / "s"),
        "party.caps.epsilon": 3.0,
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
    }
    show_party_plan(load_config(None, keys), Screen(as_json=True))
    found = json.loads(capsys.readouterr().out)
    assert found["left_to_the_plan"] == ["data.label", "data.columns", "data.classes"]
    assert found["limits"]["most epsilon of a run"] == 3.0
    assert not (tmp_path / "ledger.sqlite").exists()
    job = {"data.columns.x.bounds": [0, 300], "data.label": "outcome"}
    show_party_plan(load_config(None, {**keys, **job}), Screen(as_json=True))
    assert json.loads(capsys.readouterr().out)["plan"]["rows"] == 300
    wrong = load_config(None, {**keys, **job, "data.label": "sick"})
    with pytest.raises(DataError, match="label column 'sick' is not there"):
        show_party_plan(wrong, Screen())


def test_private_estimates_are_rounds_of_the_same_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"privacy.target_epsilon": 2.0, "federation.parties": [{"name": name} for name in "abc"]}
    plain = shown(tmp_path, capsys, **keys)["plan"]
    found = shown(tmp_path, capsys, **keys, **{"data.scaling": "private"})["plan"]
    assert found["rounds"] >= plain["rounds"] + 2
    assert "octaves" in str(found)
    assert found["epsilon (PLD)"] <= 2.0
    assert found["noise multiplier"] > plain["noise multiplier"]
