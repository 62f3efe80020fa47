"""The rules of train.auto on generated tables: how far they are from a grid of settings, and what
to expect of them.

python benchmarks/auto_rules.py [--tables 70] [--seed 0] [--kind effects] [--no-grid]       two
minutes without the grid

Tables are those of generated_tables.py. What a rule does depends on rows only through rows times
mu, so 8,000 rows stand for 300 to 1,000,000: rho is drawn instead. Training is simulated
(simulated_solver.py). For each table the rule of homo_dp/runs/auto_rules.py is compared with the
best of the settings of hand_tuned.py, chosen on half of the draws of noise and scored on the other
half, and with the model without privacy; the last table is what EXPECTED in that file holds.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from generated_tables import KINDS
from hand_tuned import compared, scored
from simulated_solver import Floats

from homo_dp.runs.auto_rules import EXPECTED, choose

DRAWS = 2
RARE = 0.1  # of the rows: a class below it


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=70)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rho", type=float, nargs=2, default=[0.4, 3000.0], help="range")
    parser.add_argument(
        "--kind", choices=KINDS, default="generated", help="of tables (generated_tables.py)"
    )
    parser.add_argument(
        "--no-grid", action="store_true", help="only what to expect, not the best of a grid"
    )
    given = parser.parse_args()
    found = []
    print("columns  levels  positive  rho   rule AUC / loss   hand-tuned   without privacy")
    for number in range(given.tables):
        rng = np.random.default_rng([given.seed, number])
        low, high = (math.log(end) for end in given.rho)
        rho = math.exp(low + (high - low) * (number + 0.5) / given.tables)
        table = KINDS[given.kind](rng)
        kappa = rho * (table.width + 1)
        if given.no_grid:
            rule = scored(
                table, choose(table.facts(kappa), "dp_fedsgd").settings, kappa, DRAWS
            ).mean(0)
            best = rule
        else:
            rule, best = compared(table, kappa, DRAWS)
        plain = table.without_privacy()
        texts = [f"{scores[0]:.4f} / {scores[1]:.4f}" for scores in (rule, best, plain)]
        columns = f"{table.width:7d} {table.categorical:7d} {table.labels.mean():9.3f}"
        print(f"{columns} {rho:7.1f}   {'   '.join(texts)}", flush=True)
        found.append((rho, float(table.labels.mean()), rule, best, plain))
    _summary(found)


def _summary(found: list[tuple[float, float, Floats, Floats, Floats]]) -> None:
    print(
        "\nrho up to, classes   AUC points below hand-tuned: mean, half   log loss above "
        "hand-tuned (%): mean, half"
    )
    print(
        "    | AUC points below no privacy: of ten tables one less than, half, one more than   log "
        "loss (%): the same"
    )
    low = 0.0
    for high, *_ in EXPECTED:
        for kind, rare in (("usual", False), ("rare", True)):
            group = [row[2:] for row in found if low < row[0] <= high and (row[1] < RARE) == rare]
            if group:
                print(
                    f"{high:9g} {kind:6s} "
                    f"{_figures(*(np.array(part) for part in zip(*group, strict=True)))}"
                )
        low = high


def _figures(rule: Floats, best: Floats, plain: Floats) -> str:
    gap, lost = (best[:, 0] - rule[:, 0]) * 100, (plain[:, 0] - rule[:, 0]) * 100
    above, more = (rule[:, 1] / best[:, 1] - 1) * 100, (rule[:, 1] / plain[:, 1] - 1) * 100
    tuned = f"{gap.mean():.2f}, {np.median(gap):.2f}   {above.mean():.1f}, {np.median(above):.1f}"
    lines = [
        ", ".join(f"{value:.2g}" for value in np.quantile(part, (0.1, 0.5, 0.9)))
        for part in (lost, more)
    ]
    return f"{tuned} | {'   '.join(lines)}"


if __name__ == "__main__":
    main()
