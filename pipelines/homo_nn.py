"""A multilayer perceptron with DP-SGD on the bundled digit images.

python pipelines/homo_nn.py            trains conf/homo_nn_dpsgd.yaml; further arguments go to homo_dp.train
python pipelines/homo_nn.py compare    runs with privacy and without, their means; arguments go to homo_dp.compare
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

RECIPE = Path(__file__).parents[1] / "conf" / "homo_nn_dpsgd.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe or the comparison; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["compare"]:
        from homo_dp import compare

        usual = ["--config", str(RECIPE), "--vary", "privacy.mechanism=dp_sgd,none", "--repeats", "3"]
        return compare.main([*usual, *given[1:]])
    from homo_dp import train

    return train.main(["--config", str(RECIPE), *given])


if __name__ == "__main__":
    from homo_dp.cli import run

    run(main)
