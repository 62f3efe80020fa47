"""The simulated solver does what the product does: the same settings and noise give the same
scores.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from homo_dp.config.load import load_config
from homo_dp.data.public_facts import declared_encoding
from homo_dp.models.scoring import round_metrics
from homo_dp.runs.auto import public_facts
from homo_dp.runs.auto_rules import choose
from homo_dp.runs.simulation import Simulation

# as Python does for a script: they import each other
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from simulated_solver import Table, trained

ROWS, TEST = 3000, 3000
RUNS, DRAWS = 20, 200  # of the product and of the simulation


def keys_of(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    count = ROWS + TEST
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=count),
            "b": rng.uniform(-1, 1, count),
            "c": rng.choice([0, 1, 2], count),
        }
    )
    score = 1.5 * frame.a - 2 * frame.b + (frame.c == 2) - 1
    frame["y"] = (rng.uniform(size=count) < 1 / (1 + np.exp(-score))).astype(int)
    frame["split"] = ["train"] * ROWS + ["test"] * TEST
    frame.to_csv(folder / "table.csv", index=False)
    return {
        "data.files": {"table": str(folder / "table.csv")},
        "data.columns": {
            "a": {"bounds": [-10, 60]},
            "b": {"bounds": [-1, 1]},
            "c": {"levels": [0, 1, 2]},
        },
        "data.partition": {"kind": "iid", "parties": 2},
        "data.split_column": "split",
        "data.label": "y",
        "data.classes": [0, 1],
        "data.curves": False,
        "privacy.ledger": str(folder / "ledger.sqlite"),
        "train.evaluate_every": 0,
        "tracking.enabled": False,
    }


@pytest.mark.parametrize(("solver", "epsilon"), [("second_moment", 0.3), ("gradient", 0.1)])
def test_the_same_settings_score_the_same(tmp_path: Path, solver: str, epsilon: float) -> None:
    """The means of AUC and log loss differ by at most 4.5 standard errors.

    The noise is seeded, so the answer is one and the same; about 1 in 70,000 sets of seeds would
    fail. A standard error is at most 0.008 for AUC and 0.033 for the loss.
    """
    keys = keys_of(tmp_path, np.random.default_rng(0)) | {
        "train.solver": solver,
        "privacy.target_epsilon": epsilon,
    }
    config = load_config(None, keys)
    found = []
    for seed in range(RUNS):
        seeds = {"train.seed": seed, "privacy.seeded_noise_for_tests": seed}
        run = Simulation(load_config(None, keys | seeds), lambda row, numbers: None)
        outcome = run.run()
        outcome.load_weights()
        metrics = round_metrics(outcome.model.module, outcome.model.task, run.test_tables)
        found.append((metrics["test_auc"] or 0.0, metrics["test_loss"] or 0.0))
    encoding = declared_encoding(config)
    facts = public_facts(config, encoding, dict.fromkeys(("party_1", "party_2"), ROWS // 2))
    encoded = np.concatenate([part.features.numpy() for part in run.test_tables]).astype(float)
    labels = np.concatenate(
        [part.labels.numpy() for part in run.test_tables if part.labels is not None]
    ).astype(float)
    parties = [party.train for party in run.federation.parties.values()]
    rows = np.concatenate([part.features.numpy() for part in parties]).astype(float)
    truth = np.concatenate(
        [part.labels.numpy() for part in parties if part.labels is not None]
    ).astype(float)
    shares = np.array(
        [encoding.levels_of_columns.get(place, 0.0) for place in range(rows.shape[1])]
    )
    ones = [np.ones((len(part), 1)) for part in (rows, encoded)]
    table = Table(
        np.hstack([rows, ones[0]]), truth, np.hstack([encoded, ones[1]]), labels, shares, 1
    )
    settings = choose(facts, "dp_fedsgd", solver).settings
    assert run.config.train.row_norm == settings["train.row_norm"]
    assert run.config.train.learning_rate == settings["train.learning_rate"]
    drawn = [
        table.scores(trained(table, settings, facts.kappa, np.random.default_rng(number)))
        for number in range(DRAWS)
    ]
    error = np.std(drawn, axis=0) * (1 / RUNS + 1 / DRAWS) ** 0.5
    apart = np.mean(found, axis=0) - np.mean(drawn, axis=0)
    assert (np.abs(apart) < 4.5 * error).all(), (found, apart, error)
