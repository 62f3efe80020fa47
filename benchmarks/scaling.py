"""What bounds that are too wide cost, and how much of it ``data.scaling: private`` wins back.

    python benchmarks/scaling.py [--seeds 12] [--tables breast_cancer,digits,sensors,credit]

For each table, epsilon 1 and 4: test accuracy with good bounds, with bounds 10 and 100 times too
wide (about their middle), and with the wide ones and private scaling under the same epsilon in all.
Three parties, DP-SGD, defaults.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd

from homo_dp.config.load import load_config
from homo_dp.data.embedded import shipped_columns
from homo_dp.runs.simulation import Simulation

Bounds = dict[str, tuple[float, float]]


def sensors(seed: int = 11) -> tuple[pd.DataFrame, Bounds]:
    """3,000 rows of 12 readings on very different scales, all about normal."""
    rng = np.random.default_rng(seed)
    scales = 10.0 ** np.linspace(-2, 3, 12)
    latent = rng.normal(size=(3000, 12))
    odds = latent @ rng.normal(size=12) + rng.logistic(size=3000)
    frame = pd.DataFrame(latent * scales, columns=[f"s{i}" for i in range(12)])
    frame["y"] = (odds > 0).astype(int)
    return frame, {f"s{i}": (-3 * scale, 3 * scale) for i, scale in enumerate(scales)}


def credit(seed: int = 12) -> tuple[pd.DataFrame, Bounds]:
    """4,000 rows of 8 amounts from zero up, with heavy tails, whose logarithms matter."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(4000, 8))
    odds = 1.5 * latent @ rng.normal(size=8) + rng.logistic(size=4000)
    medians = 10.0 ** np.linspace(1, 4, 8)
    frame = pd.DataFrame(np.exp(0.8 * latent) * medians, columns=[f"amount_{i}" for i in range(8)])
    frame["y"] = (odds > 0).astype(int)
    return frame, {f"amount_{i}": (0.0, 4 * median) for i, median in enumerate(medians)}


GENERATED: dict[str, Callable[[], tuple[pd.DataFrame, Bounds]]] = {
    "sensors": sensors,
    "credit": credit,
}


def settings_of(table: str, folder: Path) -> tuple[dict[str, Any], Bounds]:
    """The data settings of a table, and good public bounds of its columns."""
    if table not in GENERATED:
        return {"data.embedded": table}, {
            column.name: (column.low, column.high) for column in _columns(table)
        }
    frame, bounds = GENERATED[table]()
    path = folder / f"{table}.csv"
    frame.to_csv(path, index=False)
    return {"data.files": str(path), "data.name": table, "data.partition": "iid"}, bounds


def _columns(table: str) -> list[Any]:
    return list(shipped_columns(table))


def stretched(bounds: Bounds, factor: float) -> dict[str, Any]:
    """Bounds ``factor`` times as wide about their middle."""
    made = {}
    for name, (low, high) in bounds.items():
        middle, half = (low + high) / 2, (high - low) / 2 * factor
        made[name] = {"bounds": [middle - half, middle + half]}
    return made


def accuracy(
    settings: dict[str, Any], columns: dict[str, Any], epsilon: float, seed: int, scaling: str
) -> float:
    """Test accuracy of one training."""
    with tempfile.TemporaryDirectory() as folder:
        asked = settings | {
            "data.columns": columns,
            "data.scaling": scaling,
            "privacy.target_epsilon": epsilon,
            "privacy.ledger": f"{folder}/ledger.sqlite",
            "train.seed": seed,
            "train.evaluate_every": 0,
            "tracking.enabled": False,
        }
        simulation = Simulation(load_config(None, asked), lambda row, numbers: None)
        return float(simulation.run().rounds[-1]["test_acc"])


def _cell(found: list[float]) -> str:
    return f"{fmean(found):.3f} ± {stdev(found) / len(found) ** 0.5:.3f}"


def main() -> None:
    """Measure and print one line a setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--tables", default="breast_cancer,digits,sensors,credit")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    print("| table | epsilon | too wide | good bounds | wide | private | won back |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for table in given.tables.split(","):
            settings, bounds = settings_of(table, Path(folder))
            seeds = range(max(2, given.seeds // 4) if table == "digits" else given.seeds)
            for epsilon in (1.0, 4.0):
                good = [
                    accuracy(settings, stretched(bounds, 1), epsilon, seed, "bounds")
                    for seed in seeds
                ]
                for factor in (10, 100):
                    columns = stretched(bounds, factor)
                    wide = [accuracy(settings, columns, epsilon, seed, "bounds") for seed in seeds]
                    private = [
                        accuracy(settings, columns, epsilon, seed, "private") for seed in seeds
                    ]
                    lost = fmean(good) - fmean(wide)
                    back = (fmean(private) - fmean(wide)) / lost if lost > 0 else float("nan")
                    cells = [
                        f"{fmean(each):.3f} ± {stdev(each) / len(each) ** 0.5:.3f}"
                        for each in (good, wide, private)
                    ]
                    print(
                        f"| {table} | {epsilon:g} | {factor}x | {' | '.join(cells)} | {back:.0%} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
