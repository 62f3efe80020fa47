"""What the aggregator believes of parties: the newest ledger head, and no refusal that is out of date."""

from pathlib import Path

import opacus  # noqa: F401  (takes seconds that no round of these tests should wait for)
import pytest

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message, encode
from homo_dp.federation.sessions.ledger_heads import LedgerHeads
from tests.federation.queues import SmallRun
from tests.federation.small import RUN, small_config


def test_the_head_after_the_last_round_is_kept_too(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "ab")
    run.start("a")
    run.start("b")
    run.aggregate()
    run.join()
    kept = LedgerHeads(tmp_path / "heads.json")
    for party in "ab":
        assert kept.newest(party) == run.of("update", party)[-1].info["ledger_head"]


@pytest.mark.parametrize("moment", [1, 2])  # in round 1 no ledger head tells that it is old: the update does
def test_an_old_refusal_does_not_keep_a_party_out_that_came_back(tmp_path: Path, moment: int) -> None:
    """Whoever carries messages can deliver one again: that a party once refused must not end the run."""
    run = SmallRun(tmp_path, small_config(train__rounds=3), "ab")
    old = Message(RUN, 0, "b", AGGREGATOR, "refused", {}, {"reason": "epsilon_cap", "ledger_head": None})
    original = run.members.transport.send

    def send(message: Message) -> None:
        if message.kind == "weights" and message.round == moment:
            run.post.box(AGGREGATOR).put(encode(old))
        original(message)

    run.members.transport.send = send  # type: ignore[method-assign]
    run.start("a")
    run.start("b")
    session = run.aggregate()
    run.join()
    assert [row["replied"] for row in session.rows] == [["a", "b"]] * 3
    assert session.members.refusals == {}
