"""The two sessions of small federations over the memory transport, as a simulation runs them."""

from collections.abc import Callable, Mapping

from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.aggregator import Aggregator, RoundReport
from homo_dp.federation.sessions.aggregator_session import AggregatorSession, RunMemory
from homo_dp.federation.sessions.ledger_heads import HeadsInMemory
from homo_dp.federation.sessions.members import Members, SessionRules
from homo_dp.transport.memory import MemoryHub
from tests.federation.small import RUN

Handler = Callable[[Message], Message | None]


def run_in_memory(
    aggregator: Aggregator,
    handlers: Mapping[str, Handler],
    stop_on_missing: bool = True,
    least: int | None = None,
) -> list[RoundReport]:
    """All rounds with parties that are functions of weights; through bytes, as between machines."""
    hub, reports = MemoryHub(aggregator.mechanism.kinds, through_bytes=True), list[RoundReport]()
    ends = {name: hub.end(name) for name in handlers}
    members = Members(RUN, list(handlers), hub.aggregator(), HeadsInMemory(), lambda text: None)
    rules = SessionRules(len(handlers) if least is None else least, 60.0, stop_on_missing)

    def report(found: RoundReport, row: dict[str, object]) -> dict[str, object]:
        reports.append(found)
        return row

    session = AggregatorSession(aggregator, {}, members, rules, RunMemory(), report)
    for _ in session.rounds():
        while hub.to_parties and not hub.to_aggregator:
            message = hub.to_parties.popleft()
            answer = None if message.kind == "plan" else handlers[message.recipient](message)
            if answer is not None:
                ends[message.recipient].send(answer)
    for message in hub.to_parties:
        if message.kind != "plan":  # sent again to whoever was never drawn
            handlers[message.recipient](message)
    return reports
