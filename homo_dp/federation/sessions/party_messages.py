"""What a party tells the aggregator beside its answers: that it is there, what it refuses, where
its ledger ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.messages import AGGREGATOR, Json, Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.federation.sessions.crash_state import PartyFiles, PartyMemory
from homo_dp.federation.sessions.plan_schema import PlanRefused
from homo_dp.privacy.errors import BudgetExceeded, LedgerError, PrivacyError
from homo_dp.privacy.ledger import Ledger


@dataclass(frozen=True)
class PartyMessages:
    """Sends the messages of one party of a run.

    Guarantees:
        - every message carries the head of the party's ledger, so that a ledger that was rolled
          back is noticed;
        - at most ``max_refusals`` messages of a run are refused in words, restarts included.
    """

    run: str
    name: str
    ledger: Ledger | None
    transport: Transport
    state: PartyFiles | PartyMemory
    max_refusals: int

    def join(self, next_round: int, rows: int | None) -> None:
        """Tell the aggregator that this party is there, with its declared row count and the
        round it expects.
        """
        self._send("join", next_round, {"rows": rows})
        crash_point("party.joined")

    def refuse(self, number: int, word: str) -> None:
        """Refuse a message in one word, or raise for the operator once ``max_refusals`` were
        sent.
        """
        if self.state.count_refusal() > self.max_refusals:
            raise PrivacyError(
                f"party.caps.max_refusals={self.max_refusals}: that many messages of run "
                f"{self.run} were refused, the last as '{word}'; ask the aggregator's operator, "
                "and raise it to go on"
            )
        self._send("refused", number, {"reason": word})

    def refuse_plan(self, refusal: Exception) -> None:
        """Refuse the plan of the run; the party stops afterwards, so this is not counted."""
        self._send("refused", 0, {"reason": refusal_word(refusal)})

    def publish(self, answer: Message, releases: list[Json] | None) -> None:
        """Send the answer to a question; ``releases`` names what an update holds."""
        info = {**answer.info, "ledger_head": self._head()}
        if releases is not None:
            info["releases"] = releases
        self.transport.send(replace(answer, info=info))
        crash_point("party.after_send")

    def _send(self, kind: str, number: int, info: dict[str, Json]) -> None:
        info = {**info, "ledger_head": self._head()}
        self.transport.send(Message(self.run, number, self.name, AGGREGATOR, kind, {}, info))

    def _head(self) -> Json:
        if self.ledger is None:
            return None
        head = self.ledger.head()
        return {"count": head.count, "hash": head.hash}


def refusal_word(refusal: Exception) -> str:
    """The word that the aggregator is told about a refusal; the sentence stays at the party.

    Guarantees:
        - it does not depend on a row: an error that the party's rows cause in its own config is
          called a bad plan.

    >>> refusal_word(BudgetExceeded("round=3: too expensive")), refusal_word(ValueError("row 7"))
    ('budget', 'plan')
    """
    if isinstance(refusal, PlanRefused):
        return refusal.reason
    kinds = {
        BudgetExceeded: "budget",
        LedgerError: "ledger",
        PrivacyError: "privacy",
        MessageError: "weights",
    }
    return next((word for kind, word in kinds.items() if isinstance(refusal, kind)), "plan")
