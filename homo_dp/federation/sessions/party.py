"""What a party decides for itself, and what it checks: plan, trust, rates, question, and what it
would release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from homo_dp.core.errors import MessageError
from homo_dp.federation.mechanisms.base import Mechanism, PartyPlan, Release
from homo_dp.federation.mechanisms.charges import Account, check_within_plan
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.messages import Message, check_tensors, largest_number, signature
from homo_dp.privacy.accounting.accountants import check_delta
from homo_dp.privacy.accounting.events import DpEvent, check_releases
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.ledger import Budget

SKIPPED = "skipped"  # the answer to a round that was charged and gave no update
# SGD multiplies weights by 1 - rate * decay: above this they grow in every step, whatever the rows
# are
_STABLE = 2.0


@dataclass(frozen=True)
class PartyLimits:
    """How large a number of the aggregator may be; a larger one is refused before a row is touched.

    Near the end of what a float32 holds, which rows overflow, and so what a party says, would
    depend on its rows. Long before that, a network in float32 rounds a row by where it lies in its
    batch; ``max_network_weight`` bounds it.
    """

    max_weight: float = 1e6
    max_rate: float = 1e3
    max_network_weight: float | None = (
        None  # of the model's own weights; None where rounding does not depend on a row's place
    )

    @property
    def model_weight(self) -> tuple[str, float]:
        """The key that bounds weights of the model, and its value."""
        if self.max_network_weight is None or self.max_network_weight > self.max_weight:
            return "max_weight", self.max_weight
        return "max_network_weight", self.max_network_weight


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

    @property
    def account(self) -> Account:
        """What this party's charges are about."""
        return Account(self.run, self.dataset, self.name)


class Mistrusted(PrivacyError):
    """The plan has the aggregator add the noise, and this party's own config does not trust it
    with that.
    """


def check_party(
    settings: PartySettings, mechanism: Mechanism, plan: PartyPlan, fit: LocalFit
) -> None:
    """Refuse a plan that this party's own settings do not cover; touches no row."""
    trusted = (
        settings.trust_aggregator or settings.not_private or not mechanism.capabilities.private
    )
    if mechanism.ledger_keeper == "aggregator" and not trusted:
        raise Mistrusted(
            "privacy.trust_aggregator=false: the noise is added at the aggregator, which protects "
            "only against readers of the model; set privacy.trust_aggregator: true in this "
            "party's own config, or add noise at parties"
        )
    if not mechanism.capabilities.private or settings.not_private:
        return
    _check_rates(settings.limits, mechanism, plan, fit)
    if mechanism.ledger_keeper == "party" and "aggregator" not in plan.events:
        raise PrivacyError(
            f"mechanism={mechanism.name}: its plan names no event; name one, or set "
            "privacy.not_private"
        )
    for event in (*plan.events.values(), *(asked.event for asked in plan.sums.values())):
        check_releases(event)
    if plan.trusts_aggregator and not settings.trust_aggregator:
        raise Mistrusted(
            f"privacy.trust_aggregator=false: the plan of {mechanism.name} trusts the aggregator, "
            "which only this party's own config can; set it to true, or keep the target against "
            "the aggregator, too"
        )
    if (
        mechanism.capabilities.unit == "record"
    ):  # the mechanism itself checks delta against the number of users
        check_delta(plan.delta, fit.facts.rows)


def _check_rates(limits: PartyLimits, mechanism: Mechanism, plan: PartyPlan, fit: LocalFit) -> None:
    """Refuse a plan whose steps alone, whatever the rows are, could take weights out of range."""
    train = fit.train
    steps = plan.rounds * fit.facts.steps_per_round
    # no schedule raises it later
    first = train.schedule.rate(train.learning_rate, 0, steps, train.weight_decay)
    pulls = {"weight decay": train.weight_decay, "the proximal pull": mechanism.proximal_mu}
    for name, value in {"the first learning rate": first, **pulls}.items():
        if not value <= limits.max_rate:
            raise PrivacyError(
                f"{name}={value:g}: is above party.caps.max_rate={limits.max_rate:g}; refused"
            )
    for name, value in {"clip norm": plan.clip_norm, "sigma": plan.sigma}.items():
        if not value <= limits.max_weight:
            raise PrivacyError(
                f"{name}={value:g}: is above party.caps.max_weight={limits.max_weight:g}; refused"
            )
    if train.optimizer == "sgd" and not first * sum(pulls.values()) <= _STABLE:
        raise PrivacyError(
            f"learning rate {first:g} times ({' + '.join(pulls)}): is above {_STABLE:g}, and would "
            "make weights grow in every step whatever the rows are; refused"
        )


