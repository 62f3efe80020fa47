"""Epsilon against published and other libraries' figures; and the two classic mistakes, which
must not pass.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import PRVAccountant, RDPAccountant

from homo_dp.privacy.accounting.accountants import (
    Epsilon,
    compose,
    epsilon,
    epsilon_curve,
    rdp_epsilon,
    steps_for_epochs,
)
from homo_dp.privacy.accounting.epsilon_over_rounds import AT_ONCE
from homo_dp.privacy.accounting.events import DpEvent, parts, to_json
from homo_dp.privacy.errors import PrivacyError

ROWS, BATCH, EPOCHS, NOISE, DELTA = 60_000, 256, 60, 1.1, 1e-5
STEPS = steps_for_epochs(EPOCHS, ROWS, BATCH)


def poisson(sample_rate: float, noise: float, steps: int) -> DpEvent:
    return dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(sample_rate, dp_event.GaussianDpEvent(noise)), steps
    )


def fixed_size(noise_over_clip: float, sensitivity: float) -> DpEvent:
    """Fixed-size batches: noise of ``noise_over_clip`` clip norms, a sum that moves by
    ``sensitivity`` of them.
    """
    gaussian = dp_event.GaussianDpEvent(noise_over_clip / sensitivity)
    return dp_event.SelfComposedDpEvent(
        dp_event.SampledWithoutReplacementDpEvent(ROWS, BATCH, gaussian), STEPS
    )


# --- golden values


def test_golden_poisson() -> None:
    """dp-accounting 0.6 and Opacus 1.6 agree; the true value of PLD is within [2.3675, 2.3816]
    (PRV, both bounds).
    """
    spent = epsilon(poisson(BATCH / ROWS, NOISE, STEPS), DELTA)
    assert spent.rdp == pytest.approx(2.597, abs=5e-4)
    assert spent.pld == pytest.approx(2.382, abs=5e-4)
    assert spent.quoted == spent.pld


def golden_fixed_size(event_of: Callable[[float], DpEvent]) -> bool:
    """Whether fixed-size batches with noise 1.1 C cost what replacing one record costs (RDP,
    dp-accounting 0.6).
    """
    spent = epsilon(event_of(NOISE), DELTA)
    return spent.pld is None and abs(spent.rdp - 24.08) < 5e-3 and spent.quoted == spent.rdp


def test_golden_fixed_size() -> None:
    assert golden_fixed_size(lambda noise: fixed_size(noise, sensitivity=2.0))


def test_a_forgotten_factor_two_is_noticed() -> None:
    """Broken on purpose: replacing a record moves a sum of clipped rows by 2 C, this event says
    C.
    """

    def forgotten(noise: float) -> DpEvent:
        return fixed_size(noise, sensitivity=1.0)

    assert not golden_fixed_size(forgotten)
    assert epsilon(forgotten(NOISE), DELTA).rdp == pytest.approx(5.243, abs=5e-4)


# --- against Opacus

OPACUS_POINTS = [  # sample rate, noise multiplier, steps, delta
    (0.01, 1.0, 1000, 1e-5),
    (0.001, 0.8, 5000, 1e-6),
    (0.02, 2.0, 500, 1e-5),
    (0.1, 4.0, 200, 1e-5),
    (0.05, 1.5, 1000, 1e-6),
    (0.004, 0.7, 2000, 1e-5),
    (0.25, 8.0, 100, 1e-5),
    (0.5, 5.0, 50, 1e-6),
    (0.01, 0.6, 300, 1e-5),
    (0.0005, 1.0, 20_000, 1e-7),
    (0.02, 1.0, 1, 1e-5),
    (1.0, 10.0, 30, 1e-5),
]


@pytest.mark.parametrize(("sample_rate", "noise", "steps", "delta"), OPACUS_POINTS)
def test_agrees_with_opacus(sample_rate: float, noise: float, steps: int, delta: float) -> None:
    """Opacus 1.6: PRV returns its estimate plus eps_error, so take that off; tolerance 2e-3.
    RDP: 2e-4 relative.
    """
    prv, rdp = PRVAccountant(), RDPAccountant()
    prv.history = rdp.history = [(noise, sample_rate, steps)]
    spent = epsilon(poisson(sample_rate, noise, steps), delta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert spent.pld == pytest.approx(prv.get_epsilon(delta, eps_error=0.01) - 0.01, abs=2e-3)
        assert spent.rdp == pytest.approx(rdp.get_epsilon(delta), rel=2e-4)
    assert spent.quoted < spent.rdp


# --- curves


def rebuilt_every_round(a_round: DpEvent, rounds: int, delta: float) -> list[Epsilon]:
    """Broken on purpose: an accountant per round reports the epsilon of one round as the total."""
    return [epsilon(a_round, delta) for _ in range(rounds)]


def adds_up(curve_of: Callable[[DpEvent, int, float], Sequence[Epsilon]]) -> bool:
    """Whether the last figure of a curve is that of all rounds, and no round is free."""
    curve = curve_of(poisson(0.02, 1.3, 25), 12, 1e-5)
    total = epsilon(poisson(0.02, 1.3, 300), 1e-5)
    return (
        math.isclose(curve[-1].quoted, total.quoted, rel_tol=1e-6)
        and math.isclose(curve[-1].rdp, total.rdp, rel_tol=1e-9)
        and all(a.quoted < b.quoted and a.rdp < b.rdp for a, b in itertools.pairwise(curve))
    )


def test_a_curve_adds_up() -> None:
    assert adds_up(epsilon_curve)


def test_a_long_curve_is_the_same_in_pieces_and_at_its_end() -> None:
    a_round, rounds = poisson(0.02, 1.3, 2), 2 * AT_ONCE + 5
    curve = epsilon_curve(a_round, rounds, 1e-5)
    for done in (rounds, 1, 2, AT_ONCE, AT_ONCE + 1, rounds - 1):
        alone = epsilon(poisson(0.02, 1.3, 2 * done), 1e-5)
        assert curve[done - 1].quoted == pytest.approx(alone.quoted, rel=2e-3)
        assert curve[done - 1].rdp == pytest.approx(alone.rdp, rel=1e-9)
    assert all(a.quoted < b.quoted for a, b in itertools.pairwise(curve))


def test_an_accountant_rebuilt_every_round_is_noticed() -> None:
    assert not adds_up(rebuilt_every_round)


def test_a_curve_counts_what_was_released_before() -> None:
    statistic = dp_event.GaussianDpEvent(4.0)
    curve = epsilon_curve(poisson(0.02, 1.3, 25), 4, 1e-5, before=statistic)
    for rounds, spent in enumerate(curve, 1):
        total = epsilon(compose(statistic, poisson(0.02, 1.3, 25 * rounds)), 1e-5)
        assert spent.quoted == pytest.approx(total.quoted, rel=2e-4)
        assert spent.rdp == pytest.approx(total.rdp, rel=1e-9)
    assert curve[0].quoted > epsilon(statistic, 1e-5).quoted
    nothing = dp_event.NoOpDpEvent()
    assert list(epsilon_curve(nothing, 2, 1e-5, before=statistic)) == [epsilon(statistic, 1e-5)] * 2


def test_a_mixed_composition_agrees_with_dp_accounting() -> None:
    released = [
        dp_event.GaussianDpEvent(4.0),
        dp_event.LaplaceDpEvent(5.0),
        poisson(0.05, 1.5, 100),
    ]
    pld, rdp = PLDAccountant(), RdpAccountant()
    for event in released:
        pld.compose(event)
        rdp.compose(event)
    spent = epsilon(compose(*released), 1e-6)
    assert spent.pld == pytest.approx(pld.get_epsilon(1e-6), rel=1e-3)
    assert spent.rdp == pytest.approx(rdp.get_epsilon(1e-6), rel=1e-6)


def test_several_gaussians_on_one_sample_are_accounted_as_one() -> None:
    both = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(3.0), dp_event.GaussianDpEvent(4.0)])
    together = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.05, both), 100)
    assert epsilon(together, 1e-6).quoted == pytest.approx(
        epsilon(poisson(0.05, 2.4, 100), 1e-6).quoted, rel=1e-9
    )
    assert epsilon(together, 1e-6).rdp == pytest.approx(
        epsilon(poisson(0.05, 2.4, 100), 1e-6).rdp, rel=1e-9
    )


# --- plain Gaussians, replace one


def test_plain_gaussians_use_the_closed_form() -> None:
    ten = epsilon(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(math.sqrt(10)), 10), 1e-5)
    # noise multiplier 1: Balle & Wang's code gives 4.3771781
    assert ten.pld == pytest.approx(4.377178, abs=1e-6)
    # a grid for this loss would take gigabytes
    tiny = epsilon(dp_event.GaussianDpEvent(1e-3), 1e-5)
    assert tiny.pld == pytest.approx(504_263.9, rel=1e-6)
    sampled_always = epsilon(poisson(1.0, math.sqrt(10), 10), 1e-5)
    assert sampled_always.pld == pytest.approx(ten.quoted, rel=1e-12)


def test_everybody_and_replace_one_is_not_doubled_twice() -> None:
    """Noise 3 C, replace one: ours is Gaussian(1.5); dp-accounting's replace-one PLD halves the
    3.0 itself.
    """
    doubling = PLDAccountant(NeighboringRelation.REPLACE_ONE).compose(dp_event.GaussianDpEvent(3.0))
    assert epsilon(dp_event.GaussianDpEvent(1.5), 1e-5).pld == pytest.approx(
        doubling.get_epsilon(1e-5), rel=1e-3
    )


def test_relations_are_not_mixed() -> None:
    both = compose(fixed_size(1.1, 2.0), poisson(0.01, 1.0, 10))
    with pytest.raises(PrivacyError, match="one kind of sampling"):
        epsilon(both, 1e-5)
    with pytest.raises(PrivacyError, match="one kind of sampling"):
        rdp_epsilon(parts(both), 1e-5)
    fixed_and_statistic = compose(fixed_size(1.1, 2.0), dp_event.GaussianDpEvent(2.0))
    assert epsilon(fixed_and_statistic, 1e-5).pld is None
    assert epsilon(fixed_and_statistic, 1e-5).rdp > 24.08


# --- edges


def test_nothing_costs_nothing() -> None:
    assert epsilon(dp_event.NoOpDpEvent(), 1e-5) == Epsilon(0.0, 0.0)
    assert epsilon(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), 0), 1e-5) == Epsilon(
        0.0, 0.0
    )
    assert rdp_epsilon({}, 1e-5) == 0.0


def test_a_delta_that_pld_cannot_resolve_is_quoted_by_rdp() -> None:
    spent = epsilon(poisson(0.01, 1.0, 1000), 1e-15)
    assert spent.pld is None
    assert spent.quoted == spent.rdp < 10


def test_tiny_sample_rates_cost_a_little_but_not_nothing() -> None:
    """dp-accounting's logarithms cancel here and its RDP can come out negative, which it reports
    as free.
    """
    vector = [
        rdp_epsilon({to_json(poisson(1e-9, 50.0, 1)): count}, 1e-12) for count in (1, 10**6, 10**9)
    ]
    assert vector == sorted(vector)
    assert vector[-1] > 0


def test_small_noise_orders_that_fail_are_quiet_and_safe(
    capfd: pytest.CaptureFixture[str],
) -> None:
    spent = epsilon(poisson(0.1, 0.49, 100), 1e-5)
    assert spent.quoted < spent.rdp < math.inf
    assert capfd.readouterr().err == ""


def test_rdp_of_a_ledger_is_the_rdp_of_its_composition() -> None:
    counts = {to_json(poisson(0.01, 1.0, 30)): 12, to_json(dp_event.GaussianDpEvent(5.0)): 2}
    total = compose(
        poisson(0.01, 1.0, 360), dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(5.0), 2)
    )
    assert rdp_epsilon(counts, 1e-5) == pytest.approx(epsilon(total, 1e-5).rdp, rel=1e-12)
    with pytest.raises(PrivacyError, match="count=-1"):
        rdp_epsilon({to_json(dp_event.GaussianDpEvent(1.0)): -1}, 1e-5)


@pytest.mark.parametrize("delta", [0.0, -1.0, 1.0, math.nan, math.inf])
def test_a_delta_that_promises_nothing_is_refused(delta: float) -> None:
    with pytest.raises(PrivacyError, match="delta="):
        epsilon(dp_event.GaussianDpEvent(1.0), delta)
    with pytest.raises(PrivacyError, match="delta="):
        rdp_epsilon({}, delta)


def test_wrong_events_and_rounds_are_refused() -> None:
    with pytest.raises(PrivacyError, match="rounds=0"):
        epsilon_curve(dp_event.GaussianDpEvent(1.0), 0, 1e-5)
    with pytest.raises(PrivacyError, match=r"sampling_probability=1\.5"):
        epsilon(poisson(1.5, 1.0, 1), 1e-5)
    with pytest.raises(PrivacyError, match="count=-1"):
        epsilon(poisson(0.5, 1.0, -1), 1e-5)


def test_a_cached_curve_cannot_be_changed_by_its_reader() -> None:
    first = epsilon_curve(dp_event.GaussianDpEvent(3.0), 3, 1e-5)
    assert not hasattr(first, "clear")
    assert not hasattr(first, "__setitem__")
    assert np.all(
        np.diff([spent.rdp for spent in epsilon_curve(dp_event.GaussianDpEvent(3.0), 3, 1e-5)]) > 0
    )
