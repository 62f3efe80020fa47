"""A run on Flower that is stopped in the middle of rounds and run again: one release for one
charge, whatever is asked.

The parties are real processes behind their sockets, the aggregator is the one that a ServerApp
runs; Flower itself is left out (tests/flower has it), so that every update can be looked at as it
comes.
"""

import hashlib
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.console.screen import Screen
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.runs.aggregator_process import AggregatorProcess
from homo_dp.transport.flower import grid
from homo_dp.transport.flower.grid import GridTransport
from homo_dp.transport.sealing import Sealer
from tests.processes.parts import PARTIES, RUN, Cluster, ledger_rows
from tests.processes.zygote import Zygote
from tests.transport.flower.fleets import SocketFleet


class Stopped(Exception):
    """What `flwr stop` is to a ServerApp: it is gone, with the update that it had just got."""


class Watched(GridTransport):
    """Notes every update that comes, and goes down with one of them."""

    def __init__(
        self,
        fleet: SocketFleet,
        sealer: Sealer,
        seen: dict[tuple[str, int], set[str]],
        stop_at: int,
    ) -> None:
        super().__init__(fleet, RUN, sealer)
        self.last_words = 30.0
        self._seen, self._left = seen, stop_at

    def receive(self, timeout: float) -> Message | None:
        message = super().receive(timeout)
        if message is not None and message.kind == "update":
            content = b"".join(
                tensor.numpy().tobytes() for _, tensor in sorted(message.tensors.items())
            )
            self._seen[message.sender, message.round].add(hashlib.sha256(content).hexdigest())
            self._left -= 1
            if self._left == 0:
                raise Stopped
        return message


@pytest.mark.parametrize("weights", ["kept", "lost"])
def test_stopped_and_run_again(
    tmp_path: Path, zygote: Zygote, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "ASK_AGAIN", 0.3)
    monkeypatch.setattr(grid, "_UNKNOWN", 0.3)
    with Cluster(tmp_path, rounds=3, zygote=zygote) as cluster:
        sockets = {number: tmp_path / f"{name}.sock" for number, name in enumerate(PARTIES)}
        for number, name in enumerate(PARTIES):
            cluster.configs[name]["transport"] = {
                "kind": "flower",
                "flower": {"socket": str(sockets[number])},
            }
            cluster.start(name)
        cluster.change(AGGREGATOR, "transport", kind="flower")
        config = load_config(None, cluster.configs[AGGREGATOR])
        seen: dict[tuple[str, int], set[str]] = defaultdict(set)

        def run(stop_at: int) -> None:
            def transport(_: Config, sealer: Sealer, __: Path) -> Watched:
                return Watched(SocketFleet(sockets), sealer, seen, stop_at)

            AggregatorProcess(config, Screen(quiet=True), transport).run()

        for stop_at in (1, 2, 4):  # in the first round, there again, and in the second
            with pytest.raises(Stopped):
                run(stop_at)
            killed = cluster.processes["party_2"]
            killed.send_signal(signal.SIGKILL)
            killed.wait(30)
            cluster.start("party_2")
        if weights == "lost":
            # An aggregator without memory begins the run anew, with a round that its parties have
            # charged.
            for path in (tmp_path / "state-aggregator" / RUN).iterdir():
                path.unlink() if path.is_file() else None
        run(stop_at=0)
        assert {
            name: code for name, code in cluster.wait().items() if name != AGGREGATOR
        } == dict.fromkeys(PARTIES, 0)
        for name in PARTIES:
            rows = ledger_rows(tmp_path / name / "ledger.sqlite")
            assert [row.round for row in rows] == [1, 2, 3]  # each round was charged once
            # and one update of it ever left
            assert all(len(seen[name, number]) == 1 for number in (1, 2, 3))
