"""Environment variables that our calls of MLflow need, set before it is imported."""

from __future__ import annotations

import os

# A tracking server that is down should be noticed in seconds, not in MLflow's four minutes of
# retries.
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MPLBACKEND": "agg",
}


def set_defaults() -> None:
    """Set what our calls of MLflow need, unless the user's environment says otherwise; before
    importing it.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
