"""Accuracy at one epsilon: a pooled table, parties that share noise, and parties with all noise each, over many runs.

python benchmarks/secure_utility.py [--runs 10] [--parties 3 10] [--data breast_cancer digits]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
from pathlib import Path
from typing import Any

from homo_dp.config.load import load_config
from homo_dp.models.scoring import round_metrics
from homo_dp.runs.simulation import Simulation

_MODELS = {"breast_cancer": "logistic_regression", "digits": "logistic_regression"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--parties", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--data", nargs="+", default=["breast_cancer", "digits"])
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    print(f"test accuracy, mean +- spread of {given.runs} runs, epsilon {given.epsilon:g}, {given.rounds} rounds")
    for data in given.data:
        for parties in given.parties:
            for name, count, secure in (("pooled", 1, False), ("shared", parties, True), ("alone", parties, False)):
                found = [_accuracy(data, count, secure, given, seed) for seed in range(given.runs)]
                spread = statistics.stdev(found) if len(found) > 1 else 0.0
                print(f"{data:14s} N={parties:3d} {name:7s} {statistics.mean(found):.4f} +- {spread:.4f}", flush=True)


def _accuracy(data: str, parties: int, secure: bool, given: Any, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        keys: dict[str, Any] = {
            "model.name": _MODELS[data],
            "data.embedded": data,
            "data.columns_from": data,
            "data.partition": {"kind": "iid", "parties": parties},
            "data.test_fraction": 0.2,
            "data.label": "y",
            "privacy.mechanism": "dp_fedsgd",
            "privacy.secure_aggregation": secure,
            "privacy.target_epsilon": given.epsilon,
            "privacy.ledger": str(Path(folder) / "ledger.sqlite"),
            "train.rounds": given.rounds,
            "train.sample_rate": 0.3,
            "train.seed": seed,
        }
        run = Simulation(load_config(None, keys), lambda row, numbers: None)
        outcome = run.run()
        outcome.load_weights()
        return round_metrics(outcome.model.module, outcome.model.task, run.test_tables)["test_acc"] or 0.0


if __name__ == "__main__":
    main()
