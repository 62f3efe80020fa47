"""Epsilon of an event for a given delta, by PLD (the figure we quote) and by RDP (the cross-check)."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from numpy.typing import NDArray

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.events import DpEvent, compose, from_json, gaussian_multiplier, parts, to_json

__all__ = ["Epsilon", "calibrate", "check_delta", "compose", "epsilon", "epsilon_curve", "rdp_epsilon"]


@dataclass(frozen=True)
class Epsilon:
    """Upper bounds on epsilon at one delta; ``pld`` is None where no privacy loss distribution is known."""

    pld: float | None
    rdp: float

    @property
    def quoted(self) -> float:
        """The figure to report: PLD where it exists, else RDP."""
        return self.rdp if self.pld is None else self.pld


def epsilon(event: DpEvent, delta: float) -> Epsilon:
    """Both epsilons of an event at this delta."""
    check_delta(delta)
    return _epsilon(to_json(compose(event)), float(delta))


@functools.lru_cache(maxsize=4096)
def _epsilon(text: str, delta: float) -> Epsilon:
    event = from_json(text)
    counts = parts(event)
    rdp = rdp_epsilon(counts, delta)
    if not counts:
        return Epsilon(0.0, 0.0)
    if any("SampledWithoutReplacementDpEvent" in part for part in counts):
        return Epsilon(None, rdp)
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    for part, count in counts.items():
        accountant.compose(_plain(from_json(part)), count)
    return Epsilon(float(accountant.get_epsilon(delta)), rdp)


def _plain(event: DpEvent) -> DpEvent:
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        inner = dp_event.GaussianDpEvent(gaussian_multiplier(event.event))
        return dp_event.PoissonSampledDpEvent(event.sampling_probability, inner)
    return event


def rdp_epsilon(counts: Mapping[str, int], delta: float) -> float:
    """Epsilon by RDP of many releases: canonical event text -> how many times."""
    total = np.zeros(len(DEFAULT_RDP_ORDERS))
    for text, count in counts.items():
        total = total + count * _rdp_vector(text)
    return float(compute_epsilon(DEFAULT_RDP_ORDERS, total, delta)[0])


@functools.lru_cache(maxsize=4096)
def _rdp_vector(text: str) -> NDArray[np.float64]:
    total = np.zeros(len(DEFAULT_RDP_ORDERS))
    for part, count in parts(from_json(text)).items():
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
        if "SampledWithoutReplacementDpEvent" in part:
            relation = NeighboringRelation.REPLACE_ONE
        total = total + RdpAccountant(neighboring_relation=relation).compose(from_json(part), count).rdp
    return total


def epsilon_curve(event_per_round: DpEvent, rounds: int, delta: float, before: DpEvent | None = None) -> list[Epsilon]:
    """Epsilon after each of ``rounds`` rounds, on top of what was released ``before``."""
    base = dp_event.NoOpDpEvent() if before is None else before
    return [
        epsilon(compose(base, dp_event.SelfComposedDpEvent(event_per_round, done)), delta)
        for done in range(1, rounds + 1)
    ]


def calibrate(event_of: Callable[[float], DpEvent], target_epsilon: float, delta: float) -> float:
    """The smallest noise multiplier (within 0.5 % of the target) whose event stays at or below the target."""
    if not (math.isfinite(target_epsilon) and target_epsilon > 0):
        raise PrivacyError(f"target_epsilon={target_epsilon} must be > 0 and finite")
    low, high = 0.0, 1.0
    while epsilon(event_of(high), delta).quoted > target_epsilon:
        low, high = high, high * 2
    while True:
        spent = epsilon(event_of(high), delta).quoted
        if 0.995 * target_epsilon <= spent <= target_epsilon:
            return high
        middle = (low + high) / 2
        if epsilon(event_of(middle), delta).quoted > target_epsilon:
            low = middle
        else:
            high = middle


def check_delta(delta: float, population: int | None = None) -> None:
    """Refuse a delta that promises nothing."""
    high = 1.0 if population is None else 1.0 / population
    if not (math.isfinite(delta) and 0 < delta < high):
        raise PrivacyError(f"delta={delta} must be in (0, {high:g}); choose delta well below 1/rows")
