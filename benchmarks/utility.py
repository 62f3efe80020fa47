"""Accuracy at a true epsilon on real tables, all by ``train.auto``: mean and spread over runs, with
the bars to reach.

python benchmarks/utility.py [--data FOLDER] [--runs 5] [--only heart adult digits images ...]
[--epsilon 1]

FOLDER holds heart_disease/, adult/ and primihub/, or images/ (docs/results.md); without it only
scikit-learn's tables run. Every run is the real one: secure mode, public bounds, noise solved by
PLD; no run looks at test rows (docs/results.md says what of the rules was settled with an eye on
these tables). Seeds move initial weights and the split only.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from homo_dp.config.load import load_config
from homo_dp.models.scoring import outputs_of, round_metrics
from homo_dp.runs.simulation import Simulation

BINS = 10  # of the calibration curve


# By default one party is taken to tell the aggregator its noise, so that of N parties N - 1 must
# make all of it.
NO_COLLUDER = {"privacy.tolerated_colluders": 0}


@dataclass(frozen=True)
class Row:
    """One line of the table: a task, an epsilon (None: no privacy), masks or not, and the bar
    (accuracy, AUC).
    """

    task: str
    epsilon: float | None
    secure: bool
    bar: tuple[float, ...]
    keys: Mapping[str, Any]


HEART = {
    "age": [20, 80],
    "trestbps": [80, 200],
    "chol": [0, 600],
    "thalach": [60, 210],
    "oldpeak": [-3, 7],
}
HEART_LEVELS = {
    "sex": [0, 1],
    "cp": [1, 2, 3, 4],
    "fbs": [0, 1],
    "restecg": [0, 1, 2],
    "exang": [0, 1],
}
ADULT = {
    "age": [17, 70],
    "fnlwgt": [0, 400_000],
    "education-num": [1, 16],
    "capital-gain": [0, 8000],
    "capital-loss": [0, 2000],
    "hours-per-week": [20, 60],
}


def heart(folder: Path) -> dict[str, Any]:
    """Fed-Heart-Disease: four hospitals, FLamby's split, mean over hospitals."""
    columns = {name: {"bounds": bounds} for name, bounds in HEART.items()}
    columns |= {name: {"levels": levels} for name, levels in HEART_LEVELS.items()}
    return {
        "data.files": {"heart": str(folder / "heart_disease" / "heart_flamby_740.csv.gz")},
        "data.party_column": "hospital",
        "data.split_column": "split",
        "data.drop": ["num"],
        "data.label": "target",
        "data.classes": [0, 1],
        "data.columns": columns,
        "privacy.delta": 1e-4,
    }


def adult(folder: Path, parties: int = 4) -> dict[str, Any]:
    """UCI Adult: four silos at random; levels are those of its codebook, with ? for missing."""
    path = folder / "adult" / "adult.csv.gz"
    columns: dict[str, Any] = {name: {"bounds": bounds} for name, bounds in ADULT.items()}
    columns |= {name: {"levels": levels} for name, levels in _adult_levels(path).items()}
    return {
        "data.files": {"adult": str(path)},
        "data.partition": {"kind": "iid", "parties": parties},
        "data.split_column": "split",
        "data.missing_values": [""],
        "data.label": "income",
        "data.classes": [0, 1],
        "data.columns": columns,
        "privacy.delta": 1e-5,
    }


def _adult_levels(path: Path) -> dict[str, list[str]]:
    """The levels of the codebook, taken from the file's columns, since the codebook is not in
    the folder.
    """
    import pandas as pd

    frame = pd.read_csv(path, keep_default_na=False, dtype=str)
    names = [name for name in frame.columns if name not in (*ADULT, "income", "split")]
    return {name: sorted(frame[name].unique().tolist()) for name in names}


def primihub(folder: Path) -> dict[str, Any]:
    """PrimiHub's breast cancer tables: two clients, their own test rows."""
    base = folder / "primihub" / "binclass" / "hfl"
    names = ("client1", "client2")
    return {
        "data.files": {name: str(base / "train" / f"{name}.csv") for name in names},
        "data.test_file": {name: str(base / "test" / f"{name}.csv") for name in names},
        "data.columns_from": "breast_cancer",
        "data.label": "y",
        "data.classes": [0, 1],
        "privacy.delta": 1e-3,
    }


