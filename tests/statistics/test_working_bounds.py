"""Sums behind working bounds: how far one row moves them, and what they find without noise."""

import math

import pytest
import torch

from homo_dp.statistics.questions import Question
from homo_dp.statistics.working_bounds import (
    Magnitudes,
    Octaves,
    Spreads,
    Window,
    drawn_together,
    outer_of,
)

OUTER = outer_of(["a", "b", "c"], [0, 2, 1], [(-1e6, 1e6), (0.0, 1e6), (5.0, 1e4)])
ROWS = torch.tensor(
    [[0.0, 7.0, 1.0], [1e300, -1e300, math.nan], [-1e6, 5.0, 0.0], [3.5, 1e4, 1e6], [math.nan] * 3],
    dtype=torch.float64,
)
LABELS = torch.zeros(5)
WINDOW = Window(1, 14.5, 4.0, 1000.0)


@pytest.mark.parametrize(
    "question",
    [
        Octaves(OUTER, 1000.0),
        Magnitudes(OUTER, WINDOW),
        Magnitudes(OUTER, Window(0, 0.0, 0.0, 10.0)),  # numbers that an aggregator should not send
        Spreads(OUTER, OUTER.low, OUTER.high, 1000.0),
    ],
)
def test_no_row_moves_a_sum_by_more_than_one(question: Question) -> None:
    parts = question.parts(ROWS, LABELS)
    assert parts.shape == (5, question.dimension)
    assert parts.isfinite().all()
    assert float(parts.norm(dim=1).max()) <= 1 + 1e-12
    assert torch.equal(
        parts, torch.cat([question.parts(ROWS[i : i + 1], LABELS[:1]) for i in range(5)])
    )


def test_without_noise_bounds_hold_most_values_and_little_else() -> None:
    generator = torch.Generator().manual_seed(3)
    scales = torch.tensor([10.0, 500.0, 2.0], dtype=torch.float64)
    values = torch.randn(4000, 3, generator=generator, dtype=torch.float64) * scales
    outer = outer_of("abc", range(3), [(-1e6, 1e6)] * 3)
    octaves = Octaves(outer, 4000.0)
    window = octaves.window(octaves.parts(values, LABELS).sum(0), 1e-6)
    magnitudes = Magnitudes(outer, window)
    low, high = magnitudes.bounds(magnitudes.parts(values, LABELS).sum(0), 1e-6)
    spreads = Spreads(outer, low, high, 4000.0)
    low, high = spreads.bounds(spreads.parts(values, LABELS).sum(0), 1e-6)
    inside = ((values >= low) & (values <= high)).double().mean(0)
    assert (inside > 0.8).all()
    assert ((high - low) < 12 * scales).all()


def test_noise_that_hides_all_differences_leaves_one_mean() -> None:
    found = drawn_together(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), 50.0)
    assert found.tolist() == [2.0, 2.0, 2.0]
    assert drawn_together(torch.tensor([1.0, 2.0, 3.0]), 1e-6).tolist() == pytest.approx(
        [1.0, 2.0, 3.0]
    )


def test_bounds_travel_as_shares_and_come_back() -> None:
    low, high = torch.tensor([-5.0, 0.0, 6.0]).double(), torch.tensor([5.0, 1e-3, 7.0]).double()
    back = OUTER.within(OUTER.shares(low, high))
    assert torch.allclose(back[0], low, atol=1e-6)
    assert torch.allclose(back[1], high, atol=1e-6)
    upside_down = OUTER.within(torch.tensor([[0.9, 0.1]] * 3, dtype=torch.float64))
    assert torch.equal(upside_down[0], OUTER.low)
