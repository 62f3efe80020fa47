"""The ServerApp of a job: an aggregator whose transport is Flower's Grid. No Strategy, no
simulation runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from homo_dp.core.errors import MessageError
from homo_dp.transport.flower.client_app import RECORD
from homo_dp.transport.flower.envelopes import Answer, SealedQuestion
from homo_dp.transport.flower.grid import LOST_AFTER, Fleet

log = logging.getLogger(__name__)

Aggregate = Callable[[Fleet, Mapping[str, Any]], None]
_LIVES: Final = 2 * LOST_AFTER  # seconds that Flower keeps a question


def server_app(aggregate: Aggregate) -> ServerApp:
    """A ServerApp that runs `aggregate` with the fleet and the run's config."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator,unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        aggregate(GridFleet(grid), context.run_config)

    return app


class GridFleet:
    """Flower's Grid as the transport sees it: sealed messages in a ConfigRecord."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> list[int]:
        """The nodes that are connected."""
        return list(self._grid.get_node_ids())

    def push(self, questions: Sequence[tuple[int, SealedQuestion]]) -> list[str | None]:
        """Send questions; the ids under which their answers come."""
        messages = [
            Message(
                RecordDict({RECORD: ConfigRecord(question.fields())}),
                dst_node_id=node,
                message_type=MessageType.TRAIN if question.sealed else MessageType.QUERY,
                ttl=_LIVES,
            )
            for node, question in questions
        ]
        tickets = list(self._grid.push_messages(messages))
        return (
            [ticket or None for ticket in tickets]
            if len(tickets) == len(messages)
            else [None] * len(messages)
        )

    def pull(self, tickets: Sequence[str]) -> list[tuple[str, Answer | None]]:
        """The answers that have come."""
        found: list[tuple[str, Answer | None]] = []
        for reply in self._grid.pull_messages(list(tickets)) if tickets else ():
            found.append((reply.metadata.reply_to_message_id, _answer(reply)))
        return found


def _answer(reply: Message) -> Answer | None:
    if reply.has_error():
        log.info("node %d gave no answer: code %d", reply.metadata.src_node_id, reply.error.code)
        return None
    try:
        return Answer.of(dict(reply.content.config_records[RECORD]))
    except (MessageError, KeyError) as error:
        log.warning("node %d: %s", reply.metadata.src_node_id, error)
        return None