def digits(parties: int = 3) -> dict[str, Any]:
    """scikit-learn's digits: softmax, a fifth of the rows held out."""
    return {
        "data.embedded": "digits",
        "data.partition": {"kind": "iid", "parties": parties},
        "data.test_fraction": 0.2,
        "data.label": "y",
        "privacy.delta": 1e-4,
    }


def breast_cancer(parties: int = 3) -> dict[str, Any]:
    """The default recipe's table, at other numbers of parties."""
    return {
        "data.embedded": "breast_cancer",
        "data.partition": {"kind": "iid", "parties": parties},
        "data.test_fraction": 0.2,
        "data.label": "y",
    }


def images(folder: Path) -> dict[str, Any]:
    """IDX files in the layout of MNIST: three silos at random, and the test images that come
    with them.
    """
    kind = "images-idx3-ubyte"
    paths = [
        next((folder / "images").glob(f"{part}-{kind}*"), folder / f"{part}-{kind}")
        for part in ("train", "t10k")
    ]
    return {
        "data.files": {"images": str(paths[0])},
        "data.test_file": str(paths[1]),
        "data.partition": {"kind": "iid", "parties": 3},
        "data.classes": list(range(10)),
        "privacy.delta": 1e-5,
    }


# Settings around those that the rules choose for 60,000 images, 3 silos and epsilon 3: rounds, rate
# and clip norm.
IMAGES_BY_HAND = ((61, 2.5, 0.5), (61, 1.5, 0.8), (96, 1.5, 0.5), (32, 2.0, 0.5))


def image_rows(folder: Path) -> Iterator[Row]:
    """By rule, with own and shared noise; the networks by rule; then by hand."""
    keys = images(folder)
    for name in ("mlp", "cnn"):
        yield Row(f"images_{name}", 3.0, False, (), keys | {"model.name": name})
    for epsilon in (3.0, 1.0):
        yield Row("images", epsilon, False, (), keys)
        yield Row("images", epsilon, True, (), keys)
    for rounds, rate, clip in IMAGES_BY_HAND:
        by_hand = {
            "train.rounds": rounds,
            "train.learning_rate": rate,
            "privacy.max_grad_norm": clip,
        }
        over = {"train.auto": True, "train.solver": "second_moment", **by_hand}
        yield Row("images_by_hand", 3.0, False, (), keys | over)


