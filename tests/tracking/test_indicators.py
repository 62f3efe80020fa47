"""Indicators: the contract of names and order, strict JSON, and what must stay local."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from homo_dp.core.errors import InputError
from homo_dp.models.metrics import evaluate
from homo_dp.models.task import task_for
from homo_dp.tracking.indicators import (
    build_indicators,
    local_only_names,
    published,
    write_indicators,
)

NAMES = [
    "loss",
    "acc",
    "auc",
    "ks",
    "f1",
    "precision",
    "recall",
    "fpr",
    "tpr",
    "thresholds",
    "confusion_matrix",
]


def strict(path: Path) -> Any:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    return json.loads(path.read_text(), parse_constant=refuse)


def sample() -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    task = task_for([0, 1])
    outputs, labels = torch.tensor([[1.0], [-1.0], [0.5]]), torch.tensor([1, 0, 0])
    train = evaluate(task, outputs, labels, "train_")
    test = evaluate(task, outputs[:1], labels[:1], "test_")
    rounds = [
        {
            "round": 1,
            "epsilon": float("inf"),
            "test_loss": float("nan"),
            "test_acc": 0.5,
            "seconds": 0.1,
        }
    ]
    return train, test, rounds


def test_names_and_order_are_the_contract(tmp_path: Path) -> None:
    train, test, rounds = sample()
    privacy = {"epsilon": 1.0, "parties": {"a": {"rows": 10, "applied_sigma": torch.tensor(2.0)}}}
    indicators = build_indicators(train, test, privacy, rounds, ["train_acc"], {"run": "r1"})
    write_indicators(tmp_path / "out" / "i.json", indicators)
    read = strict(tmp_path / "out" / "i.json")
    expected = [f"train_{name}" for name in NAMES] + [f"test_{name}" for name in NAMES]
    assert list(read) == [*expected, "run", "privacy", "rounds", "local_only"]
    assert read["test_auc"] is None
    assert read["rounds"][0]["epsilon"] is None
    assert read["rounds"][0]["test_loss"] is None
    assert read["privacy"]["parties"]["a"]["applied_sigma"] == 2.0


def test_an_extra_name_never_hides_another() -> None:
    for name in ("privacy", "rounds", "local_only", "train_acc"):
        with pytest.raises(ValueError, match="is taken"):
            build_indicators({"train_acc": 1}, {}, {}, [], [], {name: 1})


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "i.json"
    write_indicators(target, {"train_acc": 1.0})
    with pytest.raises(TypeError):
        write_indicators(target, {"train_acc": object()})
    assert strict(target) == {"train_acc": 1.0}
    with pytest.raises(InputError, match="indicatorFileName="):
        write_indicators(tmp_path, {})


@pytest.mark.parametrize("public_test", [False, True])
def test_everything_computed_on_private_rows_is_local(public_test: bool) -> None:
    train, test, rounds = sample()
    names = local_only_names(train, test, rounds, public_test=public_test)
    assert set(train) <= set(names)
    assert (set(test) <= set(names)) is not public_test
    assert ("rounds[].test_acc" in names) is not public_test
    assert "rounds[].epsilon" not in names
    assert not [name for name in names if name.startswith("privacy")]


def test_what_is_published_holds_nothing_local() -> None:
    train, test, rounds = sample()
    privacy = {"epsilon": 1.0, "parties": {"a": {"rows": 10, "epsilon_rdp": 1.0}}}
    names = local_only_names(train, test, rounds)
    left = published(build_indicators(train, test, privacy, rounds, names))
    assert list(left) == ["privacy", "rounds"]
    assert left["privacy"] == privacy
    assert set(left["rounds"][0]) == {"round", "epsilon", "seconds"}
