"""What all tests share: one empty MLflow store, because making its tables takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from homo_dp.tracking.sender import set_defaults


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a real store with its tables made and nothing in them; copy it."""
    set_defaults()
    from mlflow.tracking import MlflowClient

    from homo_dp.tracking.store import quiet

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    with quiet():
        MlflowClient(f"sqlite:///{path}").search_experiments()
    return path
