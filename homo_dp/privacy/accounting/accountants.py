"""Epsilon of an event for a given delta, by PLD (the figure we quote) and by RDP (the cross-check),
and back.

Every event is accounted as its sampler named it: a sensitivity of twice the clip norm is already
divided out, so all mechanisms go to add-or-remove accountants (dp-accounting's replace-one PLD
would double it a second time). Fixed-size samples have a bound of their own, by RDP only.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from homo_dp.privacy.accounting import dp_event
from homo_dp.privacy.accounting.analytic_gaussian import gaussian_epsilons
from homo_dp.privacy.accounting.calibration import smallest_noise
from homo_dp.privacy.accounting.checks import (
    check_delta,
    check_noise_multiplier,
    check_sample_rate,
    check_steps,
    check_target_epsilon,
    steps_for_epochs,
)
from homo_dp.privacy.accounting.epsilon_over_rounds import Curve, Epsilon
from homo_dp.privacy.accounting.events import (
    Counts,
    DpEvent,
    EventText,
    compose,
    from_json,
    gaussian_multiplier,
    parts,
    to_json,
)
from homo_dp.privacy.accounting.fixed_size_rdp import fixed_size_rdp
from homo_dp.privacy.accounting.pld import RESOLUTION, loss_epsilons
from homo_dp.privacy.accounting.pld_step import NoisyStep
from homo_dp.privacy.accounting.poisson_rdp import poisson_rdp
from homo_dp.privacy.accounting.renyi_bounds import (
    ORDERS,
    Renyi,
    converted,
    gaussian_rdp,
    laplace_rdp,
)
from homo_dp.privacy.accounting.selection import distribution_of, selected
from homo_dp.privacy.errors import PrivacyError

__all__ = [
    "Epsilon",
    "Renyi",
    "calibrate",
    "check_delta",
    "check_noise_multiplier",
    "check_sample_rate",
    "check_steps",
    "check_target_epsilon",
    "compose",
    "epsilon",
    "epsilon_curve",
    "mechanisms_of",
    "rdp_epsilon",
    "renyi",
    "renyi_epsilon",
    "steps_for_epochs",
]

COARSE = 8  # grid points per standard deviation while searching


def epsilon(event: DpEvent, delta: float) -> Epsilon:
    """Both epsilons of everything in an event, at this delta.

    Guarantees:
        - both are upper bounds, never the GDP approximation;
        - compositions of plain Gaussians use the exact formula.

    >>> step = dp_event.PoissonSampledDpEvent(256 / 60000, dp_event.GaussianDpEvent(1.1))
    >>> spent = epsilon(dp_event.SelfComposedDpEvent(step, 14063), delta=1e-5)
    >>> round(spent.pld, 3), round(spent.rdp, 3)
    (2.382, 2.597)
    """
    return epsilon_curve(compose(event), 1, delta)[0]


def epsilon_curve(
    event_per_round: DpEvent, rounds: int, delta: float, before: DpEvent | None = None
) -> Sequence[Epsilon]:
    """Epsilon after each of ``rounds`` rounds, on top of what was released ``before``; found once,
    then kept.

    >>> [round(spent.quoted, 3) for spent in epsilon_curve(dp_event.GaussianDpEvent(5.0), 3, delta=1e-5)]
    [0.726, 1.061, 1.326]
    """
    check_delta(delta)
    check_steps(rounds, "rounds")
    base = dp_event.NoOpDpEvent() if before is None else before
    return _curve(
        to_json(compose(event_per_round)), int(rounds), float(delta), to_json(compose(base))
    )


def rdp_epsilon(counts: Counts, delta: float) -> float:
    """Epsilon by RDP of many releases: canonical text of each event -> how many times it was
    released.

    >>> round(rdp_epsilon({to_json(dp_event.GaussianDpEvent(10.0)): 50}, 1e-5), 3)
    3.189
    """
    check_delta(delta)
    _one_relation(counts)
    return renyi_epsilon(renyi(counts), delta)


def mechanisms_of(event: DpEvent) -> dict[NoisyStep, int] | None:
    """The steps whose privacy loss distribution is known, with their counts; None for fixed-size
    samples and searches.
    """
    counts = parts(event)
    return None if any(map(_without_pld, counts)) else _with_gaussian(counts)


def calibrate(
    event_of: Callable[[float], DpEvent],
    target_epsilon: float,
    delta: float,
) -> float:
    """The smallest noise multiplier z for which ``event_of(z)``, all of it, stays within the
    target.

    Args:
        event_of: all that is released, by the noise multiplier.
        target_epsilon: what it may cost.
        delta: its delta.

    Returns:
        The noise multiplier.

    Guarantees:
        - the quoted epsilon of ``event_of(z)`` is at most ``target_epsilon`` and at least 99.5 % of
          it.

    >>> noise = calibrate(lambda z: dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(z), 10), 1.0, 1e-5)
    >>> 0.995 <= epsilon(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise), 10), 1e-5).quoted <= 1.0
    True
    """
    check_delta(delta)
    check_target_epsilon(target_epsilon)
    return smallest_noise(
        exact=lambda z: _quoted(event_of(z), delta, coarse=False),
        rough=lambda z: _quoted(event_of(z), delta, coarse=True),
        target_epsilon=target_epsilon,
    )


def _quoted(event: DpEvent, delta: float, coarse: bool) -> float:
    """The quoted epsilon alone; a coarse one is an upper bound too, some per mille higher and
    much cheaper.
    """
    counts = parts(event)
    _one_relation(counts)
    pld = _by_pld({}, counts, [1], 1, delta, COARSE if coarse else RESOLUTION)[0]
    return renyi_epsilon(renyi(counts), delta) if pld is None else pld


@functools.lru_cache(maxsize=1024)
def _curve(text: EventText, rounds: int, delta: float, before: EventText) -> Curve:
    a_round, base = parts(from_json(text)), parts(from_json(before))
    _one_relation({**a_round, **base})
    spent, each = renyi(base), renyi(a_round)

    def find(some: Sequence[int]) -> list[Epsilon]:
        by_pld = _by_pld(base, a_round, some, rounds, delta, RESOLUTION)
        by_rdp = (renyi_epsilon(spent + done * each, delta) for done in some)
        return [Epsilon(pld, rdp) for pld, rdp in zip(by_pld, by_rdp, strict=True)]

    return Curve(rounds, find)


def _one_relation(counts: Counts) -> None:
    """Refuse to add up guarantees about different neighbours."""
    kinds = {kind for text in counts for kind in _kinds(from_json(text))}
    if {dp_event.SampledWithoutReplacementDpEvent, dp_event.PoissonSampledDpEvent} <= kinds:
        raise PrivacyError(
            "event=Poisson and fixed-size samples together: the one bounds adding or removing a "
            "record, the other replacing one; use one kind of sampling"
        )


def _kinds(event: DpEvent) -> set[type]:
    """The mechanisms in an event, those of a trial that is repeated among them."""
    found: set[type] = set()
    for text in parts(event):
        part = from_json(text)
        found |= (
            _kinds(part.event)
            if isinstance(part, dp_event.RepeatAndSelectDpEvent)
            else {type(part)}
        )
    return found


def _without_pld(text: EventText) -> bool:
    """Whether only a Renyi bound is known for a mechanism (a part of an event)."""
    return isinstance(
        from_json(text),
        dp_event.SampledWithoutReplacementDpEvent | dp_event.RepeatAndSelectDpEvent,
    )


# --- by PLD


def _by_pld(
    before: Counts,
    a_round: Counts,
    some: Sequence[int],
    rounds: int,
    delta: float,
    resolution: float,
) -> Sequence[float | None]:
    """Epsilon by PLD after some of the rounds of a plan; None where there is none."""
    if any(map(_without_pld, (*before, *a_round))):
        return [None] * len(some)
    gaussian_before, sampled_before = _mechanisms(before)
    gaussian_round, sampled_round = _mechanisms(a_round)
    if not sampled_before and not sampled_round:
        inverse = np.hypot(gaussian_before, gaussian_round * np.sqrt(np.array(some)))
        return [float(value) for value in gaussian_epsilons(inverse, delta)]
    if not sampled_round and not gaussian_round:
        return _found(loss_epsilons({}, _with_gaussian(before), [1], delta, resolution)) * len(some)
    return _found(
        loss_epsilons(
            _with_gaussian(before), _with_gaussian(a_round), some, delta, resolution, rounds
        )
    )


def _found(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _mechanisms(counts: Counts) -> tuple[float, dict[NoisyStep, int]]:
    """All plain Gaussians as one (its inverse noise multiplier, 0 for none), and every other
    mechanism.
    """
    inverse, others = 0.0, dict[NoisyStep, int]()
    for text, count in counts.items():
        event = from_json(text)
        if isinstance(event, dp_event.PoissonSampledDpEvent):
            noise = gaussian_multiplier(event.event)
            key = NoisyStep(noise or math.nan, float(event.sampling_probability))
        elif isinstance(event, dp_event.LaplaceDpEvent):
            key = NoisyStep(float(event.noise_multiplier), laplace=True)
        else:
            key = NoisyStep(float(event.noise_multiplier))
        if key.sample_rate == 1 and not key.laplace:
            inverse = math.hypot(inverse, math.sqrt(count) / key.noise)
        else:
            others[key] = others.get(key, 0) + count
    return inverse, others


def _with_gaussian(counts: Counts) -> dict[NoisyStep, int]:
    inverse, others = _mechanisms(counts)
    return {**others, NoisyStep(1 / inverse): 1} if inverse else others


# --- by RDP


def renyi_epsilon(divergence: Renyi, delta: float) -> float:
    """The smallest epsilon over all orders."""
    return float(converted(ORDERS, divergence, delta).min()) if np.any(divergence) else 0.0


def renyi(counts: Counts, *, doubled: bool = False) -> Renyi:
    """Renyi divergence of many releases at every order: text of each event -> how many times.

    ``doubled``: for neighbours twice as far apart as the event says, that is with one record (or
    user) replaced where the event is about adding or removing one. A Gaussian or Laplace mechanism
    then has half its noise multiplier; for a Poisson sample the bound of a fixed-size one holds,
    whose proof needs no more than that the replaced one is in the sample with probability q,
    independently of the others.
    """
    total = np.zeros(len(ORDERS))
    for text, count in counts.items():
        if count < 0:
            raise PrivacyError(
                f"count={count} must be >= 0; give how many times the event was released"
            )
        if count:  # never 0 * infinity
            total = total + count * _rdp_vector(text, doubled)
    return total


@functools.lru_cache(maxsize=4096)
def _rdp_vector(text: EventText, doubled: bool = False) -> Renyi:
    """Renyi divergence of one release at every order, rounded up."""
    total = np.zeros(len(ORDERS))
    for part, count in parts(from_json(text)).items():
        divergence = _divergence(from_json(part), 2.0 if doubled else 1.0)
        # the logarithms that are added up cancel to about 1e-14; without this a tiny rate could
        # cost nothing
        total += count * (divergence + 1e-14 * np.maximum(1.0, 1.0 / (ORDERS - 1)))
    # Renyi divergence grows with the order, so an order that failed has at most the next one's.
    vector = np.minimum.accumulate(total[::-1])[::-1]
    vector.flags.writeable = False
    return vector


def _divergence(event: DpEvent, distance: float) -> Renyi:
    """Of one mechanism, for neighbours that are ``distance`` (1 or 2) times as far apart as it
    says.
    """
    match event:
        case dp_event.SampledWithoutReplacementDpEvent():
            rate = event.sample_size / event.source_dataset_size
            return fixed_size_rdp(
                rate, (gaussian_multiplier(event.event) or math.nan) / distance, ORDERS
            )
        case dp_event.PoissonSampledDpEvent() if (noise := _noise_of_a_part(event)) is not None:
            if distance > 1:
                return fixed_size_rdp(float(event.sampling_probability), noise / distance, ORDERS)
            return poisson_rdp(float(event.sampling_probability), noise, ORDERS)
        case dp_event.PoissonSampledDpEvent():  # a sample of all records
            return gaussian_rdp((gaussian_multiplier(event.event) or math.nan) / distance, ORDERS)
        case dp_event.RepeatAndSelectDpEvent():
            trial = renyi(parts(event.event), doubled=distance > 1)
            return selected(trial, event.mean, distribution_of(event.shape))
        case dp_event.LaplaceDpEvent():
            return laplace_rdp(float(event.noise_multiplier) / distance, ORDERS)
        case dp_event.GaussianDpEvent():
            return gaussian_rdp(float(event.noise_multiplier) / distance, ORDERS)
        case _:
            raise PrivacyError(
                f"event={type(event).__name__} has no Renyi divergence here; add no others"
            )


def _noise_of_a_part(event: dp_event.PoissonSampledDpEvent) -> float | None:
    """The noise multiplier of a Gaussian that sees some of the records, neither none nor all;
    None for all else.
    """
    return gaussian_multiplier(event.event) if 0 < event.sampling_probability < 1 else None
