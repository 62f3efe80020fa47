"""The `tracking`, `predict`, `output` and `report` sections: what a run leaves behind."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator

from homo_dp.config.addresses import address
from homo_dp.config.base import (
    Count,
    FilePath,
    Flag,
    Fraction,
    PartyName,
    Section,
    Text,
    key,
    mapping,
)

# Of `tracking.uri`, before a driver as in `postgresql+psycopg2`.
_SCHEMES = (
    *("", "file", "sqlite", "postgresql", "mysql", "mssql", "http", "https"),
    *("databricks", "databricks-uc", "uc"),
)


def _store(value: object) -> object:
    """An address that MLflow can open: a run is not to end with the news that it cannot."""
    if not isinstance(value, str):
        return value
    scheme = urlsplit(value).scheme.partition("+")[0]
    if scheme not in _SCHEMES:
        raise ValueError(
            "is no address of a store; write sqlite:///FILE.db, or http://HOST:PORT of a server"
        )
    if not scheme and value.endswith((".db", ".sqlite", ".sqlite3")):
        raise ValueError(f"is a database file without its scheme; write sqlite:///{value}")
    return address(value)


def _registered(value: object) -> object:
    if isinstance(value, str) and ("/" in value or ":" in value):
        raise ValueError("cannot be a name of MLflow's registry; leave out '/' and ':'")
    return value


class TrackingConfig(Section):
    """MLflow."""

    enabled: Flag = key(True, "Log to MLflow.")
    uri: Annotated[Text, BeforeValidator(_store)] = key(
        "sqlite:///mlflow.db", "Store or server; artifacts of a local store lie beside it."
    )
    experiment: Text = key("homo_dp", "Name of the experiment.")
    run_name: Text | None = key(None, "Name of the run; null: made up.")
    model_name: Annotated[Text | None, BeforeValidator(_registered)] = key(
        None, "Register the model under this name."
    )
    plots: Flag = key(True, "Add plots and the privacy report to the run.")
    private_metrics: Flag = key(
        False,
        "Send loss, accuracy and AUC of private rows to a store that is not a file of this "
        "machine.",
    )


class PredictConfig(Section):
    """Scoring."""

    threshold: Fraction = key(0.5, "A row is of class 1 from this probability on (binary).")
    chunk_rows: Count = key(50_000, "Rows in memory at once while scoring a table.")


class PartyOutput(Section):
    """Copies for one party of a simulation, where a PrimiHub task names paths for each client."""

    modelFileName: FilePath | None = key(None, "The model again, under this name.")
    indicatorFileName: FilePath | None = key(
        None, "Metrics of this party's own rows and its part of the guarantee."
    )
    predictFileName: FilePath | None = key(None, "Predictions of this party's own test rows.")


class OutputConfig(Section):
    """Files of a run; the three names are also short names in `--params`."""

    predictFileName: FilePath = key("out/predict.csv", "Predictions (CSV).")
    indicatorFileName: FilePath = key("out/indicator.json", "Indicators (JSON).")
    modelFileName: FilePath = key("out/model.safetensors", "The model (safetensors).")
    parties: dict[PartyName, PartyOutput] = mapping(
        "Files for single parties of a simulation besides those for all."
    )
    keep: Flag = key(
        False,
        "Each training (`homo_dp.train`) writes into a new folder: `out/run-001/`, `out/run-002/`.",
    )


class ReportConfig(Section):
    """What a privacy officer wants to find on the report and no run can know; it changes nothing
    about a run.
    """

    purpose: Text | None = key(None, "What the model is for.")
    controller: Text | None = key(None, "Who is responsible for the data (data controller).")
    retention: Text | None = key(None, "How long model, outputs and ledger are kept.")
    contact: Text | None = key(None, "Whom to ask.")
