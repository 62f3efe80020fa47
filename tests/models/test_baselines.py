"""What a result is compared with."""

from __future__ import annotations

import torch

from homo_dp.data.rows import Table
from homo_dp.models.baselines import majority, plain_fit
from homo_dp.models.task import task_for


def _table(rows: int, seed: int) -> Table:
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(rows, 3, generator=generator) * 2 - 1
    return Table(features, (features[:, 0] + features[:, 1] > 0).long())


def test_the_majority_is_the_share_of_the_most_frequent_class() -> None:
    assert majority(torch.tensor([2, 2, 1, 0])) == 0.5
    assert majority(torch.tensor([])) is None


def test_a_plain_fit_learns_what_is_linear() -> None:
    found = plain_fit(task_for([0, 1]), [_table(300, 1), _table(300, 2)], [_table(200, 3)])
    assert found is not None
    assert found["test_acc"] > 0.97
    assert "without privacy" in found["what"]


def test_a_regression_has_r2() -> None:
    train, test = _table(200, 1), _table(100, 2)
    pair = [Table(table.features, table.features.sum(1) / 3) for table in (train, test)]
    found = plain_fit(task_for(None, None, (0.0, 10.0)), pair[:1], pair[1:])
    assert found is not None
    assert found["test_r2"] > 0.99


def test_without_rows_there_is_none() -> None:
    assert plain_fit(task_for([0, 1]), [], [_table(3, 1)]) is None
