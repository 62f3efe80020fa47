"""Where recipes are: in the working directory, in the checkout, or beside the installed package."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path


def recipe_path(given: Path) -> Path:
    """The file that ``--config`` means: a path as it is, else a recipe of that name that we ship.

    >>> recipe_path(Path("homo_lr_dpsgd")).name, recipe_path(Path("conf/homo_nn_dpsgd.yaml")).exists()
    ('homo_lr_dpsgd.yaml', True)
    """
    if given.exists() or given.parent not in (Path(), Path("conf")):
        return given
    name = given.name if given.suffix else f"{given.name}.yaml"
    return next((folder / name for folder in recipe_folders() if (folder / name).is_file()), given)


def recipe_folders() -> Iterator[Path]:
    """Folders with our recipes: ``conf`` of the checkout, ``share/homo_dp/conf`` of an
    installation.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file():
        yield root / "conf"
    yield Path(sysconfig.get_path("data")) / "share" / "homo_dp" / "conf"
