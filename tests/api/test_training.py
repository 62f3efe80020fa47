"""homo_dp.fit, load and plan, as somebody in a notebook calls them."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import homo_dp
from homo_dp.core.errors import ConfigError, DataError
from homo_dp.privacy.errors import BudgetExceeded
from tests.api.parts import COMMON, QUICK, table


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    homo_dp.fit({"a": table(100, 1)}, ledger=None, settings=QUICK, **COMMON)
    assert list(tmp_path.iterdir()) == []
    homo_dp.fit({"a": table(100, 1)}, ledger="l.sqlite", output="out", settings=QUICK, **COMMON)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "predict.csv",
        "indicator.json",
        "model.safetensors",
    }
    assert (tmp_path / "l.sqlite").exists()


def test_private_data_without_a_ledger_are_refused_unless_it_is_written_out() -> None:
    with pytest.raises(ConfigError, match="lifetime budget is then not kept"):
        homo_dp.fit({"a": table(100, 1)}, settings=QUICK, **COMMON)
    with pytest.raises(ConfigError, match="lifetime_epsilon"):
        homo_dp.fit(
            {"a": table(100, 1)},
            ledger=None,
            settings={**QUICK, "privacy.lifetime_epsilon": 9},
            **COMMON,
        )


def test_a_ledger_that_is_given_keeps_the_lifetime_over_runs(tmp_path: Path) -> None:
    settings = {
        **QUICK,
        "data.name": "trial",
        "privacy": {"lifetime_epsilon": 10, "ledger": tmp_path / "l.sqlite"},
    }
    homo_dp.fit({"a": table(200, 1)}, settings=settings, **COMMON)
    with pytest.raises(BudgetExceeded):
        homo_dp.fit({"a": table(200, 1)}, settings=settings, **COMMON)


def test_one_frame_is_split_by_its_party_column_and_paths_work_too(tmp_path: Path) -> None:
    one = pd.concat([table(120, 1).assign(site="north"), table(120, 2).assign(site="south")])
    split = homo_dp.fit(
        one,
        party="site",
        ledger=None,
        settings=QUICK,
        test=table(50, 9).assign(site="north"),
        **COMMON,
    )
    assert set(split.privacy["parties"]) == {"north", "south"}
    table(120, 1).to_csv(tmp_path / "a.csv", index=False)
    mixed = homo_dp.fit(
        {"a": tmp_path / "a.csv", "b": table(120, 2)}, ledger=None, settings=QUICK, **COMMON
    )
    assert set(mixed.privacy["parties"]) == {"a", "b"}


def test_classes_are_an_argument_and_errors_name_what_was_given() -> None:
    quick = {key: value for key, value in QUICK.items() if key != "data.classes"}
    both = {"a": table(120, 1), "b": table(120, 2)}
    trained = homo_dp.fit(both, classes=["well", "ill"], ledger=None, settings=quick, **COMMON)
    assert list(trained.model.classes) == ["well", "ill"]
    with pytest.raises(
        DataError, match=r"^parties\['a'\]: label 'outcome' row 1: .*in Python classes=\[...\]"
    ):
        homo_dp.fit(both, ledger=None, settings=quick, **COMMON)
    with pytest.raises(DataError, match=r"^test\['b'\]: column 'age' is missing"):
        homo_dp.fit(
            both,
            test={"b": table(9, 3).drop(columns="age")},
            ledger=None,
            settings=QUICK,
            **COMMON,
        )
    with pytest.raises(DataError, match=r"^parties: data.party_column='site' is not a column"):
        homo_dp.fit(both["a"], party="site", ledger=None, settings=QUICK, **COMMON)


def test_one_frame_without_a_party_column_is_one_party_unless_it_is_dealt_out() -> None:
    whole = homo_dp.fit(table(120, 1), ledger=None, settings=QUICK, **COMMON)
    assert set(whole.privacy["parties"]) == {"all"}
    dealt = homo_dp.fit(
        table(120, 1), ledger=None, settings={**QUICK, "data.partition.parties": 2}, **COMMON
    )
    assert set(dealt.privacy["parties"]) == {"party_1", "party_2"}


def test_categories_are_an_argument_beside_one_pair_of_bounds() -> None:
    frame = table(120, 1).assign(ward=["a", "b", "c"] * 40)
    given = {**COMMON, "bounds": (-3, 3)}
    result = homo_dp.fit(
        frame, ledger=None, settings=QUICK, categories={"ward": ["a", "b"]}, **given
    )
    assert result.config.data.columns["ward"].levels == ("a", "b")
    planned = homo_dp.plan(frame, settings=QUICK, categories={"ward": "private"}, **_plan(given))
    assert any("categor" in text or "level" in text for text in planned.releases)


def _plan(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "progress"}


@pytest.mark.parametrize("given", [{"ward": "ABC"}, {"ward": 3}])
def test_categories_that_are_no_list_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"categories\['ward'\]=.*must be a list"):
        homo_dp.fit(table(9, 1), ledger=None, settings=QUICK, categories=given, **COMMON)


def test_a_column_has_either_bounds_or_categories() -> None:
    with pytest.raises(ConfigError, match="both describe column 'x'"):
        homo_dp.fit(
            table(9, 1),
            ledger=None,
            settings=QUICK,
            categories={"x": [1, 2]},
            **{**COMMON, "bounds": {"x": (0, 1)}},
        )


def test_bounds_of_arrays_by_position_are_refused_with_the_names() -> None:
    with pytest.raises(ConfigError, match="columns of arrays are called x0, x1"):
        homo_dp.fit(
            table(9, 1), ledger=None, settings=QUICK, **{**COMMON, "bounds": [(0, 1), (0, 2)]}
        )


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, homo_dp; print([n for n in ('torch', 'pandas', 'numpy', 'pydantic') if n in "
        "sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("given", ["private", ["Rome"]])
def test_categories_that_name_no_column_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"categories=.*: must name columns"):
        homo_dp.fit(table(9, 1), ledger=None, settings=QUICK, categories=given, **COMMON)


def test_a_wrong_name_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'fitt'; it has .*fit, "):
        homo_dp.fitt  # noqa: B018


def test_functions_that_have_the_name_of_a_command_stay_functions() -> None:
    for name in ("aggregator", "audit", "party", "stats"):
        command = importlib.import_module(f"homo_dp.commands.{name}")
        assert callable(command.main)
        assert inspect.isfunction(getattr(homo_dp, name))


def test_a_frame_without_bounds_is_answered_with_what_python_takes() -> None:
    with pytest.raises(DataError, match=r"bounds=\{") as refused:
        homo_dp.fit({"a": table(50, 1)}, label="outcome", epsilon=2, ledger=None)
    assert "describe memory" not in str(refused.value)
