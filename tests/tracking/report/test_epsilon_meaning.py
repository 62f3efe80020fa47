"""What epsilon means: bounds that hold, and are no wider than the theory says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from scipy import stats

from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
from homo_dp.privacy.accounting.events import to_json
from homo_dp.tracking.report.epsilon_meaning import meaning_table, most_true_positives, posterior


def rows_of(noise: float, rounds: int, delta: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    spent = epsilon(GaussianDpEvent(noise / math.sqrt(rounds)), delta).quoted
    event = json.loads(to_json(GaussianDpEvent(noise)))
    ledger = [{"party": "a", "epsilon": spent, "event": event} for _ in range(rounds)]
    return {"private": True, "epsilon": spent, "delta": delta, "unit": "record"}, ledger


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 16), (10.0, 4), (2.0, 9)])
def test_the_best_attack_is_that_of_the_gaussian_mechanism(noise: float, rounds: int) -> None:
    """Between two Gaussians the best test is known: TPR = Phi(Phi^-1(FPR) + mu), with mu =
    sqrt(rounds) / noise.
    """
    privacy, ledger = rows_of(noise, rounds, 1e-5)
    table = meaning_table(privacy, ledger)
    assert table is not None
    shown = float(str(table.rows[4][1]).rstrip("%")) / 100
    exact = float(stats.norm.cdf(stats.norm.ppf(0.01) + math.sqrt(rounds) / noise))
    # never below, and close: a few points of the profile are used
    assert exact - 0.001 <= shown <= 1.2 * exact + 0.002


def test_without_the_releases_the_quoted_figure_bounds_it_alone() -> None:
    privacy, ledger = rows_of(4.0, 16, 1e-5)
    alone = meaning_table(privacy, [])
    known = meaning_table(privacy, ledger)
    assert alone is not None
    assert known is not None
    assert float(str(alone.rows[4][1]).rstrip("%")) > float(str(known.rows[4][1]).rstrip("%"))


def test_odds() -> None:
    assert posterior(0.5, math.log(3)) == pytest.approx(0.75)
    assert posterior(0.01, 1e6) == pytest.approx(1.0)
    assert most_true_positives([(1e6, 0.0)]) == 1.0
    assert most_true_positives([(0.0, 0.05)]) == pytest.approx(0.06)


def test_odds_beyond_the_largest_float_are_not_given_as_a_bound() -> None:
    void = {"private": True, "epsilon": 168_000.0, "delta": 1e-5, "delta_with_neglected": 1.00001}
    table = meaning_table(void, [])
    assert table is not None
    assert table.rows[0][1] == "no bound in practice"
    assert table.rows[-1][1] == "1"


@pytest.mark.parametrize(
    "privacy", [{"private": False, "epsilon": 1.0, "delta": 0.1}, {"private": True}]
)
def test_nothing_is_said_where_no_epsilon_holds(privacy: dict[str, Any]) -> None:
    assert meaning_table(privacy, []) is None
