"""Sessions: who joins late, never, twice or with bad intent; each answer is charged once and the
run goes on.
"""

import logging
import threading
from dataclasses import replace
from pathlib import Path

import opacus  # noqa: F401  (takes seconds that no round of these tests should wait for)
import pytest
import torch

from homo_dp.core.errors import TransportError, Undeliverable
from homo_dp.federation.mechanisms.base import Release
from homo_dp.federation.mechanisms.dp_sgd import DpSgd
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message, encode
from homo_dp.federation.sessions import aggregator, party_session
from homo_dp.federation.sessions.crash_state import FitStates, PartyFiles
from homo_dp.federation.sessions.fit_state import FitState
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger import Ledger
from tests.federation.queues import SmallRun
from tests.federation.small import RUN, small_config, zeros


def charged(folder: Path, name: str) -> list[int]:
    with Ledger(folder / name / "ledger.sqlite", read_only=True) as ledger:
        ledger.verify()
        return [row.round for row in ledger.rows(RUN, name)]


def test_a_run_ends_with_the_same_weights_everywhere(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "ab")
    run.start("a")
    run.start("b")
    session = run.aggregate()
    run.join()
    assert not run.errors
    final = run.of("finished")
    assert {message.recipient for message in final} == {"a", "b"}
    assert all(final[0].tensors[name].equal(session.aggregator.weights[name]) for name in zeros())
    assert [row["replied"] for row in session.rows] == [["a", "b"], ["a", "b"]]
    assert charged(tmp_path, "a") == charged(tmp_path, "b") == [1, 2]


def test_an_update_carries_its_releases_and_the_head_after_its_charge(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "a")
    run.start("a")
    run.aggregate()
    run.join()
    with Ledger(tmp_path / "a" / "ledger.sqlite", read_only=True) as ledger:
        hashes = [row.hash for row in ledger.rows()]
    shown = [message.info for message in run.of("update", "a")]
    assert [info["ledger_head"] for info in shown] == [
        {"count": number, "hash": digest} for number, digest in enumerate(hashes, 1)
    ]
    assert all(info["releases"] == ["update"] for info in shown)


def test_a_party_that_never_comes_costs_one_timeout_and_is_recorded(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(train__rounds=3), "ab", min_parties=1, round_timeout=10.0)
    run.start("a")
    session = run.aggregate()
    run.join()
    assert [row["missing"] for row in session.rows] == [["b"]] * 3
    assert all(row["counted"] for row in session.rows)
    told = [message.recipient for message in run.of("plan")]
    # at the end too, in case it came, lost it and comes back
    assert (told.count("a"), told.count("b")) == (1, 2)


def test_too_few_replies_stop_the_run_if_so_configured_and_it_goes_on_later(tmp_path: Path) -> None:
    config = small_config()
    run = SmallRun(tmp_path, config, "ab", round_timeout=10.0, stop_on_missing=True)
    run.start("a")
    with pytest.raises(TransportError, match="missing b"):
        run.aggregate()
    run.rules = SmallRun(tmp_path, config, "ab").rules
    run.start("b")
    session = run.aggregate()
    run.join()
    assert [row["replied"] for row in session.rows] == [["a", "b"], ["a", "b"]]


def test_with_too_few_replies_a_round_does_not_count_and_the_run_goes_on(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "ab", round_timeout=3.0)
    over = threading.Event()

    def join_again_and_again() -> None:  # and answer no round
        info = {"rows": None, "ledger_head": None}
        while not over.wait(0.5):
            run.post.end("b").send(Message(RUN, 0, "b", AGGREGATOR, "join", {}, info))

    joining = threading.Thread(target=join_again_and_again)
    joining.start()
    run.start("a")
    session = run.aggregate()
    over.set()
    joining.join()
    run.join()
    assert [(row["counted"], row["missing"]) for row in session.rows] == [(False, ["b"])] * 2
    assert all(tensor.count_nonzero() == 0 for tensor in session.aggregator.weights.values())


