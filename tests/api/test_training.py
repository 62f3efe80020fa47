"""homo_dp.train, load and plan, as somebody in a notebook calls them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import homo_dp
from homo_dp.core.errors import ConfigError, DataError, ModelFileError
from homo_dp.federation.mechanisms.dp_sgd import DpSgd
from homo_dp.privacy.errors import BudgetExceeded


def table(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.uniform(0, 10, (rows, 3)), columns=["age", "dose", "weight"])
    frame["outcome"] = np.where(frame["age"] + frame["dose"] > 10, "ill", "well")
    return frame


QUICK: dict[str, Any] = {"train.rounds": 2, "train.local_steps": 2, "data.classes": ["well", "ill"]}
COMMON: dict[str, Any] = {"label": "outcome", "epsilon": 8, "bounds": (0, 10), "progress": False}


@pytest.fixture(scope="module")
def result() -> homo_dp.Result:
    return homo_dp.train({"a": table(200, 1), "b": table(150, 2)}, ledger=None, settings=QUICK, **COMMON)


def test_a_result_has_model_privacy_and_rounds(result: homo_dp.Result) -> None:
    assert result.epsilon is not None
    assert 0 < result.epsilon <= 8
    assert set(result.privacy["parties"]) == {"a", "b"}
    assert list(result.rounds["round"]) == [1, 2]
    assert result.ledger is not None
    assert len(result.ledger) == 4
    assert result.indicators["test_acc"] is not None
    assert "epsilon" in repr(result)


def test_a_model_predicts_classes_of_frames_and_arrays(result: homo_dp.Result) -> None:
    rows = table(20, 3)
    answers = result.model.predict(rows)
    assert set(answers) <= {"well", "ill"}
    shares = result.model.predict_proba(rows)
    assert shares.shape == (20, 2)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_array_equal(answers, result.model.predict(rows[["age", "dose", "weight"]].to_numpy()))
    assert result.model.score(rows) == pytest.approx(np.mean(answers == rows["outcome"]))
    assert result.model.score(rows, list(answers)) == 1
    with pytest.raises(DataError, match="3 columns"):
        result.model.predict(np.zeros((2, 2)))


def test_a_saved_model_is_loaded_with_the_same_predictions(result: homo_dp.Result, tmp_path: Path) -> None:
    result.model.save(tmp_path / "m.safetensors")
    again = homo_dp.load(tmp_path / "m.safetensors")
    rows = table(20, 3)
    np.testing.assert_array_equal(again.predict_proba(rows), result.model.predict_proba(rows))
    assert again.privacy["epsilon"] == result.epsilon


def test_a_notebook_shows_a_table_a_plot_and_a_report(result: homo_dp.Result, tmp_path: Path) -> None:
    page = result._repr_html_()
    assert "<table>" in page
    assert "data:image/png" in page
    paths = result.plot().save(tmp_path / "plots")
    assert {"learning.png", "epsilon.png"} <= {path.name for path in paths}
    assert "epsilon" in result.report(tmp_path / "report.html").read_text()
    assert "test_acc" not in result.report(tmp_path / "published.html", published=True).read_text()


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    homo_dp.train({"a": table(100, 1)}, ledger=None, settings=QUICK, **COMMON)
    assert list(tmp_path.iterdir()) == []
    homo_dp.train({"a": table(100, 1)}, ledger="l.sqlite", output="out", settings=QUICK, **COMMON)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "predict.csv",
        "indicator.json",
        "model.safetensors",
    }
    assert (tmp_path / "l.sqlite").exists()


def test_private_data_without_a_ledger_are_refused_unless_it_is_written_out() -> None:
    with pytest.raises(ConfigError, match="lifetime budget is then not kept"):
        homo_dp.train({"a": table(100, 1)}, settings=QUICK, **COMMON)
    with pytest.raises(ConfigError, match="lifetime_epsilon"):
        homo_dp.train({"a": table(100, 1)}, ledger=None, settings={**QUICK, "privacy.lifetime_epsilon": 9}, **COMMON)


def test_a_ledger_that_is_given_keeps_the_lifetime_over_runs(tmp_path: Path) -> None:
    settings = {**QUICK, "data.name": "trial", "privacy": {"lifetime_epsilon": 10, "ledger": tmp_path / "l.sqlite"}}
    homo_dp.train({"a": table(200, 1)}, settings=settings, **COMMON)
    with pytest.raises(BudgetExceeded):
        homo_dp.train({"a": table(200, 1)}, settings=settings, **COMMON)


def test_epsilon_is_never_a_default() -> None:
    without = {name: value for name, value in COMMON.items() if name != "epsilon"}
    with pytest.raises(ConfigError, match="epsilon: is not given"):
        homo_dp.train({"a": table(100, 1)}, ledger=None, settings=QUICK, **without)
    plain = homo_dp.train({"a": table(100, 1)}, mechanism="none", settings=QUICK, **without)
    assert plain.epsilon is None
    assert plain.ledger is None


def test_one_frame_is_split_by_its_party_column_and_paths_work_too(tmp_path: Path) -> None:
    one = pd.concat([table(120, 1).assign(site="north"), table(120, 2).assign(site="south")])
    split = homo_dp.train(
        one, party="site", ledger=None, settings=QUICK, test=table(50, 9).assign(site="north"), **COMMON
    )
    assert set(split.privacy["parties"]) == {"north", "south"}
    table(120, 1).to_csv(tmp_path / "a.csv", index=False)
    mixed = homo_dp.train({"a": tmp_path / "a.csv", "b": table(120, 2)}, ledger=None, settings=QUICK, **COMMON)
    assert set(mixed.privacy["parties"]) == {"a", "b"}


def test_a_config_is_accepted_as_settings() -> None:
    config = homo_dp.Config.model_validate(
        {"train": {"rounds": 1, "local_steps": 1}, "data": {"classes": ["well", "ill"], "embedded": "breast_cancer"}}
    )
    assert len(homo_dp.train({"a": table(100, 1)}, ledger=None, settings=config, **COMMON).rounds) == 1
    shipped = homo_dp.train(settings={"data.embedded": "breast_cancer", "train.rounds": 1}, epsilon=3, progress=False)
    assert len(shipped.privacy["parties"]) == 3


def test_classes_of_ones_own_need_no_package(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(input_shape[0], 4), nn.Tanh(), nn.Linear(4, outputs))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layers(rows)
            return out

    class Louder(DpSgd):
        name = "louder"

    made = homo_dp.train({"a": table(100, 1)}, ledger=None, model=Net, mechanism=Louder, settings=QUICK, **COMMON)
    assert made.privacy["mechanism"] == "louder"
    made.model.save(tmp_path / "own.safetensors")
    with pytest.raises(ModelFileError, match="factory"):
        homo_dp.load(tmp_path / "own.safetensors")
    assert len(homo_dp.load(tmp_path / "own.safetensors", factory=Net).predict(table(5, 1))) == 5


def test_a_plan_costs_what_the_run_then_costs() -> None:
    rows = {"a": 160, "b": 120}
    settings = {**QUICK, "data.rows": rows}
    planned = homo_dp.plan(
        {"a": table(200, 1), "b": table(150, 2)}, label="outcome", epsilon=3, bounds=(0, 10), settings=settings
    )
    assert planned.epsilon is not None
    assert planned.epsilon <= 3
    assert planned.refused is None
    declared = homo_dp.plan(
        rows=rows, label="outcome", epsilon=3, settings={**QUICK, "data.columns": {"age": {"bounds": [0, 1]}}}
    )
    assert declared.epsilon == pytest.approx(planned.epsilon)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, homo_dp; print([n for n in ('torch', 'pandas', 'numpy', 'pydantic') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "[]"


def test_train_is_a_function_and_a_module() -> None:
    import inspect
    from importlib import import_module

    command = import_module("homo_dp.train")
    public: object = homo_dp.train
    assert public is command
    assert callable(command.main)
    assert "epsilon" in inspect.signature(homo_dp.train).parameters
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        homo_dp.trian  # noqa: B018


@pytest.mark.parametrize("mechanism", [None, "dp_sgd", "dp_fedsgd"])
def test_epsilon_has_no_default_whatever_the_mechanism(mechanism: str | None) -> None:
    with pytest.raises(ConfigError, match="epsilon: is not given"):
        homo_dp.train({"a": table(50, 1)}, label="outcome", bounds=(0, 10), ledger=None, mechanism=mechanism)


def test_a_plan_needs_no_tables() -> None:
    bounds = {"age": (0, 120), "dose": (0, 50)}
    planned = homo_dp.plan(rows={"n": 4000, "s": 2500}, label="outcome", epsilon=2, bounds=bounds)
    assert list(planned.parties.index) == ["n", "s"]
    assert planned.epsilon is not None
    assert planned.epsilon <= 2
    with pytest.raises(ConfigError, match="bounds by column"):
        homo_dp.plan(rows={"n": 4000}, label="outcome", epsilon=2, bounds=(0, 1))


def test_a_frame_without_bounds_is_answered_with_what_python_takes() -> None:
    with pytest.raises(DataError, match=r"bounds=\{") as refused:
        homo_dp.train({"a": table(50, 1)}, label="outcome", epsilon=2, ledger=None)
    assert "describe memory" not in str(refused.value)
