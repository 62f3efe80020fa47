"""Sends spools to their MLflow stores: ``python -m homo_dp.tracking.mlflow.sender FOLDER...``.

Every run starts one for itself and goes on without it. By hand it sends what earlier runs could
not: ``python -m homo_dp.tracking.mlflow.sender out/indicator_unsent``, where the store has a
password with ``MLFLOW_TRACKING_URI`` set to its whole address.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from homo_dp.config.addresses import without_secrets
from homo_dp.core.heavy_imports import quick_imports
from homo_dp.tracking.mlflow.environment import set_defaults
from homo_dp.tracking.mlflow.spool import (
    ADDRESS,
    CLOSE,
    LINES,
    State,
    address_of,
    discard,
    locked,
    opening,
    read_lines,
    unsent,
)
from homo_dp.tracking.mlflow.store import MlflowStore, first_line

POLL_SECONDS = 0.02
LONGEST_PAUSE = 5.0
POLITENESS = 5  # niceness of a sender: training goes first where cores are short
FOLLOW = "--follow"
ANSWER = 1  # the file number on which a run hears from its sender


def main(arguments: Sequence[str] | None = None) -> int:
    """Send the spools named on the command line; 0 if all of them were sent."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    os.umask(0o077)  # MLflow makes the store and its files: they hold a party's numbers
    set_defaults()
    if given[:1] == [FOLLOW]:
        return _follow(Path(given[1]))
    if not given or given[0].startswith("-"):
        print(__doc__)
        return 0 if given[:1] in (["--help"], ["-h"]) else 2
    sent = [_send_by_hand(folder) for name in given for folder in _spools(Path(name))]
    if not sent:
        print("nothing to send")
    return 0 if all(sent) else 1


def send(folder: Path, alive: Callable[[], bool]) -> bool:
    """Send a spool until it is closed (or its writer is gone), trying again while the writer
    lives.
    """
    state, store, first = State.load(folder), None, opening(folder)
    uri = address_of(folder)
    if uri is None:
        state.error = (
            f"{first['uri']} has a password, which is kept nowhere; set {ADDRESS} to the whole "
            "address"
        )
        state.save(folder)
        return False
    pause, failed_at = 0.1, -math.inf
    while True:
        lines = read_lines(folder, state.offset)
        closed = bool(lines) and lines[-1][0]["op"] == CLOSE
        over = closed or not alive()
        if over and state.error is not None and time.monotonic() - failed_at < 2 * LONGEST_PAUSE:
            return False
        try:
            if store is None:
                store = MlflowStore(folder, uri, first["experiment"], state)
                with quick_imports():
                    _prepare()
            store.apply(lines)
            if over:
                store.end_all("FAILED", int(time.time() * 1000))
                state.done, state.error = True, None
                state.save(folder)
                return True
            state.error, pause = None, 0.1
            time.sleep(POLL_SECONDS)
        except Exception as error:  # whatever the store does, the lines stay
            logging.getLogger(__name__).warning("%s", without_secrets(first_line(error), uri))
            state.error, failed_at = without_secrets(explain(error), uri), time.monotonic()
            state.save(folder)
            _wait(pause, folder, state.offset, alive)
            pause = min(2 * pause, LONGEST_PAUSE)


def explain(error: BaseException) -> str:
    """Why a store could not be used, in a few words.

    >>> explain(ConnectionError("HTTPConnectionPool(host='a'): Max retries exceeded with url: /api"))
    'does not answer'
    """
    text = first_line(error)
    silent = ("Max retries exceeded", "Connection refused", "timed out", "Failed to resolve")
    return "does not answer" if any(mark in text for mark in silent) else text


def _follow(folder: Path) -> int:
    """Send a run's spool while the run goes on, then what earlier runs left."""
    # Ctrl-C is for the training; its end comes as a line
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(POLITENESS)
    answer = os.dup(ANSWER)
    # what a library prints goes to the log, and not to a run that may be gone
    os.dup2(sys.stderr.fileno(), ANSWER)
    writer = opening(folder)["pid"]
    with locked(folder) as mine:
        if not mine or not send(folder, lambda: os.getppid() == writer):
            return 1
        state = State.load(folder)
        discard(folder)
        _tell(state, answer)
    for other in unsent(folder.parent):
        if other != folder:
            _send_left_behind(other)
    return 0


def _tell(state: State, answer: int) -> None:
    """Say to the training process, if it still listens, where its run is; it does not wait for
    what follows.
    """
    with contextlib.suppress(OSError):
        os.write(answer, json.dumps({"runs": state.runs, "refused": state.refused}).encode())
    os.close(answer)


def _send_left_behind(folder: Path) -> bool:
    with locked(folder) as mine:
        sent = mine and send(folder, lambda: False)
    if sent:
        discard(folder)
    return sent


def _send_by_hand(folder: Path) -> bool:
    state = State.load(folder)
    state.error = None
    state.save(folder)
    sent = _send_left_behind(folder)
    reason = "" if sent else f" ({State.load(folder).error or 'another process has it'})"
    print(f"{folder}: {'sent' if sent else 'not sent'}{reason}")
    return sent


def _spools(path: Path) -> list[Path]:
    return [path] if (path / LINES).is_file() else unsent(path)


def _prepare() -> None:
    """Import what the end of the run will need, while it trains."""
    from homo_dp.tracking.mlflow.model_log import warm_up
    from homo_dp.tracking.report.plots import learning_curves

    warm_up()
    learning_curves([{"round": 1, "test_loss": 1.0}])


def _wait(seconds: float, folder: Path, offset: int, alive: Callable[[], bool]) -> None:
    """Pause, but not past the end of the run."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and alive():
        lines = read_lines(folder, offset)
        if lines and lines[-1][0]["op"] == CLOSE:
            return
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