@pytest.mark.parametrize("tolerated", [1, 0])
def test_dropouts_of_a_sum_over_users_are_the_mechanisms_to_deal_with(
    tmp_path: Path, tolerated: int
) -> None:
    """A round that is skipped because somebody was missing would have no noise, and say that
    somebody was.
    """
    users = {"privacy__mechanism": "dp_fedavg", "privacy__population": 3, "privacy__delta": 0.1}
    keys = {
        "privacy__noise_at": "parties",
        "privacy__sampling": "everyone",
        "privacy__tolerated_dropouts": tolerated,
    }
    run = SmallRun(tmp_path, small_config(**users, **keys), "abc", round_timeout=10.0)
    party = run.post.end("c")  # joins and then says nothing
    party.send(Message(RUN, 0, "c", AGGREGATOR, "join", {}, {"rows": None, "ledger_head": None}))
    run.start("a")
    run.start("b")
    session = run.aggregate()
    run.join()
    assert [(row["counted"], row["missing"]) for row in session.rows] == [
        (bool(tolerated), ["c"])
    ] * 2
    assert [row.get("discarded") for row in session.rows] == [None if tolerated else 1.0] * 2
    assert any(tensor.count_nonzero() for tensor in session.aggregator.weights.values()) == bool(
        tolerated
    )
    assert charged(tmp_path, "a") == charged(tmp_path, "b") == [1, 2]


def test_a_round_in_which_nobody_was_in_time_does_not_let_the_next_ones_pass_by(
    tmp_path: Path,
) -> None:
    """Who missed a round is not waited for, but a round of noise alone costs as much as one with
    replies.
    """
    users = {
        "privacy__mechanism": "dp_fedavg",
        "privacy__population": 2,
        "privacy__delta": 0.1,
        "train__rounds": 3,
    }
    keys = {
        "privacy__noise_at": "parties",
        "privacy__sampling": "everyone",
        "privacy__tolerated_dropouts": 1,
    }
    run = SmallRun(tmp_path, small_config(**users, **keys), "ab", round_timeout=3.0)
    run.start_replying("a", zeros(), since=2)
    run.start_replying("b", zeros(), since=2)
    session = run.aggregate()
    run.join()
    assert session.rows[0]["missing"] == ["a", "b"]
    assert all(row["replied"] for row in session.rows[1:])


def test_a_party_that_comes_late_is_told_where_the_run_is_and_takes_part(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(train__rounds=4), "ab", min_parties=1, round_timeout=10.0)
    run.start("a")
    original = run.members.transport.send

    def send(message: Message) -> None:  # b comes when the aggregator has opened round 2
        original(message)
        if (
            message.kind == "weights"
            and message.round == 2
            and message.recipient == "b"
            and len(run.threads) == 1
        ):
            while run.post.end("b").receive(0.01):
                """Nothing that was sent before it came reaches it."""
            run.start("b")

    run.members.transport.send = send  # type: ignore[method-assign]
    session = run.aggregate()
    run.join()
    assert not run.errors
    assert "b" in session.rows[-1]["replied"]
    states = [
        message
        for message in run.of("status")
        if message.recipient == "b" and message.info["state"] == "running"
    ]
    assert states
    assert states[0].info["rounds"] == 4


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"linear.weight": torch.zeros(1, 3), "linear.bias": torch.tensor([float("nan")])}, "NaN"),
        ({"linear.weight": torch.zeros(7), "linear.bias": torch.zeros(1)}, "shape"),
        (
            {"linear.weight": torch.full((1, 3), 1e30), "linear.bias": torch.zeros(1)},
            "max_update_norm",
        ),
        ({"another": torch.zeros(1)}, "not the model's"),
    ],
)
def test_a_malicious_party_is_named_and_the_run_goes_on_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: dict[str, torch.Tensor], word: str
) -> None:
    config = small_config(federation__max_update_norm=1000.0)
    run = SmallRun(tmp_path, config, ["a", "mallory"], min_parties=1, round_timeout=30.0)
    run.start_replying("mallory", bad)
    run.start("a")
    with caplog.at_level(logging.WARNING):
        session = run.aggregate()
    run.join()
    assert [row["replied"] for row in session.rows] == [["a"], ["a"]]
    assert session.rows[0]["refused"] == {"mallory": "bad_update"}
    assert any("mallory" in text and word in text for text in caplog.messages)


