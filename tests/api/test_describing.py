"""Drafted settings train on the tables that they were drafted from."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import homo_dp
from homo_dp.core.errors import DataError


def table(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.integers(20, 90, rows), "ward": rng.choice(["a", "b"], rows)})
    frame["outcome"] = np.where(frame["age"] + rng.normal(0, 15, rows) > 55, "ill", "well")
    return frame.assign(died=frame["outcome"] == "ill")


def test_the_settings_of_a_description_train_on_the_same_frames(tmp_path: Path) -> None:
    table(80, 2).to_csv(tmp_path / "south.csv", index=False)
    parties = {"north": table(80, 1), "south": tmp_path / "south.csv"}
    drafted = homo_dp.describe(parties)
    assert drafted.settings["data"]["label"] == "outcome"
    assert drafted.settings["data"]["columns"]["ward"] == {"levels": ["a", "b"]}
    assert any(line.startswith("died: WARNING") for line in drafted.guesses)
    assert "memory://" not in drafted.text
    result = homo_dp.fit(
        parties,
        settings={**drafted.settings, "train.rounds": 1},
        epsilon=4,
        ledger=None,
        progress=False,
    )
    assert set(result.privacy["parties"]) == {"north", "south"}
    assert "Epsilon does not cover bounds" in result.privacy["statement"]


def test_one_frame_is_split_by_its_party_column() -> None:
    frame = table(90, 3).assign(hospital=["n", "s", "w"] * 30)
    drafted = homo_dp.describe(frame, label="outcome")
    result = homo_dp.plan(frame, settings=drafted.settings, epsilon=1)
    assert result.parties.index.tolist() == ["n", "s", "w"]


def test_errors_call_a_frame_what_the_caller_calls_it() -> None:
    with pytest.raises(DataError, match=r"^parties\['north'\].*--label='sick' is not a column"):
        homo_dp.describe({"north": table(10, 1)}, label="sick")
