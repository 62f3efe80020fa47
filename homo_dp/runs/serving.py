"""A party that stays up and takes runs as they come: `homo-dp party --serve`.

It looks for runs that call this party (transport/calls.py) and gives each a process of its own, the ordinary party
process with that run's name. So a run that fails, or takes all memory it can get, takes no other run with it, and what
survives a crash is what survives it everywhere: the run's folder and the ledger.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from homo_dp.config.schema import Config
from homo_dp.config.served import SERVED, served_layer
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError, TransportError
from homo_dp.core.events import about
from homo_dp.core.files import make_folder, write_whole
from homo_dp.runs.processes import asker_sealers, party_sealer
from homo_dp.transport.calls import Call, directory_calls

LOOK: Final = 1.0  # seconds between looks for new runs, and for runs that ended
FINAL: Final = "final.safetensors"
_STARTS: Final = 3  # of one run that ended by a signal or a bug; what a user can mend is not tried again
_ENDS_WITHIN: Final = 10.0


class PartyServer:
    """Starts a party process for each run that calls, under the rules of the party's own config.

    Guarantees:
        - a process is started only for a run in which a listed asker's signature was seen, and under a name it may use;
        - caps, budget and approval are checked by that process, by the same code as for a single run;
        - a run that is over, was refused or ended with an error is not started again while this process lives.
    """

    def __init__(self, config: Config, given: Sequence[str], screen: Screen) -> None:
        if config.party.serve is None:
            raise ConfigError(
                "party.serve: is not given; say who may ask and whether plans wait for you: `serve: {approve: ask}`"
            )
        if config.transport.kind not in ("directory", "nats"):
            raise ConfigError(
                f"transport.kind={config.transport.kind}: --serve looks for runs in a folder or on NATS; on Flower the "
                "SuperNode starts the party of each run (docs/flower.md)"
            )
        self.config = config
        self.rules = config.party.serve
        self.screen = screen
        self.name = party_sealer(config).name
        self.sealers = asker_sealers(config)
        self._given = tuple(given)  # options of the command line that name the config
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, int] = {}
        self._settled: set[str] = set()
        self._complained = ""

    def run(self) -> int:
        """Serve until a signal comes; processes of runs are stopped with this one, and go on when it starts again."""
        about(party=self.name)
        make_folder(self.config.party.folder)
        self.screen.line(f"{self.name} serves: approve={self.rules.approve}, {self.rules.at_once} at once")
        try:
            while True:
                self.turn()
                time.sleep(LOOK)
        finally:
            self._stop()

    def turn(self) -> None:
        """Take note of runs that ended, and start those that call."""
        for run, process in list(self._running.items()):
            if (code := process.poll()) is not None:
                del self._running[run]
                self._ended(run, code)
        if len(self._running) < self.rules.at_once:
            for call in self._calls():
                if len(self._running) >= self.rules.at_once:
                    break
                self._start(call)

    def _calls(self) -> list[Call]:
        transport = self.config.transport
        try:
            if transport.kind == "directory":
                return list(directory_calls(Path(transport.directory), self.name, self.sealers, self._is_known))
            from homo_dp.transport.nats.calls import nats_calls

            found = nats_calls(transport.nats, self.name, self.sealers, self._is_known)
        except TransportError as error:
            if str(error) != self._complained:
                self._complained = str(error)
                self.screen.warn(str(error))
            return []
        self._complained = ""
        return found

    def _is_known(self, run: str) -> bool:
        if run in self._running or run in self._settled:
            return True
        if (self.config.party.folder / run / FINAL).exists():
            self._settled.add(run)
        return run in self._settled

    def _start(self, call: Call) -> None:
        folder = self.config.party.folder / call.run
        make_folder(folder)
        layer = served_layer(self.config, call.run, self.sealers[call.asker][1].allowed["aggregator"].line)
        write_whole(folder / SERVED, yaml.safe_dump(layer).encode(), "settings of a served run")
        command = [sys.executable, "-m", "homo_dp.party", *self._given, "--config", str(folder / SERVED)]
        self._starts[call.run] = self._starts.get(call.run, 0) + 1
        self._running[call.run] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.screen.line(f"run {call.run}: started as process {self._running[call.run].pid}")

    def _ended(self, run: str, code: int) -> None:
        again = code < 0 or code == 1
        if code == 0 or not again or self._starts[run] >= _STARTS:
            self._settled.add(run)
        said = "is over" if code == 0 else f"ended with code {code}; homo-dp status says why"
        self.screen.line(f"run {run}: {said}")

    def _stop(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _ENDS_WITHIN
        for process in self._running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
