"""DP-FedAvg with adaptive clipping: the recipe, and the way of the clip norm from several starts.

python pipelines/dp_fedavg_adaptive.py           trains conf/dp_fedavg_adaptive.yaml; arguments go
to homo_dp.train python pipelines/dp_fedavg_adaptive.py starts    the clip norm every ten rounds,
from 0.1, 1 and 10, and the accuracy
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

RECIPE = Path(__file__).parents[1] / "conf" / "dp_fedavg_adaptive.yaml"
STARTS = (0.1, 1.0, 10.0)


def starts() -> None:
    """Train once from every start and print the clip norms."""
    from homo_dp.config.load import load_config
    from homo_dp.runs.user_simulation import UserSimulation

    for start in STARTS:
        # generated users: their ledger need not outlive the training
        with tempfile.TemporaryDirectory() as folder:
            keys = {
                "privacy.ledger": f"{folder}/ledger.sqlite",
                "privacy.adaptive.initial_clip_norm": start,
            }
            outcome = UserSimulation(load_config(RECIPE, keys), lambda row, parties: None).run()
        path = " ".join(f"{row['clip_norm']:8.4f}" for row in outcome.rounds[::10])
        print(
            f"clip norm {path}   accuracy {100 * outcome.rounds[-1]['test_acc']:.2f} %", flush=True
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe or the starts; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["starts"]:
        starts()
        return 0
    import homo_dp.train as train

    return train.main(["--config", str(RECIPE), *given])


if __name__ == "__main__":
    from homo_dp.console.options import run

    run(main)
