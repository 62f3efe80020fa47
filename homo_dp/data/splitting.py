"""How the rows of one source fall to parties, and each party's rows to training and test."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from homo_dp.core.errors import DataError
from homo_dp.data import partition
from homo_dp.data.hashed_split import name_places, row_places
from homo_dp.data.rows import Rows, held_out_mask, texts

if TYPE_CHECKING:
    from homo_dp.config.data import DataConfig, PartitionConfig

ALONE = "all"  # name of the one party that holds a table which nothing splits
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Share:
    """Positions of one party's rows in its source (training) and in its test source."""

    party: str
    train: np.ndarray
    test: np.ndarray


def split_rows(
    data: DataConfig, rows: Rows, test: Rows | None, seed: int, *, leave_out: bool = False
) -> list[Share]:
    """Shares of one table: by the party column, by the partition, or one party for all.

    Args:
        data: how the table is split.
        rows: the rows of the table.
        test: those of the test table, if there is one.
        seed: decides which rows are held out, and who gets which in a partition.
        leave_out: leave out test rows of parties without training rows, and take parties whose
            names become the same for one; both are refused otherwise.

    Returns:
        Positions of each party's training and test rows.
    """
    if test is not None:
        names, train_parts, test_parts = _dealt(
            data, rows, np.arange(len(rows)), test, np.arange(len(test)), seed, leave_out
        )
        return _shares(names, train_parts, test_parts)
    if data.split_column is not None:
        mask = held_out_mask(rows.frame, data.split_column, rows.source)
        kept, held = np.flatnonzero(~mask), np.flatnonzero(mask)
        names, train_parts, test_parts = _dealt(data, rows, kept, rows, held, seed, leave_out)
        return _shares(names, train_parts, test_parts)
    names, parts, _ = _dealt(
        data, rows, np.arange(len(rows)), rows, np.empty(0, dtype=np.int64), seed, leave_out
    )
    return [hold_out(data, rows, name, part, seed) for name, part in zip(names, parts, strict=True)]


def hold_out(data: DataConfig, rows: Rows, party: str, part: np.ndarray, seed: int) -> Share:
    """Hold out the test fraction of one party's rows; whole users where the table has users.

    It depends on the seed, the party's name and each row (or user) by itself, so it is the same in
    a simulation and in the party's own process. The test rows of a private table are about the
    fraction: an exact number would depend on all rows.
    """
    fraction = partition.check_fraction(data.test_fraction or 0.0)
    if not rows.public:
        held = _places(rows, part, seed, f"test/{party}") < fraction
        return Share(party, part[~held], part[held])
    if rows.users is None:
        train, test = partition.hold_out(len(part), fraction, seed, party)
    else:
        group, names = pd.factorize(rows.users[part])
        _, users = partition.hold_out(len(names), fraction, seed, party)
        mask = np.isin(group, users)
        train, test = np.flatnonzero(~mask), np.flatnonzero(mask)
    return Share(party, part[train], part[test])