def test_others_pay_for_no_second_round_where_one_that_must_be_there_sends_bad_updates(
    tmp_path: Path,
) -> None:
    """Every round was asked and paid for, and none counted."""
    run = SmallRun(tmp_path, small_config(), ["a", "mallory"], min_parties=2, round_timeout=30.0)
    run.start_replying("mallory", {"another": torch.zeros(1)})
    run.start("a")
    with pytest.raises(TransportError, match=r"mallory \(bad_update\)"):
        run.aggregate()
    assert charged(tmp_path, "a") == [1]


def test_updates_of_another_run_change_nothing(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "ab", min_parties=1, round_timeout=10.0)
    run.start_replying("b", zeros(), run="other-run")
    run.start("a")
    session = run.aggregate()
    run.join()
    assert [row["replied"] for row in session.rows] == [["a"], ["a"]]


def test_a_party_whose_ledger_is_behind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(party_session, "DOUBT", 0.3)
    monkeypatch.setattr(party_session, "JOIN_IN_DOUBT", 0.1)
    run = SmallRun(tmp_path, small_config(), "ab", min_parties=1, round_timeout=6.0)
    run.members.heads.take("b", {"count": 5, "hash": "5" * 64})
    run.start("a")
    run.start("b")
    run.aggregate()
    run.join()
    assert isinstance(run.errors["b"], LedgerError)
    assert "ledger_behind" in str(run.errors["b"])
    assert charged(tmp_path, "b") == []


def test_an_old_join_that_comes_late_does_not_cost_the_party_its_place(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(train__rounds=3), "ab")
    run.start("a")
    run.start("b")
    original = run.members.transport.send
    late: list[Message] = []

    def send(message: Message) -> None:  # in round 3 the first join of b comes once more
        original(message)
        if message.kind == "weights" and message.round == 3 and not late:
            late.append(run.of("join", "b")[0])
            run.post.box(AGGREGATOR).put(encode(late[0]))

    run.members.transport.send = send  # type: ignore[method-assign]
    session = run.aggregate()
    run.join()
    assert not run.errors
    assert [row["replied"] for row in session.rows] == [["a", "b"]] * 3


def test_a_party_asked_twice_sends_the_same_bytes_and_pays_once(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "a")
    session = run.party_session("a")
    aggregator = run.post.end(AGGREGATOR)
    aggregator.send(Message(RUN, 0, AGGREGATOR, "a", "plan", {}, {"plan": run.plan()}))
    for _ in range(2):
        aggregator.send(Message(RUN, 1, AGGREGATOR, "a", "weights", zeros()))
    for _ in range(3):
        message = session.transport.receive(1)
        assert message is not None
        session.take(message)
    first, second = run.of("update", "a")
    assert encode(first) == encode(second)
    assert charged(tmp_path, "a") == [1]


def test_a_round_that_a_party_skips_does_not_count_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_fit = DpSgd.after_fit

    def diverged(self: DpSgd, fit: LocalFit) -> Release:
        release = after_fit(self, fit)
        return replace(release, tensors={n: t * float("nan") for n, t in release.tensors.items()})

    monkeypatch.setattr(
        DpSgd,
        "after_fit",
        lambda m, fit: (diverged if fit.round_number == 1 else after_fit)(m, fit),
    )
    run = SmallRun(tmp_path, small_config(train__momentum=0.9), "ab", round_timeout=30.0)
    run.start("a")
    run.start("b")
    session = run.aggregate()
    run.join()
    assert not run.errors
    assert [row["counted"] for row in session.rows] == [False, True]
    assert session.rows[0]["refused"] == {"a": "skipped", "b": "skipped"}
    assert charged(tmp_path, "a") == charged(tmp_path, "b") == [1, 2]


