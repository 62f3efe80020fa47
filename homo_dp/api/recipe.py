"""A recipe as a script: train its config, or compare it with the same training without privacy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def run_recipe(recipe: Path, arguments: Sequence[str] | None = None) -> int:
    """Train, or with ``compare`` as the first argument three runs with privacy and three
    without; the exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["compare"]:
        from homo_dp import compare

        usual = [
            "--config",
            str(recipe),
            "--vary",
            "privacy.mechanism=dp_sgd,none",
            "--repeats",
            "3",
        ]
        return compare.main([*usual, *given[1:]])
    import homo_dp.train as train

    return train.main(["--config", str(recipe), *given])
