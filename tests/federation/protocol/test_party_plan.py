"""A plan counts rounds, releases and costs: those that train, those that ask another sum, those
without this party.
"""

from dp_accounting.dp_event import GaussianDpEvent, NoOpDpEvent

from homo_dp.federation.protocol.party_plan import FederationFacts, PartyFacts, PartyPlan
from homo_dp.federation.protocol.round_sums import RoundSum
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.private_sum import PrivateSum

TRAINS, BEFORE = GaussianDpEvent(2.0), GaussianDpEvent(30.0)
METRICS = RoundSum("metrics", PrivateSum(4, 1.0, 10.0, 100), "counts of test rows, with noise")


def plan(rounds: int = 4, **more: object) -> PartyPlan:
    events = {"aggregator": TRAINS, "model_reader": TRAINS}
    made = PartyPlan(2.0, 6.0, 3.0, "add_or_remove_one", 1e-5, rounds, events, ("update",), 1.0)  # type: ignore[arg-type]
    return PartyPlan(**{**vars(made), **more})


def test_rounds_that_ask_another_sum_come_on_top() -> None:
    asked = plan(sums={3: METRICS, 6: METRICS})
    assert asked.all_rounds == 6
    assert [asked.trained_by(number) for number in range(7)] == [0, 1, 2, 2, 3, 4, 4]
    assert [asked.releases_by(number) for number in range(7)] == [0, 1, 2, 3, 4, 5, 6]
    assert [asked.kind_of(number) for number in (2, 3, 6)] == ["update", "metrics", "metrics"]
    assert asked.events_of(3)["model_reader"] == METRICS.event
    assert asked.events_of(4)["aggregator"] == TRAINS
    assert (asked.sigma_of(3), asked.sigma_of(4)) == (10.0, 6.0)


def test_a_round_outside_of_the_schedule_costs_nothing() -> None:
    asked = plan(schedule=(2, 4), noise_between=True)
    assert [asked.is_noise_alone(number) for number in (1, 2, 3, 4)] == [True, False, True, False]
    assert asked.events_of(1) == {"aggregator": NoOpDpEvent(), "model_reader": NoOpDpEvent()}
    assert asked.kind_of(1) != asked.kind_of(2)
    assert [asked.releases_by(number) for number in range(5)] == [0, 0, 1, 1, 2]
    assert [asked.round_of(number) for number in (0, 1, 2)] == [0, 2, 4]
    assert not plan(schedule=(2, 4)).is_noise_alone(1)  # it is refused, not answered


def test_what_is_released_beside_training_adds_up() -> None:
    asked = plan(sums={1: METRICS, 2: METRICS, 4: METRICS})
    assert plan().beside(4) is None
    assert asked.beside(1) == compose(METRICS.event)
    spent = [asked.beside(number) for number in (1, 2, 4)]
    costs = [epsilon(event, 1e-5).quoted for event in spent if event is not None]
    assert len(costs) == 3
    assert costs[0] < costs[1] < costs[2]


def test_the_smallest_party_is_known() -> None:
    facts = {name: PartyFacts(name, rows, 4, 2, 0.5) for name, rows in {"a": 30, "b": 20}.items()}
    assert FederationFacts(facts, 4, 10).smallest_rows == 20
