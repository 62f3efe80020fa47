"""Compares what a party has paid, or agreed to pay, for runs that learn something before a training
with its plan.

A plan tells what was learnt before it and at what price, and the noise of the training is solved
together with that. An aggregator that leaves it out would get the training under a target of its
own. A party that serves may have all these runs open at once, each in a process of its own, so a
run that was agreed to counts with all that it may still charge: its price is in `price.json` of its
folder before its first round.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from homo_dp.config.schema import Config
from homo_dp.core.files import open_private, write_whole
from homo_dp.federation.mechanisms.base import PartyPlan
from homo_dp.federation.sessions.crash_state import FINAL, explained, state_file
from homo_dp.federation.sessions.party_session import STEPS, Party, learns_for
from homo_dp.federation.sessions.plan import PlanRefused, check_price
from homo_dp.privacy.accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    SelfComposedDpEvent,
)
from homo_dp.privacy.accounting.events import compose, from_json, parts, to_json
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.processes import learning_run

# in a run's folder once its plan was agreed to: the event of all that it may charge
PRICE: Final = "price.json"
_LOCK: Final = "agreeing.lock"  # in the party's folder
_SLACK = 1e-6  # relative


def price_of(party: Party) -> DpEvent:
    """All that a party's ledger may be charged in a run."""
    planned = party.planned_charges() if party.charges_itself else []
    return compose(
        *(SelfComposedDpEvent(charge.event, rounds) for charge, rounds in planned if rounds)
    )


def agree_to_price(
    own: Config, agreed: Config, plan: PartyPlan, run: str, ledger: Ledger, price: DpEvent
) -> None:
    """Check a plan while no other process of this party agrees to one, and keep its price for
    their checks.
    """
    with _alone(own.party.folder):
        check_learnt(own, agreed, plan, run, ledger, price)
        write_whole(own.party.folder / run / PRICE, to_json(price).encode(), "price of a run")


def check_learnt(
    own: Config, agreed: Config, plan: PartyPlan, run: str, ledger: Ledger, price: DpEvent
) -> None:
    """Refuse a plan that counts less than was agreed to before it, and a step that comes late or
    passes the cap.

    Guarantees:
        - all steps of a training, and the training, together stay within the party's cap of one
          run, whichever the aggregator asks for first and however their rounds alternate.
    """
    base = learns_for(run)
    steps = [learning_run(base or run, step) for step in STEPS]
    spent = compose(*(_spent(own, step, ledger) for step in steps if step != run))
    if base is None:
        _check_counted(
            spent, () if agreed.data.learnt is None else agreed.data.learnt.noise_multipliers
        )
        return
    # A step that was agreed to before its training is among what the training counts, so it may go
    # on.
    if _agreed_price(own, run) != price and _has_begun(own, base, ledger):
        raise PlanRefused(
            "plan",
            f"federation.run={run}: the run {base} has begun here, and nothing is learnt for a run "
            "after that; learn it before a new run, or give this one a name that does not end on "
            f"-{', -'.join(STEPS[:-1])} or -{STEPS[-1]}",
        )
    if spent != NoOpDpEvent():
        check_price(own, replace(plan, before=compose(spent, plan.before or NoOpDpEvent())))


def _spent(own: Config, run: str, ledger: Ledger) -> DpEvent:
    """What a run has cost this party or, until it is over, what it may cost by the plan that was
    agreed to.
    """
    price = _agreed_price(own, run)
    if price is not None and not (own.party.folder / run / FINAL).exists():
        return price
    return compose(
        *(from_json(row.event) for row in ledger.rows(run, str(own.party.name)) if row.is_release)
    )


def _has_begun(own: Config, run: str, ledger: Ledger) -> bool:
    return _agreed_price(own, run) is not None or bool(ledger.rows(run, str(own.party.name)))


def _agreed_price(own: Config, run: str) -> DpEvent | None:
    """The price of the plan of a run that was agreed to; None if there is none."""
    path = own.party.folder / run / PRICE
    file = state_file(path)
    try:
        return from_json(file.text(file.read(path)))
    except FileNotFoundError:
        return None
    except PrivacyError:
        file.refuse("is not the price of a run")


def _check_counted(spent: DpEvent, claimed: tuple[float, ...]) -> None:
    """Every release of a step must be among those that the plan counts, with as much noise or
    less there.
    """
    events = [from_json(text) for text, count in parts(spent).items() for _ in range(count)]
    paid = sorted(
        event.noise_multiplier if isinstance(event, GaussianDpEvent) else 0.0 for event in events
    )
    told = sorted(claimed)
    if len(told) < len(paid) or any(
        one > other * (1 + _SLACK) for one, other in zip(told, paid, strict=False)
    ):
        raise PlanRefused(
            "plan",
            f"data.learnt: the plan does not count the {len(paid)} releases that this party made "
            "or agreed to before it under the same target (runs of its name with -levels, "
            "-counts or -bounds)",
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a party's folder, which ends with the process."""
    with explained(folder):
        lock = open_private(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        with explained(folder / _LOCK):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