def test_another_plan_under_the_same_run_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = SmallRun(tmp_path, small_config(), "a")
    session = run.party_session("a")
    aggregator = run.post.end(AGGREGATOR)
    changed = run.plan()
    changed["train"] = changed["train"] | {"rounds": 99}
    for plan in (run.plan(), changed):
        aggregator.send(Message(RUN, 0, AGGREGATOR, "a", "plan", {}, {"plan": plan}))
        message = session.transport.receive(1)
        assert message is not None
        session.take(message)
    assert [message.info["reason"] for message in run.of("refused", "a")] == ["plan_changed"]
    assert "train.rounds=2 became 99" in caplog.text


def test_what_was_fitted_but_never_charged_is_discarded_at_a_start(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(train__optimizer="adam", train__learning_rate=0.1), "a")
    session = run.party_session("a")
    session._start(run.plan())
    assert session.party is not None
    assert isinstance(session.state, PartyFiles)
    # killed before the charge
    session.state.fits.save(1, FitState.of(session.party.fit, session.party.mechanism))
    session._start(run.plan())
    assert session.state.fits.rounds() == []
    assert session._fitted == 0


def test_adam_goes_on_where_it_was(tmp_path: Path) -> None:
    config = small_config(train__optimizer="adam", train__learning_rate=0.1)
    run = SmallRun(tmp_path, config, "a")
    session = run.party_session("a")
    session._start(run.plan())
    assert session.party is not None
    session.party.handle(Message(RUN, 1, AGGREGATOR, "a", "weights", zeros()))
    before = session.party.fit.optimizer.state_dict()["state"]
    session._start(run.plan())  # as a process that was killed
    after = session.party.fit.optimizer.state_dict()["state"]
    assert before.keys() == after.keys() != set()
    assert all(torch.equal(before[key]["exp_avg"], after[key]["exp_avg"]) for key in before)
    assert session.party.fit.steps_done == 2
    assert FitStates(tmp_path / "a" / "state" / RUN).rounds() == [1]


def test_an_update_that_raises_what_nobody_foresaw_costs_its_sender_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = SmallRun(tmp_path, small_config(), "ab", min_parties=1)
    run.start("a")
    run.start_replying("b", zeros())
    receive = aggregator.Aggregator.receive

    def broken(self: aggregator.Aggregator, message: Message) -> None:
        if message.sender == "b":
            raise RuntimeError("Stride calculation overflowed")
        receive(self, message)

    monkeypatch.setattr(aggregator.Aggregator, "receive", broken)
    session = run.aggregate()
    run.join()
    assert [(row["replied"], row["refused"]) for row in session.rows] == [
        (["a"], {"b": "bad_update"})
    ] * 2
    assert session.refusals.counts == {"b": 2}
    assert "RuntimeError" in caplog.text


def test_a_party_that_joins_without_end_is_answered_a_few_times(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "ab", min_parties=1)
    flood = run.post.end("b")
    run.start("a")
    for _ in range(500):
        flood.send(
            Message(RUN, 0, "b", AGGREGATOR, "join", {}, {"rows": None, "ledger_head": None})
        )
    run.start_replying("b", zeros())
    session = run.aggregate()
    run.join()
    assert len(session.rows) == 2
    assert len([message for message in run.of("status") if message.recipient == "b"]) < 60


def test_a_party_that_cannot_be_reached_is_missing_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = SmallRun(tmp_path, small_config(), "ab", min_parties=1, round_timeout=3.0)
    send = run.members.transport.send

    def closed(message: Message) -> None:
        if message.recipient == "b":
            raise Undeliverable("its folder is closed")
        send(message)

    monkeypatch.setattr(run.members.transport, "send", closed)
    run.start("a")
    session = run.aggregate()
    run.join()
    assert [row["missing"] for row in session.rows] == [["b"]] * 2
    assert caplog.text.count("cannot be reached") == 1
