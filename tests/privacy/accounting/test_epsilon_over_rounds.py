"""A curve over rounds: each round found once, in pieces, and equal to the whole computation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from homo_dp.privacy.accounting.accountants import epsilon, epsilon_curve
from homo_dp.privacy.accounting.dp_event import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from homo_dp.privacy.accounting.epsilon_over_rounds import Curve, Epsilon


def test_the_quoted_figure_is_pld_where_there_is_one() -> None:
    assert Epsilon(1.0, 2.0).quoted == 1.0
    assert Epsilon(None, 2.0).quoted == 2.0


def test_no_round_is_found_twice() -> None:
    found: list[int] = []

    def find(rounds: Sequence[int]) -> list[Epsilon]:
        assert list(rounds) == sorted(rounds)
        found.extend(rounds)
        return [Epsilon(None, float(number)) for number in rounds]

    curve = Curve(600, find)
    assert [curve[index].rdp for index in (599, 0, 300, 599, 1)] == [600.0, 1.0, 301.0, 600.0, 2.0]
    assert [each.rdp for each in curve] == [float(number) for number in range(1, 601)]
    assert len(found) == len(set(found))


def test_indices_beyond_the_plan_are_errors() -> None:
    curve = Curve(3, lambda rounds: [Epsilon(None, 0.0) for _ in rounds])
    assert len(curve) == 3
    with pytest.raises(IndexError):
        curve[3]


def test_the_curve_is_the_composition_of_so_many_rounds() -> None:
    step = PoissonSampledDpEvent(0.05, GaussianDpEvent(1.2))
    curve = epsilon_curve(step, 40, 1e-5)
    for rounds in (1, 7, 40):
        whole = epsilon(SelfComposedDpEvent(step, rounds), 1e-5)
        assert curve[rounds - 1].rdp == pytest.approx(whole.rdp, rel=1e-9)
        assert curve[rounds - 1].quoted == pytest.approx(whole.quoted, rel=2e-3)
