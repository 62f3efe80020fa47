"""Runs on their way to MLflow: a spool, and beside it a process of its own that sends it.

A process and not a thread: importing MLflow and drawing plots take seconds of Python, and would
hold up training.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homo_dp.config.addresses import masked, without_secrets
from homo_dp.core.files import open_private
from homo_dp.tracking.mlflow.spool import ADDRESS, LOG, Spool, State, discard, spool_name
from homo_dp.tracking.mlflow.uris import absolute, is_local

log = logging.getLogger(__name__)

# How long the end of a run waits for its store: a file of this machine may first need its tables
# made.
LOCAL_SECONDS, REMOTE_SECONDS = 60.0, 10.0


class RunLog:
    """Records what happens in the runs of one store. No method raises; only ``close`` waits, for
    a limited time.
    """

    def __init__(self, uri: str, experiment: str, unsent: Path) -> None:
        self.uri, self.unsent = uri, unsent
        self.runs: Mapping[str, str] = {}
        self._seconds = LOCAL_SECONDS if is_local(uri) else REMOTE_SECONDS
        self._spool: Spool | None = None
        self._sender: subprocess.Popen[bytes] | None = None
        self._warned = False
        try:
            self._spool = Spool((unsent / spool_name()).resolve(), absolute(uri), experiment)
            self._sender = self._start(self._spool.folder)
        except OSError as error:
            self._warn(f"cannot be used ({error}); training goes on without it")

    def add(self, op: str, **fields: Any) -> None:
        """Append one line for the store; store.py lists the operations."""
        if self._spool is not None:
            try:
                self._spool.add(op, **fields)
            except (OSError, ValueError) as error:
                self._warn(f"cannot be told ({error}); training goes on")

    def keep(self, path: Path) -> str | None:
        """Hold on to a file for sending; None if there is no such file."""
        with contextlib.suppress(OSError):
            return self._spool.keep(path) if self._spool is not None else None
        return None

    @property
    def folder(self) -> Path | None:
        """Where the spool is."""
        return None if self._spool is None else self._spool.folder

    def close(self) -> bool:
        """Let the rest be sent; True if the store has all of it, else one warning says where it
        is kept.
        """
        spool, sender, self._spool, self._sender = self._spool, self._sender, None, None
        if spool is None:
            return False
        with contextlib.suppress(OSError):
            spool.close()
        if not spool.used:
            _stop(sender)
            discard(spool.folder)
            return True
        told = _answer(sender, self._seconds)
        if told is None:
            self._warn(self._why(spool.folder, sender))
            return False
        self.runs = told["runs"]
        for reason in told["refused"]:
            self._warn(f"refused a part of the run ({reason})")
        return True

    def _why(self, folder: Path, sender: subprocess.Popen[bytes] | None) -> str:
        send = "python -m homo_dp.tracking.mlflow.sender"
        kept = f"the run is kept in {self.unsent} and goes with the next run, or with {send}"
        if sender is not None and sender.poll() is None and State.load(folder).error is None:
            return (
                f"is slow; what it has not taken yet is being sent in the background; {kept} "
                f"{self.unsent}"
            )
        return f"{State.load(folder).error or 'cannot be reached'}; {kept} {self.unsent}"

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        with open(folder / LOG, "w", opener=open_private) as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "homo_dp.tracking.mlflow.sender", "--follow", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                # which only this user can read, and no file keeps
                env={**os.environ, ADDRESS: absolute(self.uri)},
            )

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "tracking.uri=%s: %s",
                masked(self.uri),
                without_secrets(" ".join(reason.split()), self.uri),
            )


def _answer(sender: subprocess.Popen[bytes] | None, seconds: float) -> dict[str, Any] | None:
    """What the sender says at its end: the ids of the runs; None if it was not done in time."""
    if sender is None:
        return None
    text, end = b"", time.monotonic() + seconds
    pipe = sender.stdout
    while pipe is not None and (left := end - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        part = os.read(pipe.fileno(), 1 << 16)
        text += part
        if not part:
            break
    with contextlib.suppress(ValueError):
        told: dict[str, Any] = json.loads(text)
        return told
    return None


def _stop(sender: subprocess.Popen[bytes] | None) -> None:
    if sender is not None:
        sender.terminate()
        sender.communicate()