def rows_of(folder: Path | None) -> Iterator[Row]:
    """All lines, in the order of docs/results.md."""
    if folder is not None and (folder / "images").is_dir():
        yield from image_rows(folder)
    if folder is not None and (folder / "heart_disease").is_dir():
        keys = heart(folder)
        # What is measured counts hospitals the same; without privacy nothing speaks against
        # training on that.
        yield Row(
            "heart",
            None,
            False,
            (0.815,),
            keys | {"train.auto": True, "train.weighting": "uniform"},
        )
        for epsilon, bar in ((5.0, 0.805), (1.0, 0.785), (0.1, 0.75)):
            yield Row("heart", epsilon, False, (bar,), keys)
        for epsilon, bar in ((1.0, 0.795), (0.1, 0.765)):
            yield Row("heart", epsilon, True, (bar,), keys)
            yield Row("heart", epsilon, True, (bar,), keys | NO_COLLUDER)
        keys = adult(folder)
        yield Row("adult", None, False, (), keys)
        yield Row("adult", 1.0, False, (0.851, 0.904), keys)
        yield Row("adult", 0.1, False, (0.846, 0.893), keys)
        yield Row("adult", 0.1, True, (0.850, 0.900), keys)
        yield Row("adult", 0.1, True, (0.850, 0.900), keys | NO_COLLUDER)
        for epsilon in (1.0, 0.1):
            yield Row("adult", epsilon, False, (), adult(folder, parties=5))
        yield Row("breast_cancer", None, False, (), primihub(folder))
        yield Row("breast_cancer", 4.5, False, (0.98,), primihub(folder))
        yield Row("breast_cancer", 1.0, False, (0.965,), primihub(folder))
    yield Row("digits", None, False, (), digits())
    for epsilon, bar in ((8.0, 0.94), (3.0, 0.91), (1.0, 0.85)):
        yield Row("digits", epsilon, False, (bar,), digits())
    for parties in (1, 3, 10, 30):
        yield Row("parties", 3.0, parties > 1, (), digits(parties) | {"privacy.delta": 1e-4})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="folder with heart_disease/, adult/, primihub/, or images/"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="tasks")
    parser.add_argument(
        "--epsilon", type=_epsilon, nargs="+", help="only these; none: without privacy"
    )
    parser.add_argument("--params", nargs="*", default=[], help="key=value put over every run")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    over = {
        key: yaml.safe_load(text) for key, text in (pair.split("=", 1) for pair in given.params)
    }
    print(
        "| task | parties | epsilon | masks | accuracy | AUC | log loss | calibration error | bar "
        "| rounds | CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows_of(given.data):
        if (given.only and row.task not in given.only) or (
            given.epsilon and row.epsilon not in given.epsilon
        ):
            continue
        print(_line(row, [_run(row, seed, over) for seed in range(given.runs)]), flush=True)


def _epsilon(text: str) -> float | None:
    return None if text == "none" else float(text)


def _run(row: Row, seed: int, over: Mapping[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        keys = {
            **row.keys,
            "privacy.ledger": str(Path(folder) / "ledger.sqlite"),
            "train.seed": seed,
        }
        keys |= {"train.evaluate_every": 0, **over}
        if row.epsilon is None:
            keys["privacy.mechanism"] = "none"
        else:
            keys |= {"privacy.target_epsilon": row.epsilon}
        if row.secure:
            keys |= {"privacy.mechanism": "dp_fedsgd", "privacy.secure_aggregation": True}
        started = time.process_time()
        run = Simulation(load_config(None, keys), lambda row, numbers: None)
        outcome = run.run()
        seconds = time.process_time() - started
        outcome.load_weights()
        spent = [party["epsilon_pld"] for party in outcome.statement["parties"].values()]
        if row.epsilon is not None and max(spent) > row.epsilon:
            raise RuntimeError(
                f"{row.task}: epsilon {max(spent)} is above the target {row.epsilon}"
            )
        found = _scores(run, by_party=row.task == "heart")
        return found | {
            "seconds": seconds,
            "rounds": float(len(outcome.rounds)),
            "parties": float(len(run.parties)),
        }


def _scores(run: Simulation, by_party: bool) -> dict[str, float]:
    """Accuracy (a mean over parties where the task says so), AUC and log loss on all test rows,
    calibration error.
    """
    task = run.model.task
    parts = [
        (outputs_of(run.model.module, table.features), table.labels.long())
        for table in run.test_tables
        if table.labels is not None
    ]
    accuracies = [
        float((task.predictions(outputs) == labels).double().mean()) for outputs, labels in parts
    ]
    outputs, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    whole = round_metrics(run.model.module, task, run.test_tables)
    accuracy = (
        statistics.mean(accuracies)
        if by_party
        else float((task.predictions(outputs) == labels).double().mean())
    )
    area, loss = whole["test_auc"] or 0.0, whole["test_loss"] or 0.0
    return {
        "acc": accuracy,
        "auc": area,
        "loss": loss,
        "error": _calibration(task, outputs, labels),
    }


def _calibration(task: Any, outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Mean distance of confidence to accuracy over ten bins of equal size: 0 is a model that
    knows what it knows.
    """
    found = task.probabilities(outputs)
    if found.dim() == 1:
        chance, right = found.double().numpy(), labels.double().numpy()
    else:
        chance, right = (
            found.amax(1).double().numpy(),
            (found.argmax(1) == labels).double().numpy(),
        )
    order = np.argsort(chance)
    parts = np.array_split(order, BINS)
    return float(
        np.mean([abs(chance[part].mean() - right[part].mean()) for part in parts if len(part)])
    )


def _line(row: Row, found: list[dict[str, float]]) -> str:
    def both(name: str) -> str:
        values = [each[name] for each in found]
        return (
            f"{statistics.mean(values):.4f} +- "
            f"{statistics.stdev(values) if len(values) > 1 else 0.0:.4f}"
        )

    epsilon = "none" if row.epsilon is None else f"{row.epsilon:g}"
    bar = " / ".join(f"{value:g}" for value in row.bar) or "-"
    masks = (
        ("yes, no colluder" if row.keys.items() >= NO_COLLUDER.items() else "yes")
        if row.secure
        else "no"
    )
    cells = [row.task, f"{found[0]['parties']:.0f}", epsilon, masks]
    cells += [both("acc"), both("auc"), both("loss"), both("error"), bar]
    cells += [
        f"{found[0]['rounds']:.0f}",
        f"{statistics.mean(each['seconds'] for each in found):.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
