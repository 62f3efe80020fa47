"""A plan that hides what a party has paid, or agreed to pay, before it is refused."""

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from threading import Barrier, Thread

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import InputError
from homo_dp.federation.mechanisms.base import PartyPlan
from homo_dp.federation.sessions.crash_state import FINAL
from homo_dp.federation.sessions.plan import PlanRefused, check_price
from homo_dp.privacy.accounting.accountants import calibrate, epsilon
from homo_dp.privacy.accounting.dp_event import DpEvent, GaussianDpEvent, SelfComposedDpEvent
from homo_dp.privacy.accounting.events import compose, from_json
from homo_dp.privacy.ledger import Budget, Ledger
from homo_dp.runs.preparatory_charges import PRICE, _check_counted, agree_to_price, check_learnt
from tests.privacy.adaptive_plans import RATES, adaptive_epsilon, least_noise
from tests.privacy.ledger_parts import DELTA, release

ROUNDS = 100
ONE = GaussianDpEvent(40.0)  # a round of the training, which takes the whole cap
TRAINING = SelfComposedDpEvent(ONE, ROUNDS)
STEP = GaussianDpEvent(4.05)  # nearly as much
HALF = GaussianDpEvent(6.4)  # two of these fit the cap, three do not


def test_a_plan_that_hides_what_was_paid_is_refused() -> None:
    """Releases of the ledger must be among those that a plan counts, with no more noise there
    than was added.
    """
    paid = compose(GaussianDpEvent(10.0), GaussianDpEvent(12.0))
    _check_counted(paid, (12.0, 10.0, 8.0))
    for claimed in ((), (10.0,), (10.0, 13.0)):
        with pytest.raises(PlanRefused, match="does not count"):
            _check_counted(paid, claimed)


@pytest.mark.parametrize(
    ("paid", "asked", "refusal"),
    [
        ((), "r-levels", None),
        (("s", "r-other"), "r-levels", None),
        (("r-levels",), "r-levels", None),  # what the plan itself is for
        (("r-counts",), "r-levels", r"party\.caps\.epsilon"),
        # the training was asked for first: steps after it would come on top of it
        (("r",), "r-levels", "r has begun"),
    ],
)
def test_steps_and_their_training_share_one_cap(
    paid: tuple[str, ...], asked: str, refusal: str | None, tmp_path: Path
) -> None:
    """Each alone costs four fifths of the cap."""
    event = GaussianDpEvent(4.0)
    own = party(tmp_path, epsilon(event, DELTA).quoted * 1.25)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for run in paid:
            ledger.charge(release(run=run, event=event), Budget())
        with nullcontext() if refusal is None else pytest.raises(PlanRefused, match=refusal):
            check_learnt(own, own, plan_of(event), asked, ledger, event)


def party(folder: Path, cap: float | None = None) -> Config:
    """A party whose cap is that of the training, if none is given."""
    cap = epsilon(TRAINING, DELTA).quoted * 1.0001 if cap is None else cap
    return load_config(
        None,
        {"party.name": "a", "party.caps.epsilon": cap, "party.state_dir": str(folder / "state")},
    )


def plan_of(event: DpEvent, rounds: int = 1) -> PartyPlan:
    return PartyPlan(
        1.0, 1.0, 1.0, "add_or_remove_one", DELTA, rounds, {"aggregator": event}, ("update",), 1.0
    )


def agree(
    own: Config, run: str, price: DpEvent, ledger: Ledger, learnt: tuple[float, ...] = ()
) -> None:
    """What a party process does with a plan, up to its first round."""
    training = isinstance(price, SelfComposedDpEvent)
    plan = plan_of(price.event, price.count) if training else plan_of(price)
    agreed = load_config(None, {"data.learnt.noise_multipliers": list(learnt)}) if learnt else own
    check_price(own, plan)
    (own.party.folder / run).mkdir(parents=True, exist_ok=True)
    agree_to_price(own, agreed, plan, run, ledger, price)


def end(own: Config, run: str) -> None:
    (own.party.folder / run / FINAL).touch()


@pytest.mark.parametrize("charged", [0, 1])
def test_nothing_is_learnt_for_a_training_that_has_begun(tmp_path: Path, charged: int) -> None:
    """The rest of its rounds comes whatever was charged of them when the step is asked for."""
    own = party(tmp_path)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        agree(own, "r", TRAINING, ledger)
        for number in range(1, charged + 1):
            ledger.charge(release(number, run="r", event=ONE), Budget())
        with pytest.raises(PlanRefused, match="r has begun here"):
            agree(own, "r-levels", STEP, ledger)
        agree(own, "r", TRAINING, ledger)  # started again


