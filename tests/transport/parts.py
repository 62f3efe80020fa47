"""Keys and messages that the transport tests share."""

from typing import Any

import torch

from homo_dp.federation.protocol.messages import AGGREGATOR, Limits, Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.transport.keys import KeyPair, new_key_pair
from homo_dp.transport.sealing import Sealer

WAIT = 30.0  # seconds, generous: tests end as soon as the message is there
PARTIES = ("bank_a", "bank_b", "bank.c-3")
PAIRS: dict[str, KeyPair] = {name: new_key_pair(name) for name in (AGGREGATOR, *PARTIES)}


def sealer(name: str, limits: Limits | None = None) -> Sealer:
    """The sealer of `name`: the aggregator knows all parties, a party knows the aggregator."""
    known = PARTIES if name == AGGREGATOR else (AGGREGATOR,)
    return Sealer(PAIRS[name], {other: PAIRS[other].public for other in known}, limits=limits)


def weights(
    party: str = "bank_a", round: int = 1, run: str = "demo", size: int = 3, kind: str = "weights"
) -> Message:
    return Message(run, round, AGGREGATOR, party, kind, {"w": torch.full((size,), float(round))})


def update(party: str = "bank_a", round: int = 1, run: str = "demo", size: int = 3) -> Message:
    info: dict[str, Any] = {"releases": ["update"]}
    return Message(
        run, round, party, AGGREGATOR, "update", {"w": torch.full((size,), float(round))}, info
    )


def join(party: str = "bank_a", count: int = 0, run: str = "demo") -> Message:
    head = {"count": count, "hash": f"{count:064x}"}
    return Message(run, 0, party, AGGREGATOR, "join", {}, {"rows": None, "ledger_head": head})


def got(end: Transport) -> Message:
    """The next message, which must come."""
    message = end.receive(WAIT)
    assert message is not None
    return message
