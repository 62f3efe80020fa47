"""Accuracy at one epsilon: a pooled table, parties that share noise, and parties with all noise
each, over many runs.

A run of one number has the same training and test rows in every line, so differences to the pooled
table are taken run by run.

python benchmarks/secure_utility.py [--runs 20] [--parties 3 10] [--data breast_cancer digits]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from homo_dp.config.load import load_config
from homo_dp.models.scoring import round_metrics
from homo_dp.runs.simulation import Simulation

_LINES = {"shared, no colluders": 0, "shared, one colluder": 1, "all noise at each party": None}
_MODELS = {"breast_cancer": "logistic_regression", "digits": "logistic_regression"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--parties", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--data", nargs="+", default=["breast_cancer", "digits"])
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    print(
        f"test accuracy, mean +- spread of {given.runs} runs, epsilon {given.epsilon:g}, "
        f"{given.rounds} rounds;"
    )
    print("difference to the pooled table, mean +- standard error")
    for data in given.data:
        pooled = [_accuracy(data, 1, None, given, seed) for seed in range(given.runs)]
        print(_line(data, "one pooled table", pooled, pooled), flush=True)
        for parties in given.parties:
            for name, colluders in _LINES.items():
                found = [
                    _accuracy(data, parties, colluders, given, seed) for seed in range(given.runs)
                ]
                print(_line(data, f"N={parties}: {name}", found, pooled), flush=True)


def _line(data: str, name: str, found: Sequence[float], pooled: Sequence[float]) -> str:
    apart = [one - other for one, other in zip(found, pooled, strict=True)]
    spread, error = statistics.stdev(found), statistics.stdev(apart) / len(apart) ** 0.5
    return (
        f"{data:14s} {name:34s} {statistics.mean(found):.4f} +- {spread:.4f}   "
        f"{statistics.mean(apart):+.4f} +- {error:.4f}"
    )


def _accuracy(data: str, parties: int, colluders: int | None, given: Any, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        keys: dict[str, Any] = {
            "model.name": _MODELS[data],
            "data.embedded": data,
            "data.columns_from": data,
            "data.partition": {"kind": "iid", "parties": parties},
            "data.test_fraction": 0.2,
            "data.label": "y",
            "privacy.mechanism": "dp_fedsgd",
            "privacy.secure_aggregation": colluders is not None,
            "privacy.target_epsilon": given.epsilon,
            "privacy.ledger": str(Path(folder) / "ledger.sqlite"),
            "train.auto": False,
            "train.rounds": given.rounds,
            "train.sample_rate": 0.3,
            "train.seed": seed,
        }
        if colluders is not None:
            keys["privacy.tolerated_colluders"] = colluders
        run = Simulation(load_config(None, keys), lambda row, numbers: None)
        outcome = run.run()
        outcome.load_weights()
        return (
            round_metrics(outcome.model.module, outcome.model.task, run.test_tables)["test_acc"]
            or 0.0
        )


if __name__ == "__main__":
    main()
