"""Small tables and configs for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from homo_dp.config.schema import Config
from homo_dp.data.columns import Categorical, Label, Numeric
from homo_dp.data.encoding import Encoding

COLUMNS: dict[str, Any] = {"age": {"bounds": [0, 100]}, "sex": {"levels": ["f", "m"]}}


def people(rows: int, seed: int = 0, **more: Any) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": np.arange(rows) + 1000 * seed,
            "age": generator.integers(18, 90, rows),
            "sex": generator.choice(["f", "m"], rows),
            "y": generator.integers(0, 2, rows),
        }
    )
    return frame.assign(**more)


def save(folder: Path, name: str, frame: pd.DataFrame) -> str:
    path = folder / name
    frame.to_csv(path, index=False)
    return str(path)


def config(model: dict[str, Any] | None = None, **data: Any) -> Config:
    return Config.model_validate({"model": model or {}, "data": data})


BINARY = Label("y", (0, 1))


def encoding(*columns: Numeric | Categorical, **more: Any) -> Encoding:
    return Encoding(tuple(columns), BINARY, **more)
