"""Many users in one table: their rows one after the other, and a batch order that each user can
work out alone.

The order of a user's rows depends on the seed, the round, the epoch and the user's name (or its
number, where users have no names), not on who else is trained beside it or is in the table at all:
otherwise one user more would change the updates of others, which no clip bounds. A name is made of
the user's own cells (`homo_dp.data.values.name_of`). So users trained together and users trained
one at a time see the same batches, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from homo_dp.config.schema import TrainConfig
from homo_dp.core.errors import DataError
from homo_dp.data.rows import Table
from homo_dp.federation.mechanisms.base import PartyFacts
from homo_dp.federation.mechanisms.local_fit import LocalFit, PerSampleLoss


@dataclass(frozen=True)
class Users:
    """Rows of all users, sorted by user; user ``u`` owns rows ``offsets[u]`` to ``offsets[u + 1]``.

    >>> users = Users.of(torch.arange(3.0).reshape(3, 1), torch.zeros(3), torch.tensor([1, 0, 1]))
    >>> users.sizes.tolist(), users.rows_of(1)[0].flatten().tolist()
    ([1, 2], [0.0, 2.0])
    """

    features: Tensor
    labels: Tensor
    offsets: Tensor
    # each user's name, hashed; without names a user's number is its name
    names: NDArray[np.uint64] | None = None

    @classmethod
    def of(
        cls,
        features: Tensor,
        labels: Tensor,
        numbers: Tensor,
        names: NDArray[np.uint64] | None = None,
    ) -> Users:
        """From rows with the number (0, 1, ...) of their user; rows that are sorted by user are
        not copied.
        """
        if not bool((numbers[1:] >= numbers[:-1]).all()):
            order = numbers.argsort(stable=True)
            features, labels, numbers = features[order], labels[order], numbers[order]
        sizes = torch.bincount(numbers)
        if bool((sizes == 0).any()):
            empty = int((sizes == 0).nonzero()[0])
            raise DataError(
                f"user {empty} has no training rows; number users 0, 1, ... without gaps"
            )
        return cls(features, labels, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), names)

    @classmethod
    def of_tables(
        cls, tables: Sequence[Table], names: Sequence[str] | NDArray[Any] | None = None
    ) -> Users:
        """From the training tables of a federation: by user column where there is one, else each
        table is a user.

        ``names`` are those of the users, in the order of their numbers.
        """
        labels = [table.labels for table in tables if table.labels is not None]
        if len(labels) != len(tables):
            raise DataError("training rows have no labels; set data.label to the label column")
        known = [table.users for table in tables if table.users is not None]
        if len(known) != len(tables):
            known = [torch.full((len(table),), number) for number, table in enumerate(tables)]
        hashed = None if names is None else hashed_names(names)
        return cls.of(
            _joined([table.features for table in tables]), _joined(labels), _joined(known), hashed
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """Rows of each user."""
        return self.offsets.diff()

    def shuffled_by(self, users: NDArray[np.int64]) -> NDArray[np.uint64]:
        """What the order of these users' rows follows from."""
        return users.astype(np.uint64) if self.names is None else self.names[users]

    def rows_of(self, user: int) -> tuple[Tensor, Tensor]:
        """Features and labels of one user."""
        start, end = int(self.offsets[user]), int(self.offsets[user + 1])
        return self.features[start:end], self.labels[start:end]


