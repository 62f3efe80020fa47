"""Brings a question from Flower to the party on this machine, and its answer back; starts the
party if need be.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from homo_dp.core.errors import ConfigError, MessageError
from homo_dp.core.files import make_folder, write_whole
from homo_dp.transport.flower.envelopes import Answer, SealedQuestion, receive_letter, send_letter
from homo_dp.transport.flower.unix_sockets import connect, has_ended, note_end

log = logging.getLogger(__name__)

_MOST_BYTES: Final = 1 << 32
_STARTS_WITHIN: Final = 20.0  # seconds until the answer says that the party is still starting
READS_WITHIN: Final = 40.0  # seconds for the party to answer; it says itself when it needs longer


@dataclass(frozen=True)
class PartyPlace:
    """Where a node's party is: its socket and, if the node may start it, the command for that
    and its log.
    """

    socket: Path
    command: tuple[str, ...] = ()
    log: Path | None = None
    # of a party that serves: what differs in this run, for a file in its folder
    layer: bytes | None = None
    at_once: int = 1  # how many runs such a party serves at the same time

    @classmethod
    def of(cls, config: str, run: str) -> PartyPlace:
        """The place that a party's config names for a run; a party that is not there is started
        from that config.
        """
        import yaml

        from homo_dp.config.load import load_config
        from homo_dp.config.served_run import SERVED, asker_key, served_layer

        settings = load_config(config)
        name, named, rules = settings.party.name, settings.federation.run, settings.party.serve
        if name is None:
            raise ConfigError(
                f"{config}: party.name is not given; use the name under which the aggregator "
                "lists it"
            )
        folder = settings.party.folder / run
        command = [
            sys.executable,
            "-m",
            "homo_dp.party",
            "--params",
            "transport.kind=flower",
            "--config",
            config,
        ]
        if named == run:
            place = socket_of(settings.transport.flower.socket, settings.party.folder, run)
            return cls(place, tuple(command), folder / "party.log")
        if named is not None or rules is None:
            raise ConfigError(f"{config}: federation.run={named}: the ServerApp runs {run}")
        # Seals are opened by the party alone, which believes the asker that its own config has for
        # this name.
        layer = yaml.safe_dump(served_layer(settings, run, asker_key(settings, run))).encode()
        command += ["--config", str(folder / SERVED)]
        return cls(
            socket_of(None, settings.party.folder, run),
            tuple(command),
            folder / "party.log",
            layer,
            rules.at_once,
        )


def socket_of(given: str | None, state: Path, run: str) -> Path:
    """The socket of a party: the one its config names, else one in the run's private folder."""
    return Path(given) if given is not None else state / run / "party.sock"


def carry(question: SealedQuestion, place: PartyPlace) -> Answer:
    """Hand a question to the party; its answer, or what is the matter with it in one word."""
    try:
        with connect(place.socket, READS_WITHIN) as connection:
            return exchange(connection, question)
    except OSError:
        if not place.command:
            return Answer("failed")
    return _started(question, place)


def exchange(connection: socket.socket, question: SealedQuestion) -> Answer:
    """Hand a question to whoever is behind a socket; the answer."""
    send_letter(connection, question)
    return Answer.of(receive_letter(connection, _MOST_BYTES))


def _started(question: SealedQuestion, place: PartyPlace) -> Answer:
    """Start the party and hand it the question as soon as it listens."""
    if has_ended(place.socket, question.job):
        return Answer("ended")
    if place.layer is not None and _others(place) >= place.at_once:
        return Answer("other_run")
    process = _start(place)
    deadline = time.monotonic() + _STARTS_WITHIN
    while time.monotonic() < deadline:
        code = process.poll()
        with (
            contextlib.suppress(OSError, MessageError),
            connect(place.socket, READS_WITHIN) as connection,
        ):
            return exchange(connection, question)
        if code is not None:
            if code > 0:
                note_end(place.socket, question.job)
                log.warning("party ended with code %d; see %s", code, place.log)
            return Answer("ended" if code > 0 else "starting" if code else "over")
        time.sleep(0.05)
    return Answer("starting")


def _others(place: PartyPlace) -> int:
    """How many other runs have a process here, by the notes that `_start` left: names of runs
    are free to make up.
    """
    if place.log is None:
        return 0
    notes = place.log.parent.parent.glob("*/party.pid")
    return sum(_is_party(note) for note in notes if note.parent != place.log.parent)


def _is_party(note: Path) -> bool:
    try:
        return b"homo_dp.party" in Path(f"/proc/{int(note.read_text())}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


def _start(place: PartyPlace) -> subprocess.Popen[bytes]:
    """The party as a process of its own, which outlives this one."""
    if place.log is None:
        raise ConfigError("log: a party that is started here needs a file for what it says")
    make_folder(place.log.parent)
    if place.layer is not None:
        from homo_dp.config.served_run import SERVED

        write_whole(place.log.parent / SERVED, place.layer, "settings of a served run")
    descriptor = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "ab") as said:
        process = subprocess.Popen(
            place.command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    place.log.with_suffix(".pid").write_text(f"{process.pid}\n")
    return process
