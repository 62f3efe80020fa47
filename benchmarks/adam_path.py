"""How long the path of Adam at the parties should be: learning rate times rounds, where train.auto
leaves the rate open.

python benchmarks/adam_path.py [--path 0.8 1.5 3.5 6] [--tables 3] [--runs 3] [--rows 8000]

Tables are those of generated_tables.py, split among two parties; each run is a whole run with
private noise. The last two rates are those without the rule: that of the rules for SGD, and the
config's default. Prints mean log loss and AUC on the test rows of the table.
"""

from __future__ import annotations

import argparse
import itertools
import logging
from collections import defaultdict
from typing import Any

import numpy as np
from generated_tables import KINDS
from simulated_solver import Table

from homo_dp.api.result import Result
from homo_dp.api.training import fit
from homo_dp.config.load import config_from
from homo_dp.runs import auto

Settings = dict[str, Any]
DEFAULT_RATE = config_from({}).train.learning_rate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", type=float, nargs="+", default=[0.8, 1.5, 3.5, 6.0])
    parser.add_argument("--tables", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3, help="of each setting")
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--model", nargs="+", default=["logistic_regression", "mlp"])
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    print(
        "| table | model | epsilon | path | rate | log loss | AUC |\n|---|---|---|---|---|---|---|"
    )
    losses: defaultdict[float | str, list[float]] = defaultdict(list)
    areas: defaultdict[float | str, list[float]] = defaultdict(list)
    kinds = list(KINDS)
    for number, model, epsilon in itertools.product(
        range(given.tables), given.model, given.epsilon
    ):
        kind = kinds[number % len(kinds)]
        table = KINDS[kind](np.random.default_rng([23, number]), rows=given.rows)
        sgd = run(table, epsilon, {"model.name": model, "privacy.mechanism": "dp_sgd"})
        rates = {"of SGD": sgd.config.train.learning_rate, "default": DEFAULT_RATE}
        for path in (*given.path, *rates):
            settings: Settings = {"model.name": model, "train.optimizer": "adam"}
            if isinstance(path, str):
                settings["train.learning_rate"] = rates[path]
            else:
                auto.PATH_OF_ADAM = path
            found = [scores(run(table, epsilon, settings)) for _ in range(given.runs)]
            rate, loss, area = np.mean(found, axis=0)
            losses[path].append(loss)
            areas[path].append(area)
            cells = [f"{kind} {number}", model, f"{epsilon:g}", path]
            cells += [f"{rate:.3g}", f"{loss:.4f}", f"{area:.4f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    print("\n| path | log loss over the least of each case | AUC below the best |\n|---|---|---|")
    least, best = (np.array(list(each.values())) for each in (losses, areas))
    for path, each in losses.items():
        above = np.array(each) / least.min(axis=0)
        below = best.max(axis=0) - np.array(areas[path])
        print(f"| {path} | {above.mean():.3f} | {below.mean():.4f} |")


def run(table: Table, epsilon: float, settings: Settings) -> Result:
    """One private run on the rows of the table."""
    half = len(table.labels) // 2
    rows, labels = table.rows[:, :-1], table.labels.astype(int)
    return fit(
        {"a": (rows[:half], labels[:half]), "b": (rows[half:], labels[half:])},
        test=(table.test[:, :-1], table.test_labels.astype(int)),
        epsilon=epsilon,
        bounds=(-1.0, 1.0),
        settings=settings | {"tracking.enabled": False, "data.counts": "public"},
        ledger=None,
        progress=False,
    )


def scores(result: Result) -> tuple[float, float, float]:
    """The rate of a run, and log loss and AUC on test rows."""
    found = result.indicators
    return result.config.train.learning_rate, found["test_loss"], found["test_auc"]


if __name__ == "__main__":
    main()
