"""How rows fall to parties: every row once, whole users, and a private row moves no other row."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from homo_dp.core.errors import DataError
from homo_dp.data.columns import Numeric
from homo_dp.data.rows import Rows, encode_rows
from homo_dp.data.splitting import Share, hold_out, split_rows
from tests.data.parts import config, encoding


def rows_of(count: int, *, public: bool = False, **columns: Any) -> Rows:
    frame = pd.DataFrame({"x": np.arange(count) % 100, "y": np.arange(count) % 2, **columns})
    data = config(user_column="user" if "user" in columns else None).data
    return encode_rows(frame, None, encoding(Numeric("x", 0, 100)), data, "t.csv", public=public)


def everything(shares: list[Share]) -> list[int]:
    return sorted(
        np.concatenate([np.concatenate([share.train, share.test]) for share in shares]).tolist()
    )


@pytest.mark.parametrize("kind", ["iid", "by_label", "dirichlet"])
@pytest.mark.parametrize("public", [True, False])
def test_every_row_falls_to_one_party(kind: str, public: bool) -> None:
    data = config(partition={"kind": kind, "parties": 3}, test_fraction=0.25).data
    shares = split_rows(data, rows_of(200, public=public), None, seed=1)
    assert [share.party for share in shares] == ["party_1", "party_2", "party_3"]
    assert everything(shares) == list(range(200))


@pytest.mark.parametrize("kind", ["iid", "by_label", "dirichlet"])
def test_one_private_row_more_moves_no_other(kind: str) -> None:
    data = config(partition={"kind": kind, "parties": 3}, test_fraction=0.25).data
    # rows that are told apart
    marks = pd.Series(np.random.default_rng(0).normal(size=201).astype(str))
    fewer, more = (
        split_rows(data, rows_of(count, mark=marks[:count]), None, seed=1) for count in (200, 201)
    )
    for before, after in zip(fewer, more, strict=True):
        assert set(before.train) <= set(after.train)
        assert set(before.test) <= set(after.test)
    assert sum(len(share.train) + len(share.test) for share in more) == 201


@pytest.mark.parametrize("public", [True, False])
def test_users_are_held_out_whole(public: bool) -> None:
    users = np.repeat([f"u{number}" for number in range(40)], 5)
    data = config(user_column="user", test_fraction=0.5).data
    share = hold_out(data, rows_of(200, public=public, user=users), "a", np.arange(200), seed=3)
    assert not set(users[share.train]) & set(users[share.test])
    assert 0 < len(share.test) < 200


def test_the_party_column_names_parties_and_its_test_rows_follow() -> None:
    data = config(party_column="owner", split_column="part").data
    rows = rows_of(
        6, owner=["b ank", "a", "a", "b ank", "a", "a"], part=["train"] * 4 + ["test"] * 2
    )
    found = {
        share.party: (share.train.tolist(), share.test.tolist())
        for share in split_rows(data, rows, None, 0)
    }
    assert found == {"a": ([1, 2], [4, 5]), "b_ank": ([0, 3], [])}


def test_what_cannot_be_split_is_refused() -> None:
    data = config(party_column="owner", split_column="part").data
    stranger = rows_of(2, owner=["a", "c"], part=["train", "test"])
    with pytest.raises(DataError, match="party 'c' has test rows but no training rows"):
        split_rows(data, stranger, None, 0)
    with pytest.raises(DataError, match="two parties get one name"):
        split_rows(data, rows_of(2, owner=["a b", "a+b"], part=["train", "train"]), None, 0)
    torn = config(user_column="user", partition={"kind": "by_label", "parties": 2}).data
    with pytest.raises(DataError, match="would tear users apart"):
        split_rows(torn, rows_of(4, user=["u", "u", "v", "v"]), None, 0)
