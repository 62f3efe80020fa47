"""NbAFL on the bundled digit images: the recipe, and a sweep over the paper's epsilon and delta.

python pipelines/nbafl.py                        trains conf/nbafl.yaml; further arguments go to
homo_dp.train python pipelines/nbafl.py sweep [--out FOLDER]   accuracy for each epsilon x delta
with the accounted epsilon beside it,
                                                 as a table, FOLDER/nbafl_sweep.json and
                                                 FOLDER/nbafl_sweep.png

The grid is the one that FederatedScope publishes for FEMNIST (https://federatedscope.io/docs/dp/).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parents[1] / "conf" / "nbafl.yaml"
EPSILONS = (10.0, 50.0, 100.0)
DELTAS = (0.01, 0.17, 0.76)


@dataclass(frozen=True)
class Cell:
    """One training of the sweep."""

    nominal_epsilon: float
    nominal_delta: float
    accuracy: float
    accounted_epsilon: float
    accounted_epsilon_model_reader: float
    upload_sigma: float


def sweep(
    epsilons: Sequence[float] = EPSILONS,
    deltas: Sequence[float] = DELTAS,
    overrides: Mapping[str, Any] | None = None,
    show: Callable[[Cell], None] = lambda cell: None,
) -> list[Cell]:
    """Train once per cell and report the accuracy on the test images after the last round."""
    cells = []
    for epsilon in epsilons:
        for delta in deltas:
            cells.append(
                _train({"nbafl.epsilon": epsilon, "nbafl.delta": delta, **(overrides or {})})
            )
            show(cells[-1])
    return cells


def _train(overrides: Mapping[str, Any]) -> Cell:
    from homo_dp.config.load import load_config
    from homo_dp.runs.simulation import Simulation

    # bundled images: their ledger need not outlive the training
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(RECIPE, {"privacy.ledger": f"{folder}/ledger.sqlite", **overrides})
        outcome = Simulation(config, lambda row, parties: None).run()
    privacy, names = outcome.statement, set(Cell.__dataclass_fields__) - {"accuracy"}
    return Cell(accuracy=outcome.rounds[-1]["test_acc"], **{name: privacy[name] for name in names})


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Accuracy by what the paper calls epsilon, and by what the noise accounts for."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    epsilons = sorted({cell.nominal_epsilon for cell in cells})
    deltas = sorted({cell.nominal_delta for cell in cells})
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(11, 4.2), sharey=True, layout="constrained"
    )
    for cell in cells:
        row, column = deltas.index(cell.nominal_delta), epsilons.index(cell.nominal_epsilon)
        accuracy, color = 100 * cell.accuracy, f"C{row}"
        bar = left.bar(
            column + 0.27 * (row - (len(deltas) - 1) / 2), accuracy, width=0.25, color=color
        )
        left.bar_label(bar, fmt="%.0f", fontsize=9)
        right.scatter(
            cell.accounted_epsilon, accuracy, color=color, marker="os^Dv"[column % 5], s=60
        )
    left.set(xlabel="nominal epsilon (the paper's)", ylabel="test accuracy, %", ylim=(0, 105))
    left.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
    right.set(xlabel="accounted epsilon, towards the aggregator", xscale="log")
    for row, delta in enumerate(deltas):
        right.scatter([], [], color=f"C{row}", marker="s", label=f"nominal delta {delta:g}")
    for column, epsilon in enumerate(epsilons):
        right.scatter(
            [], [], color="grey", marker="os^Dv"[column % 5], label=f"nominal epsilon {epsilon:g}"
        )
    right.legend(loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.3, axis="y")
        axes.set_axisbelow(True)
    figure.suptitle(
        "NbAFL on 8 x 8 digits: the same trainings by their nominal and by their accounted epsilon"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe or the sweep; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] != ["sweep"]:
        import homo_dp.train as train

        return train.main(["--config", str(RECIPE), *given])
    parser = argparse.ArgumentParser(
        prog="pipelines/nbafl.py sweep", description="Sweep NbAFL's epsilon and delta."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for the table and the plot"
    )
    folder = parser.parse_args(given[1:]).out
    print(
        "nominal epsilon  nominal delta  accuracy %  accounted epsilon  (model reader)", flush=True
    )
    cells = sweep(show=lambda cell: print(_line(cell), flush=True))
    draw(cells, folder / "nbafl_sweep.png")
    (folder / "nbafl_sweep.json").write_text(
        json.dumps([asdict(cell) for cell in cells], indent=1) + "\n"
    )
    print(f"plot: {folder / 'nbafl_sweep.png'}")
    return 0


def _line(cell: Cell) -> str:
    numbers = f"{cell.nominal_epsilon:15g}  {cell.nominal_delta:13g}  {100 * cell.accuracy:10.2f}"
    return (
        f"{numbers}  {cell.accounted_epsilon:17,.0f}  {cell.accounted_epsilon_model_reader:14,.0f}"
    )


if __name__ == "__main__":
    from homo_dp.console.options import run

    run(main)
