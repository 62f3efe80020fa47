"""Partitions: every row to exactly one party, the same for the same seed, skewed as asked."""

from __future__ import annotations

import numpy as np
import pytest

from homo_dp.core.errors import DataError
from homo_dp.data import partition

CODES = np.repeat([0, 1, 2], [500, 300, 200])


def parts_of(kind: str, parties: int, seed: int) -> list[np.ndarray]:
    if kind == "iid":
        return partition.iid(len(CODES), parties, seed)
    if kind == "by_label":
        return partition.by_label(CODES, parties, seed)
    return partition.dirichlet(CODES, partition.dirichlet_shares(CODES, parties, 0.3, seed), seed)


@pytest.mark.parametrize("kind", ["iid", "by_label", "dirichlet"])
@pytest.mark.parametrize("parties", [1, 3, 7])
def test_every_row_goes_to_one_party(kind: str, parties: int) -> None:
    parts = parts_of(kind, parties, seed=1)
    assert len(parts) == parties
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    assert all(len(part) and np.all(np.diff(part) > 0) for part in parts)


@pytest.mark.parametrize("kind", ["iid", "by_label", "dirichlet"])
def test_the_seed_decides(kind: str) -> None:
    first, again, other = (parts_of(kind, 3, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = [len(part) for part in partition.iid(569, 3, 0)]
    assert sorted(sizes) == [189, 190, 190]


def test_by_label_gives_few_classes_to_each() -> None:
    assert max(len(set(CODES[part])) for part in partition.by_label(CODES, 10, 0)) <= 2


def test_small_alpha_is_more_uneven_than_large() -> None:
    def spread(alpha: float) -> float:
        shares = partition.dirichlet_shares(CODES, 5, alpha, 3)
        return float(
            np.std([np.mean(CODES[part] == 0) for part in partition.dirichlet(CODES, shares, 3)])
        )

    assert spread(0.1) > 4 * spread(100.0)


def test_groups_are_never_torn_apart() -> None:
    groups = np.array([0, 1, 0, 2, 1, 2, 0])
    parts = partition.by_group(groups, [np.array([0, 2]), np.array([1])])
    assert [part.tolist() for part in parts] == [[0, 2, 3, 5, 6], [1, 4]]


def test_hold_out_depends_on_party_and_seed_only() -> None:
    train, test = partition.hold_out(100, 0.2, 5, "a")
    assert (len(train), len(test)) == (80, 20)
    assert sorted([*train, *test]) == list(range(100))
    assert np.array_equal(partition.hold_out(100, 0.2, 5, "a")[1], test)
    assert not np.array_equal(partition.hold_out(100, 0.2, 5, "b")[1], test)
    assert [len(part) for part in partition.hold_out(1, 0.9, 5, "a")] == [1, 0]
    assert [len(part) for part in partition.hold_out(10, 0.0, 5, "a")] == [10, 0]


def test_impossible_partitions_are_refused() -> None:
    with pytest.raises(DataError, match="parties=5 is more than the 3 rows"):
        partition.iid(3, 5, 0)
    with pytest.raises(DataError, match="alpha=0"):
        partition.dirichlet_shares(CODES, 3, 0.0, 0)
    with pytest.raises(DataError, match="leaves one of 200 parties without a row"):
        partition.dirichlet_shares(CODES, 200, 0.001, 0)
    with pytest.raises(DataError, match="at least 1"):
        partition.party_names(0)
    with pytest.raises(DataError, match="test_fraction=1"):
        partition.hold_out(10, 1.0, 0, "a")
