"""The round loop: broadcast, collect, combine, report. Any transport will do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.federation.sessions.aggregator import Aggregator, RoundReport

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundRules:
    """How long a round waits and how many parties it needs."""

    rounds: int
    min_parties: int = 1
    round_timeout: float | None = None
    stop_on_missing: bool = False


def run_rounds(
    aggregator: Aggregator,
    transport: Transport,
    rules: RoundRules,
    report: Callable[[RoundReport], None],
    charges: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Run the rounds that are left, then send everybody the final weights.

    ``charges`` is entered while a round's updates are asked for and left before they are used: where all parties are in
    this process, their charges become one commit (``Ledger.together``).
    """
    if aggregator.sums is not None:
        _drive(aggregator.sums.meeting(transport.send, rules.round_timeout or 3600.0), transport)
    while aggregator.round < rules.rounds:
        aggregator.start_round()
        with charges():
            for message in aggregator.broadcast():
                transport.send(message)
            collect(aggregator, transport, rules)
        if aggregator.sums is not None:
            _drive(aggregator.sums.opening(aggregator.round, transport.send, rules.round_timeout or 3600.0), transport)
        report(aggregator.finish_round())
    for message in aggregator.finished():
        transport.send(message)


def _drive(phase: Generator[float, Message | None, None], transport: Transport) -> None:
    """Run a phase that asks for the next message by yielding how long it waits."""
    try:
        seconds = next(phase)
        while True:
            message = transport.receive(timeout=seconds)
            seconds = phase.send(message)
            if message is not None:
                transport.done(message)
    except StopIteration:
        return


def collect(aggregator: Aggregator, transport: Transport, rules: RoundRules) -> None:
    """Take updates in until all have come or the time is over; raise if too few came."""
    advice = "start them again, or lower federation.min_parties"
    deadline = None if rules.round_timeout is None else time.monotonic() + rules.round_timeout
    while not aggregator.complete:
        left = 3600.0 if deadline is None else deadline - time.monotonic()
        message = transport.receive(timeout=left) if left > 0 else None
        if message is None:
            break
        try:
            aggregator.receive(message)
        except MessageError as refusal:
            log.warning("refused a message: %s", refusal)
            advice = f"refused a message: {refusal}"
        transport.done(message)
    missing = aggregator.waiting_for
    replied = len(aggregator.cohort) - len(missing)
    least = min(rules.min_parties, len(aggregator.cohort))
    if replied < least or (missing and rules.stop_on_missing):
        raise TransportError(
            f"round={aggregator.round}: {replied} of at least {least} parties replied, missing "
            f"{', '.join(missing)}; {advice}"
        )
