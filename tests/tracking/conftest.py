"""One MLflow store and one tracked training for all tests of this folder: making either takes
seconds.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import homo_dp.train as train

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ROUNDS = 3


@dataclass(frozen=True)
class Trained:
    """A training that left its files in a folder and its history in a store."""

    folder: Path
    uri: str

    @property
    def out(self) -> Path:
        return self.folder / "out"


@pytest.fixture(scope="session")
def store(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a real store in a file."""
    folder = tmp_path_factory.mktemp("tracked")
    shutil.copy(empty_store, folder)
    return f"sqlite:///{folder / empty_store.name}"


@pytest.fixture
def client(store: str) -> MlflowClient:
    from mlflow.tracking import MlflowClient

    return MlflowClient(store)


@pytest.fixture(scope="session")
def trained(store: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A few rounds of DP-SGD on the built-in example, tracked and registered as `screening`."""
    folder = tmp_path_factory.mktemp("trained")
    items = {
        "train.auto": "false",
        "train.rounds": ROUNDS,
        "predictFileName": folder / "out" / "scores.txt",
        "indicatorFileName": folder / "out" / "numbers.dat",
        "modelFileName": folder / "out" / "weights",
        "privacy.ledger": folder / "ledger.sqlite",
        "tracking.uri": store,
        "tracking.experiment": "trained",
        "tracking.model_name": "screening",
    }
    assert train.main(["--params", *(f"{key}={value}" for key, value in items.items())]) == 0
    return Trained(folder, store)
