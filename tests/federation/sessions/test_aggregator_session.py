"""What an aggregator finds again that was killed between keeping a round and charging for it,
and when it ends.
"""

import threading
import time
from pathlib import Path

import pytest

from homo_dp.core.errors import TransportError
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.aggregator_session import AggregatorSession, RunState
from homo_dp.federation.sessions.build import build_aggregator
from homo_dp.privacy.accounting.events import from_json
from homo_dp.privacy.ledger import Ledger
from tests.federation.queues import SmallRun
from tests.federation.small import RUN, small_config, small_mechanism, zeros

EVENT = from_json('{"noise_multiplier":1.0,"type":"GaussianDpEvent"}')


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("discarded", [True, False])
def test_a_round_that_was_kept_is_charged_once_and_is_what_it_was(
    tmp_path: Path, discarded: bool, reported: bool
) -> None:
    users = {
        "privacy__mechanism": "dp_fedavg",
        "privacy__population": 20,
        "privacy__sample_rate": 0.5,
    }
    config = small_config(**users, privacy__delta=0.01, privacy__trust_aggregator=True)
    run = SmallRun(tmp_path, config, "ab")

    def session() -> AggregatorSession:
        mechanism = small_mechanism(config, {"a": 20, "b": 20})
        aggregator = build_aggregator(
            config, RUN, zeros(), mechanism, Ledger(tmp_path / "ledger.sqlite")
        )
        return AggregatorSession(
            aggregator,
            run.plan(),
            run.members,
            run.rules,
            RunState(tmp_path),
            lambda report, row: row,
        )

    killed = session()
    killed.begin()
    killed.aggregator.start_round()
    weights = (
        killed.aggregator.weights if discarded else {name: t + 1 for name, t in zeros().items()}
    )
    killed._keep_before_charge(weights, EVENT, 1.0)
    if reported:  # killed later: the row was written, and the state after the round was not
        killed.state.add_row({"round": 1, "counted": not discarded, "missing": []})
    for _ in range(2):  # the second one finds the round closed
        saved = RunState(tmp_path).load()
        assert saved is not None
        again = session()
        again.resume(saved)
        assert [(row["round"], row["counted"]) for row in again.rows] == [(1, not discarded)]
        assert all(tensor.equal(weights[name]) for name, tensor in again.aggregator.weights.items())
        with Ledger(tmp_path / "ledger.sqlite", read_only=True) as ledger:
            assert {row.round for row in ledger.rows(RUN)} == {1}


USERS = {
    "privacy__mechanism": "dp_fedavg",
    "privacy__population": 3,
    "privacy__delta": 0.1,
    "privacy__noise_at": "parties",
    "privacy__sampling": "everyone",
    "privacy__tolerated_dropouts": 1,
}


@pytest.mark.parametrize("keys", [{}, USERS], ids=["records", "users"])
def test_a_run_that_all_have_refused_ends_with_their_words_at_once(
    tmp_path: Path, keys: dict[str, object]
) -> None:
    """The last of them decides, not ``round_timeout``, which is half an hour here; nothing is
    spent on noise alone.
    """
    run = SmallRun(tmp_path, small_config(**keys), "abc", min_parties=1, round_timeout=1800.0)
    words = {"a": "epsilon_cap", "b": "rounds_cap", "c": "budget"}
    for name in words:
        run.post.end(name).send(
            Message(RUN, 0, name, AGGREGATOR, "join", {}, {"rows": None, "ledger_head": None})
        )

    def refuse(message: Message) -> None:
        sent(message)
        if message.kind == "weights":
            info = {"reason": words[message.recipient], "ledger_head": None}
            run.post.end(message.recipient).send(
                Message(RUN, 0, message.recipient, AGGREGATOR, "refused", {}, info)
            )

    sent, run.members.transport.send = run.members.transport.send, refuse  # type: ignore[method-assign]
    with pytest.raises(
        TransportError, match=r"refused by a \(epsilon_cap\), b \(rounds_cap\), c \(budget\)"
    ):
        run.aggregate()
    saved = RunState(tmp_path).load()
    assert saved is not None
    assert (saved.facts.round, saved.rows) == (0, [])


def test_no_round_is_asked_while_too_few_parties_are_there(tmp_path: Path) -> None:
    """Others paid for rounds that could not count: 18 paid, 8 counted."""
    run = SmallRun(tmp_path, small_config(), "abc", min_parties=3, round_timeout=0.5)
    run.start("a")
    run.start("b")
    run.start_replying("c", zeros(), since=1000)  # joins, and never answers a round

    def back() -> None:
        for number in range(1, 4):
            info = {"rows": None, "ledger_head": None}
            run.post.end("c").send(Message(RUN, number, "c", AGGREGATOR, "join", {}, info))
            time.sleep(2.0)

    later = threading.Timer(4.0, back)
    later.start()
    run.members.say = lambda text: None
    thread = threading.Thread(target=run.aggregate, daemon=True)
    thread.start()
    time.sleep(3.5)
    # the first round is paid for by a and b, and no other one until c is there again
    assert {message.round for message in run.of("weights")} == {1}
    later.join()
    time.sleep(1.5)
    assert max(message.round for message in run.of("weights")) > 1


def test_all_parties_are_told_that_a_run_is_given_up(tmp_path: Path) -> None:
    """They waited for an hour without a message."""
    keys: dict[str, object] = {"privacy__secure_aggregation": True, "train__local_steps": None}
    keys |= {"privacy__mechanism": "dp_fedsgd"}
    run = SmallRun(tmp_path, small_config(**keys), "abc", round_timeout=1.0)
    for name in "abc":
        run.start_replying(name, zeros())  # joins, and says nothing at the meeting
    with pytest.raises(TransportError, match="did not meet the others"):
        run.aggregate()
    told = [message for message in run.of("status") if message.info["state"] == "stopped"]
    assert {message.recipient for message in told} == set("abc")
