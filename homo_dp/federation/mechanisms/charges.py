"""How a plan of a mechanism becomes charges of a ledger."""

from __future__ import annotations

from dataclasses import dataclass

from homo_dp.federation.mechanisms.base import Mechanism
from homo_dp.federation.mechanisms.shared_noise import noise_label
from homo_dp.federation.protocol.party_plan import Observer, PartyPlan
from homo_dp.federation.protocol.round_sums import UPDATE
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.dp_event import DpEvent
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.ledger.rows import Charge


@dataclass(frozen=True)
class Account:
    """Whose data the charges of a run are about: run, dataset and party, by which a ledger tells
    its rows apart.
    """

    run: str
    dataset: str
    party: str

    def charge(
        self,
        mechanism: Mechanism,
        plan: PartyPlan,
        observer: Observer,
        number: int,
        event: DpEvent,
        sigma: float,
    ) -> Charge:
        """A round as the ledger is charged for it: its sum against the aggregator, a model
        against its readers.
        """
        asked = plan.sums.get(number)
        masked = asked is None or asked.maskable  # else each party adds all of its own noise
        return Charge(
            run=self.run,
            dataset=self.dataset,
            unit=mechanism.capabilities.unit,
            relation=plan.relation,
            party=self.party,
            round=number,
            kind=plan.kind_of(number) if observer == "aggregator" else "model",
            event=event,
            delta=plan.delta,
            sigma=sigma,
            observer=observer,
            noise=noise_label(mechanism.noise.label, mechanism.noise_share if masked else None),
        )

    def planned(
        self, mechanism: Mechanism, plan: PartyPlan, observer: Observer, number: int
    ) -> Charge:
        """What a round will be charged by the plan."""
        return self.charge(
            mechanism,
            plan,
            observer,
            number,
            plan.events_of(number)[observer],
            plan.sigma_of(number),
        )

    def all_planned(
        self, mechanism: Mechanism, plan: PartyPlan, observer: Observer
    ) -> list[tuple[Charge, int]]:
        """All that a run will charge: one charge of each kind of round, and how often it comes."""

        def charge(number: int) -> Charge:
            return self.planned(mechanism, plan, observer, number)

        among = range(1, plan.all_rounds + 1)
        trains = next((number for number in among if plan.kind_of(number) == UPDATE), None)
        found = [] if trains is None else [(charge(trains), plan.trained_by(plan.all_rounds))]
        return found + [(charge(number), 1) for number in plan.sums]


def check_within_plan(mechanism: Mechanism, event: DpEvent, planned: DpEvent, delta: float) -> None:
    """The plan is what was agreed to and what the statement quotes: a release may not cost more."""
    if event == planned:
        return
    asked, agreed = epsilon(event, delta).quoted, epsilon(planned, delta).quoted
    if asked > agreed * (1 + 1e-9):
        raise PrivacyError(
            f"epsilon={asked:.6g} of a release at delta={delta:g}: the plan of {mechanism.name} "
            f"says {agreed:.6g}; plan what is released"
        )
