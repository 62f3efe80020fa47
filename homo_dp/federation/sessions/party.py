"""What a party decides for itself, and what it checks before a row is touched: plan, trust, rates, question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from homo_dp.core.errors import MessageError
from homo_dp.federation.mechanisms.base import Mechanism, PartyPlan
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.privacy.accounting.accountants import check_delta
from homo_dp.privacy.accounting.events import check_releases
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.ledger import Budget

SKIPPED = "skipped"  # the word of a round that was charged and gave no update
_STABLE = 2.0  # SGD multiplies weights by 1 - rate * decay: above this they grow in every step, whatever the rows are


@dataclass(frozen=True)
class PartyLimits:
    """How large a number of the aggregator may be; a larger one is refused before a row is touched.

    Near the end of what a float32 holds, which rows overflow, and so what a party says, would depend on its rows.
    """

    max_weight: float = 1e6
    max_rate: float = 1e3


@dataclass(frozen=True)
class PartySettings:
    """What a party decides for itself, whatever the aggregator asks for."""

    name: str
    run: str
    dataset: str
    budget: Budget
    trust_aggregator: bool = False
    not_private: bool = False
    limits: PartyLimits = PartyLimits()


class Mistrusted(PrivacyError):
    """The plan leaves noise to an aggregator that this party's own config does not trust."""


def check_party(settings: PartySettings, mechanism: Mechanism, plan: PartyPlan, fit: LocalFit) -> None:
    """Refuse a plan that this party's own settings do not cover; touches no row."""
    trusted = settings.trust_aggregator or settings.not_private or not mechanism.private
    if mechanism.ledger_keeper == "aggregator" and not trusted:
        raise Mistrusted(
            "privacy.trust_aggregator=false: the noise is added at the aggregator, which protects only against "
            "readers of the model; set privacy.trust_aggregator: true in this party's own config, or add noise at "
            "parties"
        )
    if not mechanism.private or settings.not_private:
        return
    _check_rates(settings.limits, mechanism, plan, fit)
    if mechanism.ledger_keeper == "party" and "aggregator" not in plan.events:
        raise PrivacyError(f"mechanism={mechanism.name}: its plan names no event; name one, or set privacy.not_private")
    for event in plan.events.values():
        check_releases(event)
    if plan.trusts_aggregator and not settings.trust_aggregator:
        raise Mistrusted(
            f"privacy.trust_aggregator=false: the plan of {mechanism.name} trusts the aggregator, which only "
            "this party's own config can; set it to true, or keep the target against the aggregator, too"
        )
    if mechanism.unit == "record":  # how many users there are, the mechanism knows
        check_delta(plan.delta, fit.facts.rows)


def _check_rates(limits: PartyLimits, mechanism: Mechanism, plan: PartyPlan, fit: LocalFit) -> None:
    """Refuse a plan whose steps alone, whatever the rows are, could take weights out of range."""
    train = fit.train
    steps = plan.rounds * fit.facts.steps_per_round
    first = train.schedule.rate(train.learning_rate, 0, steps, train.weight_decay)  # no schedule raises it later
    pulls = {"weight decay": train.weight_decay, "the proximal pull": mechanism.proximal_mu}
    for name, value in {"the first learning rate": first, **pulls}.items():
        if not value <= limits.max_rate:
            raise PrivacyError(f"{name}={value:g}: is above party.caps.max_rate={limits.max_rate:g}; refused")
    for name, value in {"clip norm": plan.clip_norm, "sigma": plan.sigma}.items():
        if not value <= limits.max_weight:
            raise PrivacyError(f"{name}={value:g}: is above party.caps.max_weight={limits.max_weight:g}; refused")
    if train.optimizer == "sgd" and not first * sum(pulls.values()) <= _STABLE:
        raise PrivacyError(
            f"learning rate {first:g} times ({' + '.join(pulls)}): is above {_STABLE:g}, and would make weights "
            "grow in every step whatever the rows are; refused"
        )


def check_round(number: int, name: str, plan: PartyPlan) -> None:
    """Refuse a round that is not one of the plan."""
    if number < 1:
        raise MessageError(f"round={number}: rounds are 1 to {plan.rounds}; refused")
    if number > plan.rounds:
        raise BudgetExceeded(f"round={number}: party {name} planned {plan.rounds} rounds; refused")
    if plan.schedule is not None and number not in plan.schedule:
        raise BudgetExceeded(
            f"round={number}: party {name} takes part only in rounds {', '.join(map(str, plan.schedule))}; refused"
        )


def check_sizes(limits: PartyLimits, tensors: Mapping[str, torch.Tensor], broadcast: Mapping[str, float]) -> None:
    """Refuse numbers of the aggregator that are too large."""
    most = limits.max_weight
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        low, high = tensor.aminmax()
        if max(-low, high) > most:
            raise MessageError(f"tensor {name}: holds a weight above party.caps.max_weight={most:g}")
    for name, value in broadcast.items():
        if abs(value) > most and name != "rounds":
            raise MessageError(f"{name}={value:g}: is above party.caps.max_weight={most:g}")
