"""DP-FedAvg over the users of the bundled set: the recipe, and what it costs not to trust the
aggregator.

python pipelines/dp_fedavg.py            trains conf/dp_fedavg.yaml; further arguments go to
homo_dp.train python pipelines/dp_fedavg.py compare    the same target with noise at the aggregator,
at parties that trust it, and at
                                         parties that trust nobody: accuracy, and epsilon towards
                                         both observers
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parents[1] / "conf" / "dp_fedavg.yaml"
CASES: dict[str, dict[str, Any]] = {
    "noise at the aggregator": {},
    "noise at parties, aggregator trusted": {
        "privacy.noise_at": "parties",
        "privacy.sampling": "fixed",
    },
    "noise at parties, nobody trusted": {
        "privacy.noise_at": "parties",
        "privacy.sampling": "everyone",
        "privacy.cohort_size": None,
        "privacy.trust_aggregator": False,
    },
}


def compare() -> None:
    """Train every case once and print one line for each."""
    from homo_dp.config.load import load_config
    from homo_dp.runs.user_simulation import UserSimulation

    print("accuracy %  epsilon (model reader)  epsilon (aggregator)")
    for name, keys in CASES.items():
        # generated users: their ledger need not outlive the training
        with tempfile.TemporaryDirectory() as folder:
            config = load_config(RECIPE, {"privacy.ledger": f"{folder}/ledger.sqlite", **keys})
            outcome = UserSimulation(config, lambda row, parties: None).run()
        observers = outcome.statement["observers"]
        aggregator = observers["aggregator"]["epsilon"]
        said = "none" if aggregator is None else f"{aggregator:.4g}"
        accuracy = 100 * outcome.rounds[-1]["test_acc"]
        print(
            f"{accuracy:10.2f}  {observers['model_reader']['epsilon']:22.4g}  {said:>20}  {name}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe or the comparison; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["compare"]:
        compare()
        return 0
    import homo_dp.train as train

    return train.main(["--config", str(RECIPE), *given])


if __name__ == "__main__":
    from homo_dp.console.options import run

    run(main)
