"""Both sides of a federation from Python, over a transport whose class is passed."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import homo_dp
from homo_dp.core.errors import ConfigError
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.privacy.ledger import Ledger
from homo_dp.transport.sealing import Sealer
from tests.processes.parts import PARTIES, Cluster


def own_transport() -> type:
    """A class that no import finds: queues of sealed bytes between threads."""
    boxes: dict[str, queue.Queue[bytes]] = {name: queue.Queue() for name in (AGGREGATOR, *PARTIES)}

    class Boxes:
        def __init__(self, options: Mapping[str, Any], run: str, sealer: Sealer) -> None:
            if options != {"colour": "blue"}:
                raise ValueError(f"options={options}")
            self._sealer = sealer

        def send(self, message: Message) -> None:
            boxes[message.recipient].put(b"".join(self._sealer.seal(message).pieces))

        def receive(self, timeout: float) -> Message | None:
            try:
                return self._sealer.open_bytes(
                    boxes[self._sealer.name].get(timeout=min(timeout, 60.0))
                )
            except queue.Empty:
                return None

        def done(self, message: Message) -> None:
            pass

        def close(self) -> None:
            pass

    return Boxes


def settings_of(cluster: Cluster, name: str) -> dict[str, Any]:
    return {**cluster.configs[name], "transport": {"options": {"colour": "blue"}}}


def test_a_federation_over_a_transport_of_ones_own(tmp_path: Path) -> None:
    cluster, boxes = Cluster(tmp_path, rounds=2), own_transport()
    with ThreadPoolExecutor(4) as pool:
        sides = {
            name: pool.submit(
                homo_dp.aggregator if name == AGGREGATOR else homo_dp.party,
                settings_of(cluster, name),
                transport=boxes,
                progress=False,
            )
            for name in (*PARTIES, AGGREGATOR)
        }
        models = {name: side.result(timeout=100) for name, side in sides.items()}
    privacy = models[AGGREGATOR].privacy
    assert privacy["private"]
    for name in PARTIES:
        assert models[name].privacy["private"]
        with Ledger(tmp_path / name / "ledger.sqlite") as ledger:
            assert [row.round for row in ledger.rows()] == [1, 2]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            lambda: type("Deaf", (), {"__init__": lambda self, options, run, sealer: None}),
            "has no send, receive",
        ),
        (own_transport, "options={}"),
        (lambda: "no.such:Class", "cannot be opened"),
        (lambda: "pigeon", "must be one of memory, directory, nats"),
    ],
)
def test_what_is_no_transport_is_refused(tmp_path: Path, own: Any, said: str) -> None:
    settings = {
        name: section
        for name, section in Cluster(tmp_path).configs["party_1"].items()
        if name != "transport"
    }
    with pytest.raises(ConfigError, match=said):
        homo_dp.party(settings, transport=own(), progress=False)
