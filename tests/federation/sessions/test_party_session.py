"""What a party tells its operator while it waits, and that old news is not told."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from homo_dp.core.errors import TransportError
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions import party_session
from tests.federation.queues import SmallRun
from tests.federation.small import RUN, small_config


def test_a_party_that_nobody_answers_says_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, passed = list[str](), [0.0]
    session = SmallRun(tmp_path, small_config(), "a").party_session("a")
    session.duty.say, session.duty.patience = said.append, 3 * party_session.JOIN_AGAIN

    def silence(timeout: float) -> None:
        passed[0] += timeout

    monkeypatch.setattr(session.transport, "receive", silence)
    monkeypatch.setattr(
        "homo_dp.federation.sessions.party_session.time.monotonic", lambda: passed[0]
    )
    with pytest.raises(TransportError, match="start the same command again"):
        session.run()
    assert ["waits for the aggregator" in text for text in said] == [True, False]
    assert "federation.parties" in said[1]


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


@pytest.mark.parametrize(
    ("run", "taken"), [("study", True), ("study-levels", False), ("study-levels-counts", False)]
)
def test_nothing_is_learnt_before_a_run_that_learns(run: str, taken: bool, tmp_path: Path) -> None:
    """Steps of steps were priced apart: six of them spent 2.7 times the cap of one run."""
    session = SmallRun(tmp_path, small_config(), "a").party_session("a")
    session.duty.run, session.duty.has_learnt = run, lambda step: False
    word = Message(run, 0, AGGREGATOR, "a", "status", {}, {"state": "learning", "reason": "levels"})
    with pytest.raises(party_session.LearningFirst) if taken else nullcontext():
        session.take(word)