def check_question(
    message: Message, settings: PartySettings, mechanism: Mechanism, plan: PartyPlan, fit: LocalFit
) -> dict[str, float]:
    """Refuse weights of an aggregator before a row is touched; the numbers that came with them."""
    private = mechanism.capabilities.private and not settings.not_private
    check_round(message.round, settings.name, plan, stage_rounds(mechanism, plan.all_rounds))
    expected = {
        **signature(fit.model.state_dict()),
        **mechanism.broadcast_signature(message.round),
    }
    check_tensors(message.tensors, expected)
    broadcast = {
        name: float(value)
        for name, value in message.info.items()
        if isinstance(value, (int, float))
    }
    if private:
        check_numbers(settings.limits, message.tensors, broadcast)
    mechanism.check_broadcast(broadcast)
    if private and mechanism.ledger_keeper == "aggregator" and not settings.trust_aggregator:
        raise PrivacyError(
            f"privacy.trust_aggregator=false: party {settings.name} sends no update without its "
            "own noise"
        )
    return broadcast


def stage_rounds(mechanism: Mechanism, rounds: int) -> range:
    """The rounds of the stage that a mechanism is for, of all rounds of its run: those of private
    estimates, or those that follow them.
    """
    estimated = len(mechanism.facts.estimates)
    if estimated and mechanism.last_round == estimated:
        return range(1, estimated + 1)
    return range(estimated + 1, rounds + 1)


def check_round(number: int, name: str, plan: PartyPlan, stage: range) -> None:
    """Refuse a round that is not one of the plan, or not of the stage that the party is in."""
    if number < 1:
        raise MessageError(f"round={number}: rounds are 1 to {plan.all_rounds}; refused")
    if number > plan.all_rounds:
        raise BudgetExceeded(
            f"round={number}: party {name} planned {plan.all_rounds} rounds; refused"
        )
    if plan.schedule is not None and number not in plan.schedule and not plan.noise_between:
        raise BudgetExceeded(
            f"round={number}: party {name} takes part only in rounds "
            f"{', '.join(map(str, plan.schedule))}; refused"
        )
    if number not in stage:
        raise MessageError(f"round={number}: belongs to another stage of the run; refused")


def check_numbers(
    limits: PartyLimits, tensors: Mapping[str, torch.Tensor], broadcast: Mapping[str, float]
) -> None:
    """Refuse numbers of the aggregator that are too large."""
    key, largest = limits.model_weight
    for name, tensor in tensors.items():
        if largest_number(tensor) > largest:
            raise MessageError(f"tensor {name}: holds a weight above party.caps.{key}={largest:g}")
    most = limits.max_weight
    for name, value in broadcast.items():
        if abs(value) > most and name != "rounds":
            raise MessageError(f"{name}={value:g}: is above party.caps.max_weight={most:g}")


def check_release(release: Release, mechanism: Mechanism, plan: PartyPlan, number: int) -> DpEvent:
    """The event of a release that a private party may charge and send; else PrivacyError."""
    if release.event is None:
        raise PrivacyError(
            f"mechanism={mechanism.name}: its release names no event; name one, or set "
            "privacy.not_private"
        )
    if not release.sigma > 0:
        raise PrivacyError(f"sigma={release.sigma}: a private release needs noise above zero")
    if release.relation != plan.relation:
        raise PrivacyError(
            f"relation={release.relation}: the plan of {mechanism.name} says {plan.relation}"
        )
    check_within_plan(mechanism, release.event, plan.events_of(number)["aggregator"], plan.delta)
    return release.event
