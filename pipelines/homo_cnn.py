"""A convolutional network with DP-SGD on the bundled digit images.

python pipelines/homo_cnn.py            trains conf/homo_cnn_dpsgd.yaml; further arguments go to
homo_dp.train python pipelines/homo_cnn.py compare    runs with privacy and without, their means;
arguments go to homo_dp.compare
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from homo_dp.api.recipe import run_recipe
from homo_dp.console.options import run

RECIPE = Path(__file__).parents[1] / "conf" / "homo_cnn_dpsgd.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe or the comparison; the exit code."""
    return run_recipe(RECIPE, arguments)


if __name__ == "__main__":
    run(main)
