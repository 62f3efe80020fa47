"""Many users in one table: their rows one after the other, and batches that each user can work
out alone.
"""

import numpy as np
import pytest
import torch

from homo_dp.config.schema import TrainConfig
from homo_dp.core.errors import DataError
from homo_dp.data.rows import Table
from homo_dp.federation.users.user_rows import LocalPlan, Users


def test_rows_are_sorted_by_user_and_keep_their_order() -> None:
    users = Users.of(
        torch.arange(5.0).reshape(5, 1), torch.arange(5), torch.tensor([2, 0, 2, 1, 0])
    )
    assert users.offsets.tolist() == [0, 2, 3, 5]
    assert [users.rows_of(user)[1].tolist() for user in range(3)] == [[1, 4], [3], [0, 2]]


def test_sorted_rows_are_not_copied() -> None:
    features = torch.zeros(4, 2)
    assert Users.of(features, torch.zeros(4), torch.tensor([0, 0, 1, 2])).features is features


def test_a_user_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match="user 1"):
        Users.of(torch.zeros(2, 1), torch.zeros(2), torch.tensor([0, 2]))


def test_parties_without_a_user_column_are_users() -> None:
    tables = [Table(torch.zeros(rows, 2), torch.zeros(rows)) for rows in (3, 1)]
    assert Users.of_tables(tables).sizes.tolist() == [3, 1]


def test_a_user_of_two_parties_is_one_user() -> None:
    tables = [
        Table(torch.zeros(2, 1), torch.zeros(2), users=torch.tensor([0, 1])),
        Table(torch.ones(2, 1), torch.ones(2), users=torch.tensor([1, 2])),
    ]
    assert Users.of_tables(tables).sizes.tolist() == [1, 2, 1]


@pytest.mark.parametrize(("rows", "size"), [(1, 4), (4, 4), (7, 3), (30, 10)])
def test_an_epoch_takes_every_row_once(rows: int, size: int) -> None:
    plan = LocalPlan(TrainConfig(local_epochs=1, batch_size=size))
    taken: list[int] = []
    for batch in plan.batches(np.array([5]), np.array([rows]), round_number=1):
        taken += batch.positions[0][batch.taken[0]].tolist()
    assert sorted(taken) == list(range(rows))


def test_orders_differ_between_users_rounds_and_epochs_and_repeat_otherwise() -> None:
    plan = LocalPlan(TrainConfig(local_epochs=2, batch_size=15))

    def order(user: int, number: int) -> list[list[int]]:
        batches = list(plan.batches(np.array([user]), np.array([30]), number))
        return [
            batches[at].positions[0].tolist() + batches[at + 1].positions[0].tolist()
            for at in (0, 2)
        ]

    first, second = order(1, 1)
    assert first != second
    assert order(1, 1) == [first, second]
    assert order(1, 2)[0] != first
    assert order(2, 1)[0] != first


def test_batches_of_a_user_are_those_that_it_has_alone() -> None:
    """A user whose batch is all of its rows had another order of addition beside one with more."""
    plan = LocalPlan(TrainConfig(local_epochs=2, batch_size=4))
    rows, users = np.array([3, 9, 4, 30]), np.array([7, 8, 9, 10])
    together = list(plan.batches(users, rows, 1))
    for at in range(len(rows)):
        for step, batch in enumerate(plan.batches(users[at : at + 1], rows[at : at + 1], 1)):
            among = together[step]
            assert (
                among.positions[at][among.taken[at]].tolist()
                == batch.positions[0][batch.taken[0]].tolist()
            )


def test_orders_are_uniform() -> None:
    # 4,000 orders of 3 rows: each of the 6 has a deviation of 24 around 667; the tolerance is six
    # of them, seed 0
    plan = LocalPlan(TrainConfig(local_epochs=1, batch_size=1))
    batches = list(plan.batches(np.arange(4000), np.full(4000, 3), 1))
    orders = np.concatenate([batch.positions for batch in batches], axis=1)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert abs(counts - 4000 / 6).max() < 150


def test_users_with_fewer_steps_stop_earlier() -> None:
    plan = LocalPlan(TrainConfig(local_epochs=1, batch_size=2))
    active = [
        batch.active.tolist() for batch in plan.batches(np.array([0, 1]), np.array([2, 5]), 1)
    ]
    assert active == [[True, True], [False, True], [False, True]]
