"""Two small tables, and settings that train them quickly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def table(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.uniform(0, 10, (rows, 3)), columns=["age", "dose", "weight"])
    frame["outcome"] = np.where(frame["age"] + frame["dose"] > 10, "ill", "well")
    return frame


QUICK: dict[str, Any] = {"train.rounds": 2, "train.local_steps": 2, "data.classes": ["well", "ill"]}
COMMON: dict[str, Any] = {"label": "outcome", "epsilon": 8, "bounds": (0, 10), "progress": False}
