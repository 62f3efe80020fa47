"""What a run has to tell MLflow, as lines in a file beside its outputs until the store has taken
them.

The training process only appends lines; another process (sender.py) reads them and talks to the
store. So a store that is slow or down costs training nothing, and nothing is lost: what was not
sent stays here and goes with the next run. A password of the store's address is not among the
lines: whoever sends them has it from the environment.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from homo_dp.config.addresses import MASK, masked
from homo_dp.core.files import make_folder, open_private, write_file

LINES, STATE, LOCK, LOG, FILES = "lines.jsonl", "state.json", "lock", "sender.log", "files"
CLOSE = "close"
ADDRESS = "MLFLOW_TRACKING_URI"  # MLflow's own name for the address of its store

Line = dict[str, Any]


class Spool:
    """Appends what a run tells, a line at a time; for a full disk or a folder that is gone the
    caller warns.
    """

    def __init__(self, folder: Path, uri: str, experiment: str) -> None:
        self.folder = folder
        make_folder(folder.parent)
        folder.mkdir(mode=0o700)
        # closed by close
        self._file = open(folder / LINES, "a", encoding="utf-8", opener=open_private)  # noqa: SIM115
        # a file system without locks: then only what was closed is left behind
        with contextlib.suppress(OSError):
            # ends with this process, whose number another may have later
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self.used = False
        self._write(
            {"op": "open", "uri": masked(uri), "experiment": experiment, "pid": os.getpid()}
        )

    def add(self, op: str, **fields: Any) -> None:
        """Append one line; it is in the file when this returns."""
        self.used = True
        self._write({"op": op, "time": int(time.time() * 1000), **fields})

    def keep(self, path: Path) -> str | None:
        """Hold on to a file as it is now, although a later run may replace it; its name within
        the spool.
        """
        if not path.is_file():
            return None
        make_folder(self.folder / FILES)
        kept = self.folder / FILES / path.name
        kept.unlink(missing_ok=True)
        try:
            # outputs are replaced, never written into, so a second name is a copy
            os.link(path, kept)
        except OSError:
            shutil.copy2(path, kept)
        return f"{FILES}/{path.name}"

    def close(self) -> None:
        """Say that no more lines will come."""
        if not self._file.closed:
            self._write({"op": CLOSE, "time": int(time.time() * 1000)})
            self._file.close()

    def _write(self, line: Line) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        self._file.flush()


def spool_name() -> str:
    """A name for a new spool that sorts after all earlier ones, even if a killed process starts
    again at once.
    """
    moment = time.time_ns()
    # UTC never repeats an hour
    started = time.strftime("%Y%m%d-%H%M%S", time.gmtime(moment // 10**9))
    return f"{started}-{moment % 10**9:09d}-{secrets.token_hex(4)}"


@dataclass
class State:
    """How far a spool was sent; saved after every step, so that nothing is sent twice."""

    offset: int = 0
    experiment_id: str | None = None
    runs: dict[str, str] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    # runs in which an earlier or later process has a part
    shared: list[str] = field(default_factory=list)
    error: str | None = None
    refused: list[str] = field(default_factory=list)
    done: bool = False

    @staticmethod
    def load(folder: Path) -> State:
        """The state on disk, or a new one."""
        try:
            return State(**json.loads((folder / STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return State()

    def save(self, folder: Path) -> None:
        """Replace the state on disk."""
        write_file(
            folder / STATE, json.dumps(asdict(self)).encode(), point="spool_state", sync=False
        )


def read_lines(folder: Path, offset: int) -> list[tuple[Line, int]]:
    """The whole lines from an offset on, each with the offset after it."""
    found: list[tuple[Line, int]] = []
    with (folder / LINES).open("rb") as file:
        file.seek(offset)
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            offset += len(raw)
            found.append((json.loads(raw), offset))
    return found


def opening(folder: Path) -> Line:
    """The first line: which store and experiment, and who writes."""
    with (folder / LINES).open("rb") as file:
        line: Line = json.loads(file.readline())
    return line


def address_of(folder: Path) -> str | None:
    """The address of a spool's store, with its password from the environment; None if it is not
    there.

    Only an address that is the same but for passwords is taken: runs in one folder may go to
    different stores.
    """
    kept, given = str(opening(folder)["uri"]), os.environ.get(ADDRESS, "")
    if masked(given) == kept:
        return given
    return None if MASK in kept else kept


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold a spool, so that only one process sends it; False if another does."""
    with open(folder / LOCK, "w", opener=open_private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


@contextlib.contextmanager
def alone(parent: Path) -> Iterator[None]:
    """Wait until no other process that has to do with this folder is in such a block."""
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        # a file system without locks: then it is only very likely
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def unsent(parent: Path) -> list[Path]:
    """Spools that runs left behind in a folder, oldest first; not those of runs that are still
    going on.
    """
    try:
        folders = [folder for folder in parent.iterdir() if (folder / LINES).is_file()]
    except OSError:
        return []
    return sorted(
        (folder for folder in folders if _left_behind(folder)), key=lambda folder: folder.name
    )


def discard(folder: Path) -> None:
    """Remove a spool that was sent, and the folder of spools with the last of them."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def _left_behind(folder: Path) -> bool:
    try:
        opening(folder)
        with (folder / LINES).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 200))
            if f'{{"op": "{CLOSE}"'.encode() not in file.read():
                # which its writer holds as long as it lives
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, ValueError):
        return False
    return True
