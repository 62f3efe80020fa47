"""A plan that hides what a party has paid before it is refused."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.federation.mechanisms.base import PartyPlan
from homo_dp.federation.sessions.plan import PlanRefused
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.ledger import Budget, Ledger
from homo_dp.runs.preparatory_charges import _check_counted, check_learnt
from tests.privacy.ledger_parts import DELTA, release


def test_a_plan_that_hides_what_was_paid_is_refused(tmp_path: Path) -> None:
    """Releases of the ledger must be among those that a plan counts, with no more noise there than was added."""

    def row(noise: float) -> Any:
        return SimpleNamespace(event=to_json(GaussianDpEvent(noise)))

    _check_counted([row(10.0), row(12.0)], [12.0, 10.0, 8.0])
    for claimed in ((), (10.0,), (10.0, 13.0)):
        with pytest.raises(PlanRefused, match="does not count"):
            _check_counted([row(10.0), row(12.0)], claimed)


@pytest.mark.parametrize(
    ("paid", "asked", "fits"),
    [
        ((), "r-levels", True),
        (("s", "r-other"), "r-levels", True),
        (("r-levels",), "r-levels", True),  # what the plan itself is for
        (("r-counts",), "r-levels", False),
        (("r",), "r-levels", False),  # the training was asked for first: steps after it would come on top of it
    ],
)
def test_steps_and_their_training_share_one_cap(paid: tuple[str, ...], asked: str, fits: bool, tmp_path: Path) -> None:
    """Each alone costs four fifths of the cap."""
    event = GaussianDpEvent(4.0)
    price = epsilon(event, DELTA).quoted
    own = load_config(None, {"party.name": "a", "party.caps.epsilon": price * 1.25})
    plan = PartyPlan(4.0, 4.0, 1.0, "add_or_remove_one", DELTA, 1, {"aggregator": event}, ("level_names",), 1.0)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for run in paid:
            ledger.charge(release(run=run, event=event), Budget())
        with nullcontext() if fits else pytest.raises(PlanRefused, match=r"party\.caps\.epsilon"):
            check_learnt(own, own, plan, asked, ledger)