@dataclass(frozen=True)
class LocalPlan:
    """How many rows a user's batch has, how many batches a round has, and which rows are in them.

    >>> plan = LocalPlan(TrainConfig(local_epochs=2, batch_size=2))
    >>> plan.batch_sizes(np.array([1, 5])).tolist(), plan.steps(np.array([1, 5])).tolist()
    ([1, 2], [2, 5])
    """

    train: TrainConfig

    def batch_sizes(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows in a batch of users with that many rows."""
        if self.train.sample_rate is not None:
            wanted: NDArray[np.int64] = np.rint(self.train.sample_rate * rows).astype(np.int64)
            return np.minimum(np.maximum(wanted, 1), rows)
        return np.minimum(self.train.batch_size or rows, rows)

    def steps(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Local steps of a round: as given, or ceil(epochs * rows / batch)."""
        if self.train.local_steps is not None:
            return np.full(len(rows), self.train.local_steps)
        passes = (self.train.local_epochs or 1.0) * rows / self.batch_sizes(rows)
        return np.maximum(1, np.ceil(passes - 1e-9)).astype(np.int64)

    def batches(
        self, users: NDArray[np.integer[Any]], rows: NDArray[np.int64], round_number: int
    ) -> Iterator[Batch]:
        """The batches of one round of these users (``Users.shuffled_by``), one a step until the
        last user is done.

        An epoch is a permutation of the user's rows in pieces of the batch size; the last piece may
        be shorter.
        """
        sizes, steps = self.batch_sizes(rows), self.steps(rows)
        pieces = -(-rows // sizes)  # batches in an epoch
        slots = np.arange(sizes.max())
        order, ordered = np.empty((0, 0), np.int64), np.full(len(users), -1)
        for step in range(steps.max()):
            epochs = step // pieces
            if (epochs != ordered).any():
                order, ordered = self._orders(users, rows, sizes, round_number, epochs), epochs
            places = (step % pieces * sizes)[:, None] + slots
            taken = (slots < sizes[:, None]) & (places < rows[:, None])
            chosen = np.take_along_axis(order, np.where(taken, places, 0), axis=1)
            yield Batch(chosen, taken, step < steps)

    def _orders(
        self,
        users: NDArray[np.integer[Any]],
        rows: NDArray[np.int64],
        sizes: NDArray[np.int64],
        round_number: int,
        epochs: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """A permutation of 0 .. rows - 1 for each user, padded at the end to the longest.

        Users whose batch holds all of their rows keep the order of the table: each by itself, since
        the order of addition decides how a sum rounds.
        """
        width, in_order = int(rows.max()), sizes >= rows
        if in_order.all():
            return np.broadcast_to(np.arange(width), (len(users), width))
        base = _mixed(
            np.uint64(self.train.seed)
            + _GOLDEN * np.arange(round_number, round_number + 1, dtype=np.uint64)
        )
        base = _mixed(base + _GOLDEN * epochs.astype(np.uint64))
        base = _mixed(base + _GOLDEN * users.astype(np.uint64))
        keys = _mixed(base[:, None] + _GOLDEN * np.arange(1, width + 1, dtype=np.uint64))
        keys[np.arange(width) >= rows[:, None]] = np.iinfo(np.uint64).max
        keys[in_order] = np.arange(width)
        return np.argsort(keys, axis=1)


@dataclass(frozen=True)
class Batch:
    """One step of many users: positions within each user's rows, which of them count, and who is
    still training.
    """

    positions: NDArray[np.int64]
    taken: NDArray[np.bool_]
    active: NDArray[np.bool_]


class UserFit(LocalFit):
    """Local training of one user by the hooks of a party, with the batches of ``LocalPlan``."""

    def __init__(
        self, model: nn.Module, loss: PerSampleLoss, users: Users, user: int, train: TrainConfig
    ) -> None:
        features, labels = users.rows_of(user)
        self.plan, self.shuffled_by = LocalPlan(train), users.shuffled_by(np.array([user]))
        rows = np.array([len(features)])
        steps, size = int(self.plan.steps(rows)[0]), int(self.plan.batch_sizes(rows)[0])
        facts = PartyFacts(f"user_{user}", len(features), train.rounds, steps, size / len(features))
        super().__init__(model, loss, features, labels, facts, train, torch.Generator())

    def _batches(self) -> Iterator[Tensor]:
        rows = np.array([len(self.features)])
        for batch in self.plan.batches(self.shuffled_by, rows, self.round_number):
            yield torch.from_numpy(batch.positions[0][batch.taken[0]])


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hashed_names(names: Sequence[str] | NDArray[Any]) -> NDArray[np.uint64]:
    """A number for each name that is the same in every run."""
    import pandas as pd

    result: NDArray[np.uint64] = pd.util.hash_array(
        np.asarray(names, dtype=object), categorize=False
    )
    return result


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea & Flood 2014): shuffles batches, and has nothing to do
    with privacy.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def users_at_once(each: NDArray[np.int64], steps: NDArray[np.int64], limit: int) -> list[int]:
    """Sizes of pieces, one after the other: users times the largest of them within a limit, though
    one always goes.

    Nor does a piece hold users with far more steps than its first: those with fewer would wait for
    them, as they are computed to the end of the piece.

    >>> users_at_once(np.array([300, 300, 300, 300, 5000]), np.array([1, 1, 1, 1, 1]), 1000)
    [3, 1, 1]
    >>> users_at_once(np.array([1, 1, 1]), np.array([3, 9, 500]), 1000)
    [2, 1]
    """
    pieces, start = [], 0
    while start < len(each):
        ahead = slice(start, start + max(1, limit // int(each[start])))
        largest = np.maximum.accumulate(each[ahead])
        fits = largest * np.arange(1, len(largest) + 1) <= limit
        alike = np.maximum.accumulate(steps[ahead]) <= 2 * steps[start] + 8
        # true up to some user, false from there on
        pieces.append(max(1, int((fits & alike).sum())))
        start += pieces[-1]
    return pieces
