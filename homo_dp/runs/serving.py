"""A party that stays up and takes runs as they come: `homo-dp party --serve`.

It looks for runs that call this party (transport/waiting_runs.py; on Flower, ClientApps call it)
and gives each a process of its own: the ordinary party process with that run's name. So a run that
fails, or that takes all memory it can get, stops no other run. After a crash a run goes on from its
folder and the ledger, as it does without serving.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from homo_dp.config.schema import Config
from homo_dp.config.served_run import SERVED, check_bounded, served_layer
from homo_dp.console.options import BUG, DONE, INTERRUPTED, REFUSED, Screen
from homo_dp.core.errors import ConfigError, InputError, TransportError, one_line
from homo_dp.core.event_log import REFUSED as TOLD_REFUSAL
from homo_dp.core.event_log import UNREACHED, about, read_events
from homo_dp.core.files import is_locked, make_folder, write_whole
from homo_dp.runs.processes import asker_sealers, check_bounds_source
from homo_dp.transport.waiting_runs import Call, FolderCalls, asker_of

if TYPE_CHECKING:
    from homo_dp.transport.nats.waiting_runs import NatsCalls

LOOK: Final = 1.0  # seconds between looks for new runs, and for runs that ended
FINAL: Final = "final.safetensors"
_STARTS: Final = 3  # in a row, of one run that ended by a signal or a bug
# Seconds until a run that failed is taken again: doubled with each failure in a row, since what a
# process cannot start with (a table, a key) stays so for longer.
_FIRST_REST, _LAST_REST = 5.0, 600.0
# The most after a failure of the transport, which passes without anybody changing this party.
_LAST_REST_OF_TRANSPORT: Final = 30.0
# Seconds after which a process that fails was well before, and waited for a share, a server or an
# aggregator: it is taken again at once, as the others pay for rounds without it.
_LASTED: Final = 60.0
_ENDS_WITHIN: Final = 10.0


class PartyServer:
    """Starts a party process for each run that calls, under the rules of the party's own config.

    Guarantees:
        - a process is started only for a run in which a listed asker's signature was seen, and
          under a name it may use; on Flower for the name alone, and it then believes that asker and
          nobody else;
        - all runs together are bounded, by a lifetime budget or by an operator who sees every plan;
        - caps, budget and approval are checked by that process, by the same code as for a single
          run;
        - a run that was under way when this process or its own was killed goes on, also if nothing
          calls just then;
        - a run that is over or was refused is not started again while this process lives.
    """

    def __init__(self, config: Config, given: Sequence[str], screen: Screen) -> None:
        if config.party.serve is None:
            raise ConfigError(
                "party.serve: is not given; say who may ask and whether plans wait for you: "
                "`serve: {approve: ask}`"
            )
        check_bounded(config)
        check_bounds_source(config)
        transport = config.transport
        if transport.kind not in ("directory", "nats", "flower"):
            raise ConfigError(
                f"transport.kind={transport.kind}: --serve looks for runs in a folder, on NATS or "
                "on Flower"
            )
        if transport.kind == "flower" and transport.flower.socket is None:
            raise ConfigError(
                "transport.flower.socket: is not given; name the socket that the SuperNode's "
                "--node-config names, or let the SuperNode start this party (docs/flower.md)"
            )
        self.config = config
        self.rules = config.party.serve
        self.screen = screen
        self.sealers = asker_sealers(config)
        self.name = str(config.party.name)
        self._given = tuple(given)  # options of the command line that name the config
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, int] = {}
        self._began: dict[str, float] = {}  # when the process of a run was started last
        self._settled: set[str] = set()
        self._rests: dict[str, float] = {}  # until when
        self._failures: dict[str, int] = {}  # in a row
        self._called: dict[str, None] = {}  # by ClientApps
        self._complained = ""
        self._folder_calls = FolderCalls(Path(transport.directory), self.name, self.sealers)
        self._queue: NatsCalls | None = None

    def run(self) -> int:
        """Serve until a signal comes; processes of runs are stopped with this one, and go on
        when it starts again.
        """
        about(party=self.name)
        make_folder(self.config.party.folder)
        with self._door():
            self.screen.line(
                f"{self.name} serves: approve={self.rules.approve}, {self.rules.at_once} at once"
            )
            try:
                while True:
                    self.turn()
                    time.sleep(LOOK)
            finally:
                self._stop()
                if self._queue is not None:
                    self._queue.close()

    def turn(self) -> None:
        """Take note of runs that ended, and start those that were under way and those that call."""
        for run, process in list(self._running.items()):
            if (code := process.poll()) is not None:
                self._ended(run, code)
                # after it: a ClientApp that asks meanwhile must not call what has just ended
                del self._running[run]
        underway = self._underway()
        elsewhere = {call.run for call in underway if is_locked(self._folder(call.run) / "lock")}
        free = self.rules.at_once - len(self._running) - len(elsewhere)
        for call in (*underway, *(self._calls() if free > 0 else ())):
            if free > 0 and call.run not in elsewhere and call.run not in self._running:
                try:
                    self._start(call)
                    free -= 1
                except (InputError, OSError) as error:  # such as a full disk: it costs this run
                    self._rest(call.run, f"cannot be started: {one_line(error)}")

    def _folder(self, run: str) -> Path:
        return self.config.party.folder / run

    def _underway(self) -> list[Call]:
        """The runs that were neither over nor refused when their process, or the server before this
        one, was killed.

        The process of one may still be there. On Flower such a run is called at once by the next
        ClientApp.
        """
        if self.config.transport.kind == "flower":
            return []
        names = sorted(path.parent.name for path in self.config.party.folder.glob(f"*/{SERVED}"))
        found = (
            (run, asker_of(run, self.sealers)) for run in names if not self._is_dealt_with(run)
        )
        return [Call(run, asker) for run, asker in found if asker is not None]

    def _calls(self) -> list[Call]:
        transport = self.config.transport
        try:
            if transport.kind == "directory":
                return self._folder_calls.look(self._is_known)
            if transport.kind == "flower":
                # A ClientApp may have called it once more while its process was started, which has
                # ended since.
                called, self._called = [run for run in self._called if not self._is_known(run)], {}
                return [
                    Call(run, asker)
                    for run in called
                    if (asker := asker_of(run, self.sealers)) is not None
                ]
            found = self._nats_calls().look(self._is_known)
        except TransportError as error:
            if str(error) != self._complained:
                self._complained = str(error)
                self.screen.warn(str(error))
            return []
        self._complained = ""
        return found

    def _nats_calls(self) -> NatsCalls:
        """The connection over which runs are looked for, made when it is first needed."""
        if self._queue is None:
            from homo_dp.transport.nats.queue import needs_nats

            with needs_nats():
                from homo_dp.transport.nats.waiting_runs import NatsCalls
            self._queue = NatsCalls(self.config.transport.nats, self.name, self.sealers)
        return self._queue

    @contextlib.contextmanager
    def _door(self) -> Iterator[None]:
        flower = self.config.transport.flower
        if self.config.transport.kind != "flower" or flower.socket is None:
            yield
            return
        from homo_dp.transport.flower.relay import socket_of
        from homo_dp.transport.flower.serving_socket import ServingSocket
        from homo_dp.transport.sealing import largest_sealed

        most = 4 * max(largest_sealed(sealer.limits) for _, sealer in self.sealers.values())
        place = Path(flower.socket)
        listening = ServingSocket(
            place,
            flower.group,
            most,
            lambda run: socket_of(None, self.config.party.folder, run),
            self._word,
        )
        try:
            yield
        finally:
            listening.close()

    def _word(self, run: str) -> str:
        """What a ClientApp is told of a run that nobody listens for; one that may have a process
        gets it.
        """
        if asker_of(run, self.sealers) is None:
            return "failed"
        if run in self._running:
            return "starting"
        if self._is_known(run):
            return "over" if (self._folder(run) / FINAL).exists() else "ended"
        if len(self._running) >= self.rules.at_once:
            return "other_run"
        self._called[run] = None
        return "starting"

    def _is_known(self, run: str) -> bool:
        """Whether a call of a run is known already: it has a process, or its end is on disk."""
        return self._is_dealt_with(run) or (self._folder(run) / FINAL).exists()

    def _is_dealt_with(self, run: str) -> bool:
        """Whether a run has a process, is over, was refused, or failed a short time ago."""
        return (
            run in self._running
            or run in self._settled
            or time.monotonic() < self._rests.get(run, 0.0)
        )

    def _start(self, call: Call) -> None:
        folder = self._folder(call.run)
        make_folder(folder)
        layer = served_layer(
            self.config, call.run, self.sealers[call.asker][1].allowed["aggregator"].line
        )
        write_whole(folder / SERVED, yaml.safe_dump(layer).encode(), "settings of a served run")
        command = [
            sys.executable,
            "-m",
            "homo_dp.party",
            *self._given,
            "--config",
            str(folder / SERVED),
        ]
        self._starts[call.run] = self._starts.get(call.run, 0) + 1
        self._running[call.run] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self._began[call.run] = time.monotonic()
        self._say(call.run, f"started as process {self._running[call.run].pid}")

    def _ended(self, run: str, code: int) -> None:
        again = code < 0 or code == BUG
        if again and self._starts[run] < _STARTS:
            self._say(run, f"ended with code {code}; it is started again")
            return
        # a run that its operator stopped is continued by the next server
        if not again and code != INTERRUPTED:
            (self._folder(run) / SERVED).unlink(missing_ok=True)
        if code in (DONE, INTERRUPTED) or (code == REFUSED and self._was_refused(run)):
            self._settled.add(run)
            self._say(
                run,
                "is over" if code == DONE else f"ended with code {code}; homo-dp status says why",
            )
            return
        self._starts[run] = 0
        self._rest(run, f"ended with code {code}; homo-dp status says why")

    def _was_refused(self, run: str) -> bool:
        """Whether the budget does not allow a run: a ledger that could not be written, as on a full
        disk, has the same exit code.
        """
        last = self._last_event(run)
        return last is None or last.startswith(TOLD_REFUSAL)

    def _last_event(self, run: str) -> str | None:
        """What a run's process said of its end; None where it said nothing."""
        return next(
            (str(event.get("event")) for event in read_events(self._folder(run))[-1:]), None
        )

    def _rest(self, run: str, what: str) -> None:
        """Leave a run that failed alone for a while, longer after each failure in a row."""
        now = time.monotonic()
        lasted = now - self._began.get(run, now) >= _LASTED
        failures = self._failures[run] = 1 if lasted else self._failures.get(run, 0) + 1
        of_transport = (self._last_event(run) or "").startswith(UNREACHED)
        most = _LAST_REST_OF_TRANSPORT if of_transport else _LAST_REST
        seconds = min(most, _FIRST_REST * 2.0 ** min(failures - 1, 10))
        self._rests[run] = now + seconds
        self._say(run, f"{what}; taken again after {seconds:g} s, if it calls")

    def _say(self, run: str, text: str) -> None:
        about(run=run)
        self.screen.line(f"run {run}: {text}")
        about(run=None)

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
