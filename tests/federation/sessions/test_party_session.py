"""What a party tells its operator while it waits, and that old news is not told."""

from pathlib import Path

import pytest

from homo_dp.core.errors import TransportError
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions import party_session
from tests.federation.queues import SmallRun
from tests.federation.small import RUN, small_config


def test_a_party_that_nobody_answers_says_every_minute_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, passed = list[str](), [0.0]
    session = SmallRun(tmp_path, small_config(), "a").party_session("a")
    session.duty.say, session.duty.patience = said.append, 10 * party_session.JOIN_AGAIN
    session.duty.keys = "Compare fingerprints: a 0123"

    def silence(timeout: float) -> None:
        passed[0] += timeout

    monkeypatch.setattr(session.transport, "receive", silence)
    monkeypatch.setattr(
        "homo_dp.federation.sessions.party_session.time.monotonic", lambda: passed[0]
    )
    with pytest.raises(TransportError, match="start the same command again"):
        session.run()
    assert ["waits for the aggregator" in text for text in said] == [True, *[False] * 4]
    for seconds, text in zip((20, 80, 140, 200), said[1:], strict=True):
        assert f"no answer for {seconds} s" in text
        assert "federation.parties" in text
        assert text.endswith("Compare fingerprints: a 0123")


def test_a_party_that_has_the_plan_is_not_told_that_others_are_awaited(tmp_path: Path) -> None:
    said: list[str] = []
    run = SmallRun(tmp_path, small_config(), "a")
    session = run.party_session("a")
    session.duty.say, session.duty.patience = said.append, 0.0
    aggregator = run.post.end(AGGREGATOR)
    waiting = Message(RUN, 0, AGGREGATOR, "a", "status", {}, {"state": "waiting"})
    for message in (
        waiting,
        Message(RUN, 0, AGGREGATOR, "a", "plan", {}, {"plan": run.plan()}),
        waiting,
    ):
        aggregator.send(message)
    while (found := session.transport.receive(0.01)) is not None:
        session.take(found)
    assert [text for text in said if "awaited" in text] == [
        f"run {RUN}: waiting, the others are awaited"
    ]


def test_a_party_gives_up_sooner_once_the_aggregator_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    run = SmallRun(tmp_path, small_config(), "a")
    session = run.party_session("a")
    session.duty.say = said.append
    monkeypatch.setattr(party_session, "AFTER_STOP", 0.2)
    monkeypatch.setattr(party_session, "JOIN_AGAIN", 0.1)
    stopped = Message(RUN, 0, AGGREGATOR, "a", "status", {}, {"state": "stopped"})
    run.post.end(AGGREGATOR).send(stopped)
    with pytest.raises(TransportError, match="it has stopped the run"):
        session.run()
    assert any("the aggregator has stopped the run" in text for text in said)
