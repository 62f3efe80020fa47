"""Made-up federations for benchmarks: tables of normal numbers in CSV files, and the config that
trains on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import yaml

BOUNDS = (-4.0, 4.0)


def write_table(path: Path, rows: int, features: int, seed: int = 0) -> None:
    """A CSV table: id, x0, x1, ..., and a label y that a line through the features nearly tells."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, features)).round(6)
    score = values @ np.random.default_rng(0).standard_normal(features)
    frame = pd.DataFrame(values, columns=names(features))
    frame.insert(0, "id", np.arange(rows))
    frame["y"] = (score + 3 * generator.standard_normal(rows) > 0).astype(int)
    pyarrow.csv.write_csv(pa.Table.from_pandas(frame, preserve_index=False), path)


def write_job(folder: Path, rows: dict[str, int], features: int, rounds: int) -> Path:
    """Tables for all parties and a config file that trains on them; its path."""
    files = {party: str(folder / f"{party}.csv") for party in rows}
    for seed, (party, count) in enumerate(rows.items()):
        write_table(Path(files[party]), count, features, seed)
    path = folder / "job.yaml"
    path.write_text(
        yaml.safe_dump(job_config(folder, {"files": files}, features, rounds)), encoding="utf-8"
    )
    return path


def job_config(
    folder: Path, data: dict[str, Any], features: int, rounds: int, batch: int = 256
) -> dict[str, Any]:
    """The config of DP-SGD on such tables with every output in one folder."""
    columns = {name: {"bounds": list(BOUNDS)} for name in names(features)}
    return {
        "data": {"name": "benchmark", "columns": columns, **data},
        "privacy": {"target_epsilon": 4.0, "delta": 1e-5, "ledger": str(folder / "ledger.sqlite")},
        "train": {
            "auto": False,
            "rounds": rounds,
            "local_epochs": 1,
            "batch_size": batch,
            "learning_rate": 0.5,
        },
        "tracking": {"uri": f"sqlite:///{folder / 'mlflow.db'}"},
        "output": {
            "predictFileName": str(folder / "predict.csv"),
            "indicatorFileName": str(folder / "indicator.json"),
            "modelFileName": str(folder / "model.safetensors"),
        },
    }


def names(features: int) -> list[str]:
    """The feature columns."""
    return [f"x{number}" for number in range(features)]
