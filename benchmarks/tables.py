"""From a file to tensors and back: CSV, Parquet, and the file of predictions, one thread.

From a CSV file to tensors, 30,000 rows x 100 columns, against `pandas.read_csv(engine="pyarrow")`,
one thread.

`python benchmarks/tables.py`; bar: `ratio` <= 1.5; exits 1 above a bar. Ours is everything that a
run does with a file: the cells as text (predictions repeat them), and features and labels checked,
clipped and scaled as one float32 tensor each. pandas gives a frame of numbers; `ratio_to_tensor` is
against pandas followed by `torch.from_numpy` of its values as float32. Each ratio is a median over
repeats in which all take turns; `cpu_ratio` is by CPU seconds.

Parquet, 3,000,000 rows x 9 columns, is against `pandas.read_parquet` and the same float32 tensors;
bar 1.2. Predictions are 3,000,000 rows of those columns with a score each, written by two threads;
bar 1 s, `pandas` is `DataFrame.to_csv` of the same rows.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arguments import count, parser_for

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from samples import BOUNDS, names, write_table

from homo_dp.data.columns import Label, Numeric
from homo_dp.data.encoding import Encoding
from homo_dp.data.readers import read_table
from homo_dp.models.task import task_for
from homo_dp.tracking.predictions import PredictionWriter

BAR, PARQUET_BAR, PREDICTIONS_BAR = 1.5, 1.2, 1.0


def measure(rows: int, features: int, repeats: int) -> dict[str, Any]:
    """Read one file by all readers in turn, after each has read it once."""
    encoding = Encoding(
        tuple(Numeric(name, *BOUNDS) for name in names(features)), Label("y", (0, 1)), id="id"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write_table(path, rows, features)
        works: dict[str, Callable[[], object]] = {
            "pandas": lambda: pd.read_csv(path, engine="pyarrow"),
            "pandas_to_tensor": lambda: _pandas_to_tensor(path, features),
            "read": lambda: read_table(path),
            "ours": lambda: _ours(path, encoding),
        }
        wall, cpu = _timings(works, repeats)
        megabytes = path.stat().st_size / 1e6
    return {
        "benchmark": "tables",
        "rows": rows,
        "features": features,
        "megabytes": round(megabytes, 1),
        "ratio": _ratio(wall["ours"], wall["pandas"]),
        "bar": BAR,
        "cpu_ratio": _ratio(cpu["ours"], cpu["pandas"]),
        "ratio_to_tensor": _ratio(wall["ours"], wall["pandas_to_tensor"]),
        "read_only_ratio": _ratio(wall["read"], wall["pandas"]),
        "seconds": {name: round(statistics.median(values), 4) for name, values in wall.items()},
        "cpu_seconds": {name: round(statistics.median(values), 4) for name, values in cpu.items()},
        "repeats": repeats,
    }


def measure_parquet(rows: int, features: int, repeats: int) -> dict[str, Any]:
    """Read one Parquet file by both in turn."""
    encoding = Encoding(
        tuple(Numeric(name, *BOUNDS) for name in names(features)), Label("y", (0, 1)), id="id"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        _numbers(rows, features).to_parquet(path)
        works: dict[str, Callable[[], object]] = {
            "pandas_to_tensor": lambda: _frame_to_tensors(pd.read_parquet(path), features),
            "ours": lambda: _ours(path, encoding),
        }
        wall, cpu = _timings(works, repeats)
    return {
        "benchmark": "parquet",
        "rows": rows,
        "features": features,
        "ratio": _ratio(wall["ours"], wall["pandas_to_tensor"]),
        "bar": PARQUET_BAR,
        "cpu_ratio": _ratio(cpu["ours"], cpu["pandas_to_tensor"]),
        "cpu_seconds": {name: round(min(values), 4) for name, values in cpu.items()},
        "repeats": repeats,
    }


def measure_predictions(
    rows: int, features: int, repeats: int, with_pandas: bool
) -> dict[str, Any]:
    """Write the predictions of as many rows, in chunks as inference does."""
    frame, outputs = _numbers(rows, features), torch.randn(rows)
    with tempfile.TemporaryDirectory() as folder:
        works: dict[str, Callable[[], object]] = {
            "ours": lambda: _write(Path(folder) / "ours.csv", frame, outputs)
        }
        if with_pandas:
            works["pandas"] = lambda: frame.assign(pred=outputs.sigmoid().numpy()).to_csv(
                Path(folder) / "pandas.csv", index=False
            )
        wall, cpu = _timings(works, repeats)
    return {
        "benchmark": "predictions",
        "rows": rows,
        "features": features,
        "seconds": round(min(wall["ours"]), 3),
        "bar": PREDICTIONS_BAR,
        "cpu_seconds": {name: round(min(values), 3) for name, values in cpu.items()},
        "cpu": round(min(cpu["ours"]), 3),
        "repeats": repeats,
    }


def _write(path: Path, frame: pd.DataFrame, outputs: torch.Tensor) -> None:
    with PredictionWriter(path, list(frame.columns), task_for([0, 1])) as writer:
        for at in range(0, len(frame), 50_000):
            writer.write(frame.iloc[at : at + 50_000], outputs[at : at + 50_000])


def _numbers(rows: int, features: int) -> pd.DataFrame:
    values = np.random.default_rng(1).uniform(*BOUNDS, size=(rows, features)).round(3)
    frame = pd.DataFrame(values, columns=names(features))
    frame.insert(0, "id", np.arange(rows))
    frame["y"] = np.arange(rows) % 2
    return frame


def _frame_to_tensors(frame: pd.DataFrame, features: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = np.ascontiguousarray(frame[names(features)].to_numpy(dtype=np.float32))
    return torch.from_numpy(values), torch.from_numpy(frame["y"].to_numpy(dtype=np.float32))


def _ours(path: Path, encoding: Encoding) -> tuple[torch.Tensor, torch.Tensor]:
    frame = read_table(path)
    return encoding.encode(frame), encoding.encode_labels(frame)


def _pandas_to_tensor(path: Path, features: int) -> torch.Tensor:
    frame = pd.read_csv(path, engine="pyarrow")
    return torch.from_numpy(np.ascontiguousarray(frame[names(features)].to_numpy(dtype=np.float32)))


def _timings(
    works: dict[str, Callable[[], object]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    wall: dict[str, list[float]] = {name: [] for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            started = time.perf_counter(), time.process_time()
            work()
            if repeat:
                wall[name].append(time.perf_counter() - started[0])
                cpu[name].append(time.process_time() - started[1])
    return wall, cpu


def _ratio(above: list[float], below: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(above, below, strict=True)), 3)


def main() -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--rows", type=count, default=30_000, help="rows of the table")
    parser.add_argument("--features", type=count, default=100, help="columns of the table")
    parser.add_argument(
        "--repeats",
        type=count,
        default=9,
        help="runs that the medians are of; fewer than 5 are for trying it out only",
    )
    parser.add_argument(
        "--with-pandas",
        action="store_true",
        help="time DataFrame.to_csv of the predictions too: slow",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    line = measure(given.rows, given.features, max(1, given.repeats))
    print(json.dumps(line), flush=True)
    long = given.rows * 100
    parquet = measure_parquet(long, 9, min(5, given.repeats))
    print(json.dumps(parquet), flush=True)
    predictions = measure_predictions(long, 9, min(3, given.repeats), with_pandas=given.with_pandas)
    print(json.dumps(predictions), flush=True)
    met = (
        line["ratio"] <= BAR
        and parquet["cpu_ratio"] <= PARQUET_BAR
        and predictions["seconds"] <= PREDICTIONS_BAR
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