def _places(rows: Rows, part: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """A place in [0, 1) for each row, or the same for all rows of a user."""
    if rows.users is None:
        return row_places(rows, part, seed, purpose)
    group, names = pd.factorize(rows.users[part])
    return name_places(names, seed, purpose)[group]


def _dealt(
    data: DataConfig,
    rows: Rows,
    kept: np.ndarray,
    test: Rows,
    held: np.ndarray,
    seed: int,
    leave_out: bool,
) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
    if data.party_column is not None:
        return _by_column(data.party_column, rows, kept, test, held, leave_out=leave_out)
    if data.partition is None:
        return [ALONE], [kept], [held]
    names = partition.party_names(data.partition.parties)
    train_parts, test_parts = _by_partition(data, rows, kept, test, held, seed)
    return names, [kept[part] for part in train_parts], [held[part] for part in test_parts]


def _by_partition(
    data: DataConfig, rows: Rows, kept: np.ndarray, test: Rows, held: np.ndarray, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Parts (positions within `kept` and within `held`); label-skewed test rows follow the
    training shares.
    """
    chosen = data.partition
    if chosen is None:
        raise DataError("data.partition is not given")
    if rows.users is not None:
        if chosen.kind != "iid":
            raise DataError(
                f"data.partition.kind={chosen.kind} would tear users apart; with data.user_column "
                "use iid"
            )
    elif chosen.kind != "iid" and rows.labels.is_floating_point():
        raise DataError(
            f"data.partition.kind={chosen.kind} needs classes; a regression table can be split iid"
        )
    if not rows.public:
        return _by_place(chosen, rows, kept, seed), _by_place(chosen, test, held, seed)
    train_parts, test_parts = _exactly(chosen, rows, kept, test, held, seed)
    if not test.public and not data.public_test:  # a table of the user beside a bundled set
        test_parts = _by_place(chosen, test, held, seed)
    return train_parts, test_parts


def _exactly(
    chosen: PartitionConfig, rows: Rows, kept: np.ndarray, test: Rows, held: np.ndarray, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Parts of public rows, by their numbers."""
    count = chosen.parties
    if rows.users is not None:
        return _by_user(rows.users[kept], count, seed), _spread(len(held), count)
    if chosen.kind == "iid":
        return partition.iid(len(kept), count, seed), _spread(len(held), count)
    codes, test_codes = rows.labels.numpy()[kept], test.labels.numpy()[held]
    if chosen.kind == "by_label":
        return partition.by_label(codes, count, seed), _spread_sorted(test_codes, count)
    classes = int(max(codes.max(initial=0), test_codes.max(initial=0))) + 1
    shares = partition.dirichlet_shares(codes, count, chosen.alpha, seed, classes)
    return partition.dirichlet(codes, shares, seed), partition.dirichlet(test_codes, shares, seed)


def _by_place(chosen: PartitionConfig, rows: Rows, part: np.ndarray, seed: int) -> list[np.ndarray]:
    """Rows of a private table dealt out each by its own place, so that one row more moves no other.

    Parties get about equal shares, or about their Dirichlet shares; by label each class takes an
    equal piece of the line from the first party to the last.
    """
    count = chosen.parties
    if chosen.kind == "iid":
        return dealt_by_place(rows, part, count, seed)
    if len(part) == 0:
        return [part] * count
    places = _places(rows, part, seed, chosen.kind)
    codes, classes = rows.labels.numpy()[part], rows.classes or 1
    if chosen.kind == "by_label":
        return partition.by_code(
            ((codes + places) / classes * count).astype(np.int64).clip(max=count - 1), count
        )
    ends = partition.public_shares(classes, count, chosen.alpha, seed).cumsum(axis=1)
    owner = (places[:, None] >= ends[codes, :-1]).sum(axis=1)
    return partition.by_code(owner, count)


def dealt_by_place(rows: Rows, part: np.ndarray, parties: int, seed: int) -> list[np.ndarray]:
    """About equal shares of private rows, each dealt by its own place (that of its user)."""
    if len(part) == 0:
        return [part] * parties
    places = _places(rows, part, seed, "iid")
    return partition.by_code((places * parties).astype(np.int64), parties)


def _by_user(users: np.ndarray, parties: int, seed: int) -> list[np.ndarray]:
    group, names = pd.factorize(users)
    return partition.by_group(group, partition.iid(len(names), parties, seed))


def _by_column(
    column: str,
    rows: Rows,
    kept: np.ndarray,
    test: Rows,
    held: np.ndarray,
    *,
    leave_out: bool = False,
) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
    owners = texts(rows.frame, column, rows.source)[kept]
    test_owners = (
        texts(test.frame, column, test.source)[held] if len(held) else np.empty(0, dtype=object)
    )
    if leave_out:
        owners, test_owners = _party_names(owners), _party_names(test_owners)
    owner, index = pd.factorize(owners, sort=True)
    names = [str(name) for name in _party_names(np.asarray(index))]
    if len(set(names)) != len(names):
        raise DataError(
            f"{rows.source}: data.party_column={column!r}: two parties get one name; rename them"
        )
    test_owner = pd.Index(index).get_indexer(pd.Index(test_owners))
    if (test_owner < 0).any() and not leave_out:
        stranger = test_owners[int((test_owner < 0).argmax())]
        raise DataError(
            f"{test.source}: party {stranger!r} has test rows but no training rows; drop them"
        )
    train_parts = [kept[part] for part in partition.by_code(owner, len(names))]
    held, test_owner = held[test_owner >= 0], test_owner[test_owner >= 0]
    return names, train_parts, [held[part] for part in partition.by_code(test_owner, len(names))]


def _party_names(found: np.ndarray) -> np.ndarray:
    known = {text: _NOT_IN_A_NAME.sub("_", text).strip("_-")[:64] or "party" for text in set(found)}
    return np.array([known[text] for text in found], dtype=object)


def _spread(rows: int, parties: int) -> list[np.ndarray]:
    """Test rows that belong to nobody in particular: every row to exactly one party, in order."""
    return np.array_split(np.arange(rows), parties)


def _spread_sorted(codes: np.ndarray, parties: int) -> list[np.ndarray]:
    return [np.sort(part) for part in np.array_split(np.argsort(codes, kind="stable"), parties)]


def _shares(names: list[str], train: list[np.ndarray], test: list[np.ndarray]) -> list[Share]:
    return [Share(*each) for each in zip(names, train, test, strict=True)]
