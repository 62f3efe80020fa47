"""Settings of MLflow that we choose give way to the user's environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    pass


def test_the_environment_of_the_user_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    from homo_dp.tracking.mlflow.environment import set_defaults

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    set_defaults()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
