"""Data sets that need no file, and the public column descriptions that we ship.

Where the bounds come from:
    breast_cancer: the summary statistics that UCI and scikit-learn publish with the set (`Min` and
    `Max`), rounded outwards: low down to one digit, high up to two. The published figures are
    rounded themselves, so half a unit of their last digit is added first. Every value of the set
    lies within.
    digits: a pixel counts the set cells of a 4 x 4 block, so it is in 0..16 by construction (see
    scikit-learn).
    users: generated here from a fixed seed; nobody's data. The bounds are more than five standard
    deviations.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Column, Label, Numeric

if TYPE_CHECKING:
    import pandas as pd

NAMES = ("breast_cancer", "digits", "users")

# feature: bounds of (mean, standard error, worst)
_NUCLEUS: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "radius": ((6, 29), (0.1, 2.9), (7, 37)),
    "texture": ((9, 40), (0.3, 4.9), (10, 50)),
    "perimeter": ((40, 190), (0.7, 22), (50, 260)),
    "area": ((100, 2600), (6, 550), (100, 4300)),
    "smoothness": ((0.05, 0.17), (0.001, 0.032), (0.07, 0.23)),
    "compactness": ((0.01, 0.35), (0.001, 0.14), (0.02, 1.1)),
    "concavity": ((0, 0.43), (0, 0.4), (0, 1.3)),
    "concave points": ((0, 0.21), (0, 0.054), (0, 0.3)),
    "symmetry": ((0.1, 0.31), (0.007, 0.08), (0.1, 0.67)),
    "fractal dimension": ((0.04, 0.098), (0.0005, 0.035), (0.05, 0.21)),
}

_USERS, _USER_FEATURES, _USER_SEED = 500, 20, 20240501


@dataclass(frozen=True)
class EmbeddedSet:
    """A bundled table with its public description."""

    name: str
    frame: pd.DataFrame
    columns: tuple[Column, ...]
    label: Label
    user_column: str | None = None
    image_shape: tuple[int, int, int] | None = None


def load_embedded(name: str) -> EmbeddedSet:
    """One of the bundled sets: breast_cancer, digits, users."""
    loaders = {"breast_cancer": _breast_cancer, "digits": _digits, "users": _users}
    if name not in loaders:
        raise DataError(f"data.embedded={name!r} is not one of {', '.join(NAMES)}")
    return loaders[name]()


def shipped_columns(name: str) -> tuple[Column, ...]:
    """The public column description of a bundled set, usable for a user's own files with the same
    columns.

    >>> shipped_columns("breast_cancer")[0]
    Numeric(name='mean radius', low=6.0, high=29.0, missing='error', indicator=False)
    """
    if name == "breast_cancer":
        parts = ("mean {}", "{} error", "worst {}")
        return tuple(
            Numeric(part.format(feature), float(bounds[index][0]), float(bounds[index][1]))
            for index, part in enumerate(parts)
            for feature, bounds in _NUCLEUS.items()
        )
    if name == "digits":
        return tuple(
            Numeric(f"pixel_{row}_{column}", 0.0, 16.0) for row in range(8) for column in range(8)
        )
    if name == "users":
        return tuple(Numeric(f"x{number}", -6.0, 6.0) for number in range(1, _USER_FEATURES + 1))
    raise DataError(f"data.columns_from={name!r} is not one of {', '.join(NAMES)}")


def shipped_label(name: str) -> Label:
    """The classes of a bundled set (breast_cancer: 0 malignant, 1 benign)."""
    return Label("y", tuple(range(10)) if name == "digits" else (0, 1))


def _breast_cancer() -> EmbeddedSet:
    table = _sklearn_table("breast_cancer.csv", skip=1)  # a line of counts and classes comes first
    columns = shipped_columns("breast_cancer")
    frame = _frame(table[:, :-1], columns, table[:, -1].astype(np.int64))
    return EmbeddedSet("breast_cancer", frame, columns, shipped_label("breast_cancer"))


def _digits() -> EmbeddedSet:
    table = _sklearn_table("digits.csv.gz").astype(np.int64)
    columns = shipped_columns("digits")
    frame = _frame(table[:, :-1], columns, table[:, -1])
    return EmbeddedSet("digits", frame, columns, shipped_label("digits"), image_shape=(1, 8, 8))


def _sklearn_table(name: str, skip: int = 0) -> np.ndarray:
    """A table that scikit-learn ships, from its file: importing scikit-learn to read it takes
    half a second.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise DataError(
            "scikit-learn, which holds the bundled tables, is not installed; pip install "
            "scikit-learn"
        )
    path = Path(found.submodule_search_locations[0], "datasets", "data", name)
    return np.loadtxt(path, delimiter=",", skiprows=skip, dtype=np.float64)


def _users() -> EmbeddedSet:
    """500 users of 10 to 50 rows: one logistic model for all, with every user's inputs shifted
    their own way.
    """
    generator = np.random.default_rng(_USER_SEED)
    sizes = generator.integers(10, 51, size=_USERS)
    user = np.repeat(np.arange(_USERS), sizes)
    shift = generator.normal(scale=0.5, size=(_USERS, _USER_FEATURES))
    weights = generator.normal(size=_USER_FEATURES)
    features = np.round(shift[user] + generator.normal(size=(len(user), _USER_FEATURES)), 3)
    odds = 1.5 * features @ weights + generator.logistic(size=len(user))
    columns = shipped_columns("users")
    frame = _frame(features, columns, (odds > 0).astype(np.int64))
    frame.insert(1, "user", user)
    return EmbeddedSet("users", frame, columns, shipped_label("users"), user_column="user")


def _frame(values: np.ndarray, columns: tuple[Column, ...], labels: np.ndarray) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(values, columns=[column.name for column in columns])
    frame.insert(0, "id", np.arange(len(frame)))
    frame["y"] = labels
    return frame
