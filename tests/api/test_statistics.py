"""Statistics from Python: the function asks what the command asks."""

from pathlib import Path

import numpy as np
import pandas as pd

import homo_dp


def test_the_function_asks_what_the_command_asks(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {"age": rng.integers(20, 80, 3000), "ward": rng.choice(["a", "b", "c"], 3000)}
    )
    frame["y"] = rng.integers(0, 2, 3000)
    frame.loc[:99, "age"] = np.nan
    found = homo_dp.stats(
        {"n": frame[:1500], "s": frame[1500:]},
        "rows,means,levels,missing",
        epsilon=4,
        settings={
            "data.columns": {"age": {"bounds": [0, 120]}, "ward": {"levels": ["a", "b"]}},
            "data.test_fraction": 0.0,
        },
        ledger=tmp_path / "ledger.sqlite",
    )
    questions = found["questions"]
    assert abs(questions["rows"]["values"]["rows"] - 3000) < 60
    assert abs(questions["means"]["values"]["age"] - frame["age"].mean()) < 3
    assert (
        abs(questions["levels"]["values"]["ward"]["(other)"] - (frame["ward"] == "c").sum()) < 100
    )
    assert abs(questions["missing"]["values"]["age"] - 100) < 100
