"""What a party says beside its answers: the ledger's head with every message, one word a
refusal, and only so many.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from homo_dp.core.errors import DataError, MessageError
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.crash_state import PartyFiles, PartyMemory
from homo_dp.federation.sessions.party_messages import PartyMessages, refusal_word
from homo_dp.federation.sessions.plan_schema import PlanRefused
from homo_dp.privacy.errors import BudgetExceeded, LedgerError, PrivacyError
from homo_dp.privacy.ledger import Ledger
from homo_dp.transport.memory import MemoryHub
from tests.federation.small import RUN


def messages(
    hub: MemoryHub, state: PartyFiles | PartyMemory, ledger: Ledger | None, most: int = 2
) -> PartyMessages:
    return PartyMessages(RUN, "a", ledger, hub.end("a"), state, most)


def sent(hub: MemoryHub) -> Message:
    return hub.to_aggregator.popleft()


def test_every_message_says_where_the_ledger_ends(tmp_path: Path) -> None:
    hub = MemoryHub()
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        end = ledger.head()
        speaks = messages(hub, PartyMemory(), ledger)
        speaks.join(3, 100)
        speaks.refuse(1, "weights")
        speaks.publish(
            Message(RUN, 1, "a", "aggregator", "refused", {}, {"reason": "skipped"}), None
        )
        found = [sent(hub) for _ in range(3)]
    assert [message.info["ledger_head"] for message in found] == [
        {"count": end.count, "hash": end.hash}
    ] * 3
    assert (found[0].kind, found[0].round, found[0].info["rows"]) == ("join", 3, 100)
    assert (found[1].kind, found[1].info["reason"]) == ("refused", "weights")
    assert found[2].info["reason"] == "skipped"
    assert not hub.to_aggregator


def test_refusals_are_counted_over_restarts_and_then_stop(tmp_path: Path) -> None:
    hub = MemoryHub()
    first = messages(hub, PartyFiles(tmp_path), None)
    first.refuse(1, "weights")
    again = replace(first, state=PartyFiles(tmp_path))
    again.refuse(1, "weights")
    with pytest.raises(PrivacyError, match=r"max_refusals=2: .* refused, the last as 'round_over'"):
        again.refuse(1, "round_over")
    assert len(hub.to_aggregator) == 2  # the third was not sent


def test_a_refused_plan_is_not_counted(tmp_path: Path) -> None:
    hub, state = MemoryHub(), PartyMemory()
    messages(hub, state, None, most=0).refuse_plan(
        PlanRefused("caps", "train.rounds=9: is above party.caps")
    )
    assert (sent(hub).info["reason"], state.refusals) == ("caps", 0)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (BudgetExceeded("x"), "budget"),
        (LedgerError("x"), "ledger"),
        (PrivacyError("x"), "privacy"),
        (MessageError("x"), "weights"),
        (DataError("a.csv: column 'age' row 17: 'secret' is not a number"), "plan"),
        (PlanRefused("columns", "data.columns.age"), "columns"),
    ],
)
def test_the_word_of_an_error_holds_nothing_of_its_text(error: Exception, word: str) -> None:
    assert refusal_word(error) == word
