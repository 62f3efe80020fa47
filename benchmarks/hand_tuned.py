"""How far the rules of train.auto are behind settings that are tuned by hand, table by table.

python benchmarks/hand_tuned.py [--data FOLDER] [--generated 4] [--csv FILE ...] [--epsilon 0.1 1 8]
[--parties 4]

Tables: UCI Adult (train rows only, a quarter of them held out; FOLDER as in docs/results.md),
generated ones that stand for 100,000 rows, and CSV files of encoded numbers in [-1, 1] whose last
column is the label 0 or 1 (columns of 0 and 1 are places of levels). For each epsilon the rule and
a search of 156 settings over curves of numbers, solver, scales of columns, clip norm, rate, rounds
and momentum are trained with simulated noise (simulated_solver.py). The best setting is chosen on
half of the draws, by AUC and by log loss each on its own, and all are scored on the other half: so
the best is not lucky.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from generated_tables import generated
from simulated_solver import Floats, Settings, Table, trained

from homo_dp.federation.protocol.round_sums import noise_of_share
from homo_dp.runs.auto_rules import PublicFacts, choose, takes_curves


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with adult/")
    parser.add_argument("--generated", type=int, default=0, help="how many generated tables")
    parser.add_argument("--csv", type=Path, nargs="*", default=[])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0, 8.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--parties", type=int, default=4)
    parser.add_argument(
        "--draws", type=int, default=4, help="of noise, for the choice and again for the score"
    )
    parser.add_argument(
        "--most-rows",
        type=int,
        default=20_000,
        help="rows that are used; noise goes by all of them",
    )
    given = parser.parse_args()
    print(
        "| table | rows | columns | positive | epsilon | rho | AUC, rule | hand-tuned | log loss, "
        "rule | hand-tuned |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, table, rows in _tables(given):
        for epsilon in given.epsilon:
            kappa = rows / noise_of_share(1.0, epsilon, given.delta) / given.parties**0.5
            rule, best = compared(table, kappa, given.draws, rows)
            cells = [name, rows, table.width, f"{table.labels.mean():.3f}", f"{epsilon:g}"]
            cells += [f"{kappa / (table.width + 1):.3g}", f"{rule[0]:.4f}", f"{best[0]:.4f}"]
            print(
                "| " + " | ".join(map(str, [*cells, f"{rule[1]:.4f}", f"{best[1]:.4f}"])) + " |",
                flush=True,
            )


def compared(
    table: Table, kappa: float, draws: int, rows: int | None = None
) -> tuple[Floats, Floats]:
    """AUC and log loss by the rule, and of the settings that half of the draws found best, both on
    the other half.

    By hand both the columns as they are and with curves are tried; the rule takes what it takes.
    """
    curved = table.with_curves()
    tried = [
        scored(each, settings, kappa, draws)
        for each in (table, curved)
        for settings in search(each.facts(kappa, rows))
    ]
    area = max(tried, key=lambda scores: float(scores[:draws, 0].mean()))[draws:, 0].mean()
    loss = min(tried, key=lambda scores: float(scores[:draws, 1].mean()))[draws:, 1].mean()
    chosen = curved if takes_curves(curved.facts(kappa, rows)) else table
    rule = scored(chosen, choose(chosen.facts(kappa, rows), "dp_fedsgd").settings, kappa, draws)[
        draws:
    ].mean(0)
    return rule, np.array([area, loss])


def scored(table: Table, settings: Settings, kappa: float, draws: int) -> Floats:
    """Scores of twice as many draws; the same noise for all settings."""
    found = []
    for number in range(2 * draws):
        rng = np.random.default_rng([7, number])
        found.append(table.scores(trained(table, settings, kappa, rng)))
    return np.array(found)


def search(facts: PublicFacts) -> list[dict[str, Any]]:
    """What a patient person would try."""
    steps = (
        (16, 1.0, 0.5),
        (16, 2.0, 0.6),
        (16, 4.0, 0.6),
        (36, 2.0, 0.6),
        (36, 4.0, 0.6),
        (36, 4.0, 0.8),
    )
    moment = [
        {
            "train.solver": "second_moment",
            "train.rounds": rounds,
            "train.row_norm": facts.row_norm,
            "train.column_share": share,
            "train.moment_share": 0.15,
            "privacy.max_grad_norm": clip,
            "train.learning_rate": rate,
            "train.server_optimizer": {"momentum": momentum},
            "train.averaging": {"tail": 0.4},
        }
        for share, clip, (rounds, rate, momentum) in itertools.product(
            (0.0, 0.06), (0.3, 0.5, 0.8, 1.2, 2.0), steps
        )
    ]
    plain = [
        {
            "train.solver": "gradient",
            "train.rounds": rounds,
            "train.row_norm": 1.2 * facts.row_norm,
            "privacy.max_grad_norm": clip * facts.row_norm,
            "train.learning_rate": rate / facts.row_norm**2,
            "train.server_optimizer": {"momentum": momentum},
            "train.averaging": {"tail": 0.3},
        }
        for clip, (rounds, rate, momentum) in itertools.product(
            (0.25, 0.5, 1.0),
            (
                (16, 0.3, 0.5),
                (16, 1.0, 0.5),
                (40, 2.0, 0.9),
                (80, 3.0, 0.9),
                (80, 8.0, 0.9),
                (160, 8.0, 0.9),
            ),
        )
    ]
    return moment + plain


def _tables(given: argparse.Namespace) -> Iterator[tuple[str, Table, int]]:
    """Names, tables, and how many rows of training noise goes by."""
    for path in given.csv:
        yield _from_csv(path, given.most_rows)
    if given.data is not None:
        yield _adult(given.data, given.most_rows)
    for number in range(given.generated):
        table = generated(
            np.random.default_rng([11, number]), rows=given.most_rows, test_rows=10_000
        )
        yield f"generated {number}", table, 100_000


def _from_csv(path: Path, most: int) -> tuple[str, Table, int]:
    values = np.loadtxt(path, delimiter=",", skiprows=1)
    rows, labels = values[:, :-1], values[:, -1]
    levels = ((rows == 0) | (rows == 1)).all(axis=0)
    categorical = round(float(rows[:, levels].sum(axis=1).mean()))
    return path.stem, *_split(
        rows, labels, levels * categorical / max(1, levels.sum()), categorical, most
    )


def _adult(folder: Path, most: int) -> tuple[str, Table, int]:
    import pandas as pd
    from utility import ADULT

    frame = pd.read_csv(folder / "adult" / "adult.csv.gz", keep_default_na=False)
    frame = frame[frame["split"] == "train"]
    parts = [
        (np.clip(frame[name].to_numpy(float), low, high) - low) / (high - low) * 2 - 1
        for name, (low, high) in ADULT.items()
    ]
    others = [name for name in frame.columns if name not in (*ADULT, "income", "split")]
    places = pd.get_dummies(frame[others].astype(str), dtype=float).to_numpy()
    rows = np.concatenate([np.stack(parts, axis=1), places], axis=1)
    counts = [frame[name].nunique() for name in others]
    shares = np.concatenate(
        [np.zeros(len(parts)), *(np.full(count, 1 / count) for count in counts)]
    )
    return "adult", *_split(rows, frame["income"].to_numpy(float), shares, len(others), most)


def _split(
    rows: Floats, labels: Floats, shares: Floats, categorical: int, most: int
) -> tuple[Table, int]:
    """A quarter of the rows is held out."""
    order = np.random.default_rng(0).permutation(len(rows))
    rows = np.concatenate([rows[order], np.ones((len(rows), 1))], axis=1)
    labels, cut = labels[order], len(rows) * 3 // 4
    kept = min(cut, most)
    return Table(rows[:kept], labels[:kept], rows[cut:], labels[cut:], shares, categorical), cut


if __name__ == "__main__":
    main()
