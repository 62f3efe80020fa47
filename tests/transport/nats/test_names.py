"""Subjects of a run: each party has its own, and none can be made to reach another's."""

from __future__ import annotations

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.transport.nats.names import Names


def test_who_may_publish_and_who_receives() -> None:
    names = Names("homo", "run.1", "bank.a")
    up = names.subject("bank.a", AGGREGATOR, "update")
    down = names.subject(AGGREGATOR, "bank.a", "weights")
    assert up == "homo.run=1.from.bank=a.update"
    assert down == "homo.run=1.to.bank=a.weights"
    assert (names.sender(up), names.sender(down)) == ("bank.a", AGGREGATOR)
    assert names.filter("bank.a") == "homo.run=1.to.bank=a.>"
    assert names.filter(AGGREGATOR) == "homo.run=1.from.>"


def test_dots_do_not_make_more_tokens() -> None:
    """A party called `a.b` must not receive what is for the party `a`."""
    one, other = Names("homo", "r", "a"), Names("homo", "r", "a.b")
    assert not other.subject(AGGREGATOR, "a.b", "plan").startswith(
        one.filter("a").removesuffix(">")
    )
    assert one.consumer("a") != other.consumer("a.b")
    assert one.inbox() != other.inbox()


def test_the_stream_takes_the_run_s_subjects_only() -> None:
    names = Names("homo", "r", AGGREGATOR)
    assert names.subjects(["plan"]) == ["homo.r.from.*.plan", "homo.r.to.*.plan"]
    assert names.stream == "homo-r"
