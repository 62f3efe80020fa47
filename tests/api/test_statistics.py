"""Statistics from Python: the function asks what the command asks."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

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
            "data.test_fraction": 0.0,
        },
        bounds={"age": (0, 120)},
        categories={"ward": ["a", "b"]},
        ledger=tmp_path / "ledger.sqlite",
    )
    assert isinstance(found, homo_dp.Statistics)
    assert abs(found["rows"]["rows"] - 3000) < 60
    assert abs(found["means"]["age"] - frame["age"].mean()) < 3
    assert abs(found["levels"]["ward"]["(other)"] - (frame["ward"] == "c").sum()) < 100
    assert abs(found["missing"]["age"] - 100) < 100
    assert 0 < found.epsilon <= 4
    means = found.table.loc[["means age"]].astype(float)
    assert means["value"].tolist() == [found["means"]["age"]]
    assert (means["standard_error"] > 0).all()
    assert found.privacy["statement"] in repr(found)
    assert "means age" in found._repr_html_()
    with pytest.raises(KeyError, match="quantiles: was not asked; asked were rows"):
        found["quantiles"]