@pytest.mark.parametrize("ended", [False, True])
def test_a_training_counts_a_step_that_is_under_way_in_full(tmp_path: Path, ended: bool) -> None:
    """Until a step is over all its releases count, then those that were charged; it may go on
    beside the training.
    """
    own, step = party(tmp_path), compose(HALF, GaussianDpEvent(6.6))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        agree(own, "r-bounds", step, ledger)
        ledger.charge(release(run="r-bounds", event=HALF), Budget())
        if ended:
            end(own, "r-bounds")
        with (
            nullcontext()
            if ended
            else pytest.raises(PlanRefused, match="does not count the 2 releases")
        ):
            agree(own, "r", TRAINING, ledger, learnt=(6.4,))
        agree(own, "r", TRAINING, ledger, learnt=(6.4, 6.6))
        agree(own, "r-bounds", step, ledger)  # started again
        with pytest.raises(PlanRefused, match="r has begun here"):
            agree(
                own, "r-bounds", compose(HALF, GaussianDpEvent(6.5)), ledger
            )  # another plan, before the first was kept


@pytest.mark.parametrize("asked", ["r-bounds", "r"])
def test_no_plan_that_is_chosen_after_a_step_passes_the_cap(tmp_path: Path, asked: str) -> None:
    """Priced by PLD of the total, the best choice among the plans that a party took came to an
    epsilon of 1.2 where its cap was 1.
    """
    first = calibrate(GaussianDpEvent, 1.0, DELTA) / math.sqrt(0.5)
    own = party(tmp_path, 1.0)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        agree(own, "r-counts", GaussianDpEvent(first), ledger)
        ledger.charge(release(run="r-counts", event=GaussianDpEvent(first)), Budget())
        end(own, "r-counts")
        agreed = load_config(None, {"data.learnt.noise_multipliers": [first]})

        def admitted(event: DpEvent) -> bool:
            before = GaussianDpEvent(first) if asked == "r" else None
            plan = replace(plan_of(event), before=before)
            try:
                check_price(own, plan)
                check_learnt(own, agreed, plan, asked, ledger, event)
            except PlanRefused:
                return False
            return True

        plans = least_noise(admitted)
    assert len(plans) == len(RATES)
    assert adaptive_epsilon(first, plans, DELTA) <= 1.0


def test_steps_that_alternate_share_one_cap(tmp_path: Path) -> None:
    own = party(tmp_path)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        agree(own, "r-levels", HALF, ledger)
        agree(own, "r-counts", HALF, ledger)
        with pytest.raises(PlanRefused, match=r"party\.caps\.epsilon"):
            agree(own, "r-bounds", HALF, ledger)
        agree(own, "r-levels", HALF, ledger)  # started again
        end(own, "r-counts")  # before its release, which it now never makes
        agree(own, "r-bounds", HALF, ledger)


@pytest.mark.parametrize(
    "order", list(permutations([("r", TRAINING), ("r-levels", STEP), ("r-counts", HALF)]))
)
def test_no_order_of_plans_and_rounds_passes_the_cap(
    tmp_path: Path, order: tuple[tuple[str, DpEvent], ...]
) -> None:
    """Each plan is asked for twice, and each that is agreed to makes a release before the next
    is asked for.
    """
    own = party(tmp_path)
    agreed = set()
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for _ in range(2):
            for run, price in order:
                try:
                    agree(own, run, price, ledger)
                except PlanRefused:
                    continue
                agreed.add(run)
                ledger.charge(release(run=run, event=ONE if run == "r" else price), Budget())
        if "r" in agreed:
            for number in range(2, ROUNDS + 1):
                ledger.charge(release(number, run="r", event=ONE), Budget())
        together = compose(*(from_json(row.event) for row in ledger.rows()))
    assert agreed
    assert epsilon(together, DELTA).quoted <= float(own.party.caps.epsilon or 0)


def test_of_two_processes_that_agree_at_once_one_is_refused(tmp_path: Path) -> None:
    own, start, told = party(tmp_path), Barrier(2), []

    def ask(run: str, price: DpEvent) -> None:
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            start.wait(30)
            try:
                agree(own, run, price, ledger)
            except PlanRefused:
                told.append(run)

    Ledger(tmp_path / "ledger.sqlite").close()
    threads = [Thread(target=ask, args=each) for each in (("r", TRAINING), ("r-levels", STEP))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 1


def test_a_price_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    own = party(tmp_path)
    (own.party.folder / "r").mkdir(parents=True)
    (own.party.folder / "r" / PRICE).write_text("{}")
    with (
        Ledger(tmp_path / "ledger.sqlite") as ledger,
        pytest.raises(InputError, match=r"price\.json: is not the price"),
    ):
        agree(own, "r-levels", STEP, ledger)
