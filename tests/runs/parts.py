"""What tests of runs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd


def private_table(folder: Path, **data: Any) -> dict[str, Any]:
    frame = pd.DataFrame({"x": range(300), "y": [0, 1] * 150})
    frame.to_csv(folder / "t.csv", index=False)
    keys = {"data.files.all": str(folder / "t.csv"), "data.columns.x.bounds": [0, 300]}
    return keys | {f"data.{key}": value for key, value in data.items()}


NOISED = "train.rounds=1,metrics.release=noised,privacy.target_epsilon=4"
WINNER = [
    "--publish",
    "winner",
    "--range",
    "train.learning_rate=0.1:2",
    "--trials",
    "3",
    "--jobs",
    "1",
    "--params",
]
