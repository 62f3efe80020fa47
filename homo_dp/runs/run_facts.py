"""What every tracked run says of itself: its name, its settings, and what somebody who looks for
it would filter by.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp import __version__
from homo_dp.config.addresses import masked
from homo_dp.config.load import flatten
from homo_dp.core.errors import ConfigError
from homo_dp.privacy.accounting.strength import short_epsilon
from homo_dp.privacy.errors import BudgetExceeded
from homo_dp.runs.code_version import commit_tags
from homo_dp.tracking.mlflow.uris import is_local

if TYPE_CHECKING:
    from homo_dp.config.schema import Config
    from homo_dp.federation.mechanisms.base import Mechanism

NAMED = 4  # parties or files that the first line of a run names; of more it gives the number
SHORT_MODELS = {
    "logistic_regression": "lr",
    "linear_regression": "lin",
    "mlp": "mlp",
    "cnn": "cnn",
    "scattering": "scat",
    "scattering2": "scat2",
}


def run_line(
    config: Config,
    rows: Mapping[str, int | None],
    source: str | None = None,
    model: str | None = None,
) -> str:
    """The first line of a run: data set, parties and rows, model, configuration.

    Args:
        config: the configuration as far as it is known.
        rows: the training rows of each party; None where nobody declared them.
        source: where the configuration comes from; None where Python gave it.
        model: what is said of the model; None: that of the configuration.

    >>> from homo_dp.config.load import load_config
    >>> run_line(load_config(None), {"a": 300, "b": None}, "no config")
    'data: breast_cancer; 2 parties (a 300 rows, b); model: logistic_regression; no config'
    """
    data = config.data
    data_set = data.name or data.embedded or _files_of(config)
    asked = f"model: {model or config.model.factory or config.model.name}"
    if config.privacy.asks_raw_values:
        asked = f"statistics: {', '.join(config.statistics.ask)}"
    parts = (f"data: {data_set}", _parties_of(rows), asked, source)
    return masked("; ".join(part for part in parts if part))


def member_rows(config: Config) -> dict[str, int | None]:
    """The parties that may take part between processes, each with its rows if they are declared."""
    return {member.name: config.data.rows.get(member.name) for member in config.federation.parties}


def _files_of(config: Config) -> str:
    held = config.data.files.values()
    if any(path.startswith("memory:") for path in held):
        return "tables in memory"
    names = [Path(path).name or path for path in held]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more or config.data.dataset


def _parties_of(rows: Mapping[str, int | None]) -> str:
    many = f"{len(rows)} part{'y' if len(rows) == 1 else 'ies'}"
    if len(rows) <= NAMED:
        each = (f"{name} {n} rows" if n is not None else name for name, n in rows.items())
        return f"{many} ({', '.join(each)})" if rows else many
    known = [count for count in rows.values() if count is not None]
    return f"{many} ({sum(known)} rows in all)" if len(known) == len(rows) else many


def run_params(config: Config) -> dict[str, str]:
    """The resolved config, flattened, without what is not set and without where files go: MLflow
    opens a comparison with the first parameters that differ, and paths always do.
    """
    return {
        key: str(value)
        for key, value in flatten(config).items()
        if value is not None and not key.startswith(("output.", "tracking."))
    }


def source_tags(config: Config, mechanism: str) -> dict[str, str]:
    """Mechanism, data and code."""
    started = Path(sys.argv[0] or "python")
    source = f"homo_dp/{started.name}" if started.parent.name == "homo_dp" else started.name
    said = {"mlflow.source.name": source, "mlflow.source.type": "LOCAL"}
    return {
        "mechanism": mechanism,
        "version": __version__,
        "data.name": config.data.dataset,
        **said,
        **commit_tags(),
    }


def run_tags(config: Config, run: str, mechanism: Mechanism, *, private: bool) -> dict[str, str]:
    """The tags of one training, or of a process's part in it."""
    what = {
        "run": run,
        "unit": mechanism.capabilities.unit,
        "privacy": "private" if private else "NOT PRIVATE",
    }
    said = {"mlflow.note.content": description(config, private=private)}
    return what | said | source_tags(config, mechanism.name)


def refused_tags(config: Config) -> dict[str, str]:
    """The tags of a run that was refused before it had an id."""
    name = {"mlflow.runName": f"refused {secrets.token_hex(3)}", "privacy": "refused"}
    return name | {"unit": config.privacy.unit} | source_tags(config, config.privacy.mechanism)


def short_name(config: Config, run: str, *, private: bool) -> str:
    """A name of at most 20 characters by which runs are told apart: model, what it may cost, end
    of the run's id.
    """
    model = SHORT_MODELS.get(config.model.name, "own") if config.model.factory is None else "own"
    privacy = config.privacy
    if not private:
        cost = "noDP"
    elif privacy.target_epsilon is not None:
        cost = f"eps{short_epsilon(privacy.target_epsilon).replace(',', '')}"
    elif privacy.noise_multiplier is not None:
        cost = f"z{privacy.noise_multiplier:.3g}"
    else:
        cost = privacy.mechanism[:8]
    return f"{model} {cost[:9]} {run[-6:]}"


def description(config: Config, *, private: bool) -> str:
    """The run in one sentence, for somebody who looks at a list of them."""
    privacy, train = config.privacy, config.train
    cost = (
        f"noise multiplier {privacy.noise_multiplier:.4g}"
        if privacy.noise_multiplier is not None
        else None
    )
    cost = (
        f"target epsilon {privacy.target_epsilon:.4g}"
        if privacy.target_epsilon is not None
        else cost
    )
    safe = (
        ", ".join(filter(None, (cost, f"delta {config.delta:g}, per {privacy.unit}")))
        if private
        else "NOT PRIVATE"
    )
    model = (config.model.factory or config.model.name).replace("_", " ")
    return f"{model} on {config.data.dataset}, {privacy.mechanism}, {train.rounds} rounds; {safe}"


def public_dataset(config: Config, parties: int | None = None) -> dict[str, Any]:
    """The data of a run for MLflow's list of datasets: its declared name and description, nothing
    of its rows.

    Guarantees:
        - the digest is of what the config declares, so two tables with one description have one
          digest.
    """
    data = config.data.model_dump(
        mode="json", include={"name", "embedded", "label", "classes", "columns", "columns_from"}
    )
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]
    source = (
        {"embedded": config.data.embedded}
        if config.data.embedded
        else {"parties": sorted(config.data.files)}
    )
    profile = {"parties": parties, "declared rows": dict(config.data.rows) or None}
    return {
        "name": config.data.dataset,
        "digest": digest,
        "source": json.dumps(source),
        "profile": json.dumps({key: value for key, value in profile.items() if value is not None}),
    }


def failure_tags(config: Config, error: BaseException) -> dict[str, str]:
    """Why a run was refused or failed.

    Guarantees:
        - words that may quote a row reach only a store that is a file of this machine.
    """
    told = isinstance(error, BudgetExceeded | ConfigError) or is_local(config.tracking.uri)
    return {"reason": " ".join(str(error).split()) if told and str(error) else type(error).__name__}
