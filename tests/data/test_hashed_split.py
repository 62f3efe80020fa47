"""One row more or less in a private table changes no other row's place: not its party, not train
or test.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from homo_dp.core.errors import DataError
from homo_dp.data import partition
from homo_dp.data.hashed_split import name_places
from homo_dp.data.parties import Federation, load_federation
from tests.data.parts import config, save

COLUMNS = {"x": {"bounds": [0, 4000]}, "side": {"bounds": [-1, 1]}}


def table(rows: int, **columns: Any) -> pd.DataFrame:
    numbers = np.arange(rows)
    frame = {"x": numbers, "side": np.where(numbers % 2, 1.0, -1.0), "y": numbers // 2 % 2}
    return pd.DataFrame(frame | columns)


def load(folder: Path, frame: pd.DataFrame, **data: Any) -> Federation:
    path = save(folder, "t.csv", frame)
    files: Any = path if "partition" in data or "user_column" in data else {"a": path}
    return load_federation(config(files=files, columns=COLUMNS, **data))


def places(federation: Federation) -> Counter[tuple[str, str, tuple[float, ...]]]:
    """Every row with its party and whether it is trained on."""
    found: Counter[tuple[str, str, tuple[float, ...]]] = Counter()
    for name, party in federation.parties.items():
        for kind, rows in (("train", party.train), ("test", party.test)):
            if rows is None or rows.labels is None:
                continue
            for features, label in zip(rows.features, rows.labels, strict=True):
                found[name, kind, (*features.tolist(), float(label))] += 1
    return found


SPLITS: list[dict[str, Any]] = [
    {"test_fraction": 0.2},
    {"test_fraction": 0.3, "partition": {"parties": 3}},
    {"test_fraction": 0.3, "partition": {"parties": 3, "kind": "by_label"}},
    {"test_fraction": 0.3, "partition": {"parties": 3, "kind": "dirichlet", "alpha": 1.0}},
]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("removed", [0, 57, 119])
def test_a_row_more_moves_no_other(tmp_path: Path, split: dict[str, Any], removed: int) -> None:
    whole = table(120)
    whole.loc[30:44, ["x", "y"]] = (7, 1)  # rows that are alike, and cannot be told apart
    whole.loc[30:44, "side"] = 1.0
    less = whole.drop(index=removed)
    more, fewer = places(load(tmp_path, whole, **split)), places(load(tmp_path, less, **split))
    assert (more - fewer).total() == 1
    assert (fewer - more).total() == 0


@pytest.mark.parametrize("removed", [30, 44])
def test_equal_rows_keep_their_places(tmp_path: Path, removed: int) -> None:
    same = pd.DataFrame({"x": [7] * 60, "side": [1.0] * 60, "y": [1] * 60})
    more = places(load(tmp_path, same, test_fraction=0.5))
    fewer = places(load(tmp_path, same.drop(index=removed), test_fraction=0.5))
    assert {kind for _, kind, _ in more} == {"train", "test"}, (
        "rows that are alike do not share one place"
    )
    assert (more - fewer).total() == 1


def test_a_user_more_moves_no_other_user(tmp_path: Path) -> None:
    frame = table(120, person=[f"u{n % 40}" for n in range(120)])
    split: dict[str, Any] = {
        "user_column": "person",
        "partition": {"parties": 2},
        "test_fraction": 0.3,
    }
    more = places(load(tmp_path, frame, **split))
    fewer = places(load(tmp_path, frame[frame["person"] != "u3"], **split))
    assert (more - fewer).total() == 3, "the rows of the one user"
    assert (fewer - more).total() == 0


def test_a_crafted_table_moves_the_clipped_sum_by_one_row(tmp_path: Path) -> None:
    """The attack: signs chosen from the seed, so that all rows that one more row moves pull the
    same way.
    """
    rows, seed = 1000, 0
    trained = [set(partition.hold_out(count, 0.2, seed, "a")[0]) for count in (rows, rows + 1)]
    side = np.array([1.0 if n in trained[0] - trained[1] else -1.0 for n in range(rows + 1)])

    def clipped_sum(kept: set[Any]) -> float:
        return float(sum(side[n] for n in kept if n < rows))

    assert abs(clipped_sum(trained[0]) - clipped_sum(trained[1])) > 100, (
        "what a permutation of the count does"
    )
    sums = []
    for count in (rows, rows + 1):
        train = (
            load(tmp_path, table(count, side=side[:count]), test_fraction=0.2).parties["a"].train
        )
        sums.append(float(train.features[:, 1].sum()))
    assert abs(sums[0] - sums[1]) <= 1


def test_shares_are_about_what_was_asked_for(tmp_path: Path) -> None:
    """3,000 rows: five standard deviations each, so a false alarm in about a million seeds."""
    federation = load(tmp_path, table(3000), test_fraction=0.2, partition={"parties": 3})
    sizes = [(len(party.train), len(party.test or ())) for party in federation.parties.values()]
    assert all(abs(train + test - 1000) < 5 * np.sqrt(3000 * 2 / 9) for train, test in sizes)
    assert abs(sum(test for _, test in sizes) - 600) < 5 * np.sqrt(3000 * 0.16)


def test_the_seed_and_the_name_decide() -> None:
    names = [f"u{n}" for n in range(50)]
    first, other_seed, other_party = (
        name_places(names, *key) for key in ((1, "test/a"), (2, "test/a"), (1, "test/b"))
    )
    assert not np.any(first == other_seed)
    assert not np.any(first == other_party)
    assert np.all((first >= 0) & (first < 1))


def test_a_party_without_a_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no training rows"):
        load(tmp_path, table(3), test_fraction=0, partition={"parties": 40})
