"""Sweeps: which cells there are, what makes a cell the same, and what is paid for all of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.models.files import read_card
from homo_dp.runs.sweep import Cell, cells_of, finished, parse_vary, run_cell


def cells(folder: Path, *vary: str, repeats: int = 1, rate: float = 2.0) -> list[Cell]:
    base = ("train.learning_rate", rate)
    return cells_of(
        parse_vary(vary), repeats, folder, lambda extra: load_config(None, [base, *extra])
    )


def test_cells_are_the_product_of_all_values(tmp_path: Path) -> None:
    found = cells(
        tmp_path, "privacy.max_grad_norm=0.1,1", "privacy.noise_multiplier=1,2,2", repeats=2
    )
    assert len(found) == 8
    assert len({cell.id for cell in found}) == 8
    assert found[0].config.privacy.noise_multiplier == 1
    assert found[0].config.privacy.target_epsilon is None
    assert [cell.config.train.seed for cell in found[:2]] == [0, 1]
    assert not found[0].config.tracking.enabled
    assert found[0].config.output.indicatorFileName == str(
        tmp_path / "cells" / found[0].id / "indicator.json"
    )
    assert found[0].label == "max_grad_norm=0.1, noise_multiplier=1"


def test_a_cell_is_the_same_wherever_its_files_go(tmp_path: Path) -> None:
    one, other = (cells(tmp_path / name, "train.rounds=3")[0] for name in "ab")
    assert one.id == other.id
    changed = cells(tmp_path, "train.rounds=3", rate=0.5)[0]
    assert changed.id != one.id


@pytest.mark.parametrize("text", ["train.rounds", "train.rounds=", "=3", ""])
def test_a_vary_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--vary"):
        parse_vary([text])


def test_a_bad_cell_is_refused_before_any_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="given twice"):
        parse_vary(["train.rounds=1", "train.rounds=2"])
    with pytest.raises(ConfigError, match=r"train\.rounds=0"):
        cells(tmp_path, "train.rounds=3,0")
    with pytest.raises(ConfigError, match="same training twice"):
        cells(tmp_path, "output.modelFileName=a,b")
    with pytest.raises(ConfigError, match="roundz"):
        cells(tmp_path, "train.roundz=3")


def test_only_a_finished_cell_is_finished(tmp_path: Path) -> None:
    cell = cells(tmp_path, "train.rounds=3")[0]
    result = tmp_path / "cells" / cell.id / "result.json"
    assert finished(cell, tmp_path) is None
    result.parent.mkdir(parents=True)
    result.write_text('{"status": "failed"}')
    assert finished(cell, tmp_path) is None
    result.write_text('{"status": "finished"')
    assert finished(cell, tmp_path) is None
    whole = {"status": "finished", "values": {}, "repeat": 0}
    result.write_text(json.dumps(whole))
    # what its config builds on
    assert finished(cell, tmp_path) == {**whole, "before": {"init_from": None}}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()  # a cell takes one for itself
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_a_cell_continues_a_model_by_the_rules_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def cell(**keys: object) -> dict[str, Any]:
        named = {name.replace("__", "."): value for name, value in keys.items()}
        return run_cell(
            load_config(None, {"train.rounds": 1, "tracking.enabled": False, **named}).model_dump(
                mode="json"
            )
        )

    first = cell(output__modelFileName="first")
    second = cell(train__init_from="first", output__modelFileName="second")
    assert second["status"] == "finished"
    assert (
        f"together at most epsilon {first['epsilon'] + second['epsilon']:.4g}"
        in read_card("second").privacy["statement"]
    )
    cell(privacy__mechanism="none", output__modelFileName="bare")
    assert "was trained without privacy on the same data" in cell(train__init_from="bare")["reason"]
