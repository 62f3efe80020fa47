"""The aggregator: checks every update, counts each party once, moves the weights."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from homo_dp.config.load import load_config
from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.mechanisms.base import Weights
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.aggregator import Aggregator
from homo_dp.federation.sessions.build import build_aggregator, build_mechanism, federation_facts
from homo_dp.federation.sessions.party import PartyLimits
from homo_dp.privacy.moments import as_vector
from homo_dp.privacy.noise.source import SeededNoise
from tests.federation.in_memory import run_in_memory
from tests.federation.small import (
    RUN,
    small_config,
    small_mechanism,
    small_party,
    small_table,
    zeros,
)


def make(rows: dict[str, int] | None = None, **overrides: object) -> Aggregator:
    config = small_config(**overrides)
    aggregator = build_aggregator(
        config, RUN, zeros(), small_mechanism(config, rows or {"a": 20, "b": 60}), None
    )
    aggregator.start_round()
    return aggregator


def limited(limits: PartyLimits, **overrides: object) -> Aggregator:
    config = small_config(**overrides)
    mechanism = small_mechanism(config, {"a": 20, "b": 60})
    aggregator = build_aggregator(config, RUN, zeros(), mechanism, None, limits=limits)
    aggregator.start_round()
    return aggregator


def update(party: str, value: float, number: int = 1, tensors: Weights | None = None) -> Message:
    filled = {name: torch.full_like(tensor, value) for name, tensor in zeros().items()}
    return Message(RUN, number, party, "aggregator", "update", tensors or filled)


def test_uniform_mean_is_the_default() -> None:
    aggregator = make()
    aggregator.receive(update("a", 1.0))
    aggregator.receive(update("b", 3.0))
    assert aggregator.finish_round().replied == ("a", "b")
    assert torch.allclose(aggregator.weights["linear.bias"], torch.tensor([2.0]))


def test_weighting_by_rows() -> None:
    aggregator = make(train__weighting="rows")
    aggregator.receive(update("a", 1.0))
    aggregator.receive(update("b", 3.0))
    aggregator.finish_round()
    assert torch.allclose(aggregator.weights["linear.bias"], torch.tensor([2.5]))


def test_one_party_cannot_move_weights_to_where_the_others_refuse_them() -> None:
    aggregator = limited(
        PartyLimits(), train__server_optimizer={"name": "fedavgm", "momentum": 0.9}
    )
    with pytest.raises(MessageError, match="above 1e\\+06"):
        aggregator.receive(update("a", 3e38))
    # each is within the range of weights, and momentum would carry their mean out of it
    for number in range(1, 6):
        aggregator.receive(update("a", 1e6, number))
        aggregator.receive(update("b", 9e5, number))
        aggregator.finish_round()
        assert max(float(tensor.abs().max()) for tensor in aggregator.weights.values()) <= 1e6
        aggregator.start_round()
    assert float(aggregator.weights["linear.bias"]) > 9.4e5  # so it was cut, and not thrown away


def test_weights_that_are_not_finite_are_never_sent() -> None:
    """Momentum carries weights of one party, each of them finite, beyond float32; later rounds
    go on without that.
    """
    optimizer = {"name": "fedavgm", "momentum": 0.9}
    aggregator = make(
        privacy__mechanism="none", privacy__noise_multiplier=None, train__server_optimizer=optimizer
    )
    aggregator.receive(update("a", 3e38))
    aggregator.receive(update("b", 3e38))
    aggregator.finish_round()
    aggregator.start_round()
    aggregator.receive(update("a", 3e38, 2))
    aggregator.receive(update("b", 3e38, 2))
    assert aggregator.finish_round().metrics == {"discarded": 1.0}
    assert float(aggregator.weights["linear.bias"]) == pytest.approx(3e38)
    aggregator.start_round()
    aggregator.receive(update("b", -3e38, 3))
    aggregator.finish_round()
    # this step is too long, too
    assert float(aggregator.weights["linear.bias"]) == pytest.approx(3e38)
    aggregator.start_round()
    aggregator.receive(update("b", 0.0, 4))
    aggregator.finish_round()
    assert float(aggregator.weights["linear.bias"]) == pytest.approx(2.7e38)


def test_weights_of_networks_are_cut_to_what_parties_take_of_networks() -> None:
    aggregator = limited(PartyLimits(max_network_weight=100.0))
    aggregator.receive(update("a", 5e5))
    aggregator.receive(update("b", 1.0))
    aggregator.finish_round()
    assert float(aggregator.weights["linear.bias"]) == 100.0


def test_a_sum_of_gradients_may_be_larger_than_a_weight() -> None:
    aggregator = limited(
        PartyLimits(max_weight=2.0), privacy__mechanism="dp_fedsgd", train__local_steps=None
    )
    aggregator.receive(update("a", 50.0))
    with pytest.raises(MessageError, match="holds a number above"):
        aggregator.receive(update("b", 1e30))


def test_starting_weights_of_a_moment_are_cut_as_well() -> None:
    """One cross term of 1e9 made the least-squares weights 2.9e7, which every party refused."""
    aggregator = limited(
        PartyLimits(),
        model__name="linear_regression",
        model__task="regression",
        data__target_bounds=[-1, 1],
        privacy__mechanism="dp_fedsgd",
        privacy__max_grad_norm=0.8,
        train__local_steps=None,
        train__sample_rate=1.0,
        train__solver="second_moment",
        train__row_norm=2.0,
        train__auto=False,
    )
    moment = torch.zeros(5, 5, dtype=torch.float64)
    moment[0, 4] = moment[4, 0] = 1e9
    (dtype,) = {
        dtype
        for _, dtype in aggregator.mechanism.signature_of(
            aggregator.weights, aggregator.asked
        ).values()
    }
    for party, factor in (("a", 1.0), ("b", 0.0)):
        tensors = {"sum": (as_vector(moment) * factor).to(dtype)}
        aggregator.receive(Message(RUN, 1, party, "aggregator", "update", tensors))
    aggregator.finish_round()
    assert 0 < max(float(tensor.abs().max()) for tensor in aggregator.weights.values()) <= 1e6


def test_a_replay_counts_once() -> None:
    aggregator = make()
    aggregator.receive(update("a", 1.0))
    aggregator.receive(update("a", 100.0))
    report = aggregator.finish_round()
    assert torch.allclose(aggregator.weights["linear.bias"], torch.tensor([1.0]))
    assert report.missing == ("b",)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (update("a", float("nan")), "NaN"),
        (update("a", float("inf")), "NaN or infinity"),
        (update("a", 1e30), "norm"),
        (update("mallory", 1.0), "not a party"),
        (update("a", 1.0, number=7), "round 1"),
        (update("a", 1.0, tensors={"linear.weight": torch.zeros(1, 3)}), "missing"),
        (
            update(
                "a",
                1.0,
                tensors={"linear.weight": torch.zeros(9, 3), "linear.bias": torch.zeros(1)},
            ),
            "shape",
        ),
    ],
)
def test_a_bad_update_is_refused_and_changes_nothing(message: Message, words: str) -> None:
    aggregator = make(federation__max_update_norm=1e6)
    with pytest.raises(MessageError, match=words):
        aggregator.receive(message)
    assert aggregator.waiting_for == ("a", "b")


def test_the_round_loop_runs_through_bytes(tmp_path: Path) -> None:
    config = small_config()
    mechanism = small_mechanism(config, {"a": 20, "b": 20})
    aggregator = build_aggregator(config, RUN, zeros(), mechanism, None)
    parties = {}
    for seed, name in enumerate(("a", "b")):
        own = small_mechanism(config, {"a": 20, "b": 20})
        parties[name] = small_party(
            config, tmp_path, name, mechanism=own, table=small_table(seed=seed)
        )
    reports = run_in_memory(aggregator, {name: party.handle for name, party in parties.items()})
    assert [report.round for report in reports] == [1, 2]
    assert aggregator.weights["linear.weight"].any()
    for party in parties.values():
        assert party.final_weights is not None
        assert torch.equal(
            party.final_weights["linear.weight"], aggregator.final_weights["linear.weight"]
        )


def test_too_few_replies_stop_the_run() -> None:
    config = small_config()
    aggregator = build_aggregator(
        config, RUN, zeros(), small_mechanism(config, {"a": 20, "b": 20}), None
    )
    with pytest.raises(TransportError, match="0 of at least 2"):
        run_in_memory(aggregator, dict.fromkeys(("a", "b"), lambda message: None))


def test_updates_that_were_refused_are_the_reason_that_is_given() -> None:
    config = small_config()
    aggregator = build_aggregator(config, RUN, zeros(), small_mechanism(config, {"a": 20}), None)
    bad = {name: torch.full_like(tensor, torch.nan) for name, tensor in zeros().items()}

    def answer(message: Message) -> Message:
        return Message(RUN, message.round, "a", "aggregator", "update", bad)

    with pytest.raises(
        TransportError, match=r"a \(bad_update\); .*diverged, lower train\.learning_rate$"
    ):
        run_in_memory(aggregator, {"a": answer})


def test_a_sum_that_no_table_can_have_is_refused() -> None:
    """Finite numbers of 1e308 became infinite in a total, and ended the aggregator where a count
    was read off it.
    """
    config = load_config(
        None, {"privacy.mechanism": "statistics", "data.columns": {"x": {"bounds": [0, 1]}}}
    )
    facts = federation_facts(config, {"a": 20, "b": 20}, 1)
    mechanism = build_mechanism(config, facts, SeededNoise(1))
    weights = {"numbers": torch.zeros(3, 2, dtype=torch.float64)}
    aggregator = build_aggregator(config, RUN, weights, mechanism, None)
    aggregator.start_round()
    for value, taken in ((1e308, False), (1e15, False), (1e9, True)):
        told = {"sum": torch.full((1,), value, dtype=torch.float64)}
        with nullcontext() if taken else pytest.raises(MessageError, match="norm="):
            aggregator.receive(update("a", 0.0, tensors=told))
    assert aggregator.waiting_for == ("b",)
