"""What a process needs to go on after a crash: safetensors files with their facts as JSON, each the
old or the new one.

A run's folder belongs to one process at a time and can be read by its owner only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field, Strict

from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import InputError, printable
from homo_dp.core.files import (
    make_folder,
    open_private,
    shared_with_writers,
    sweep,
    sync_directory,
    write_file,
)
from homo_dp.core.untrusted_text import Foreign, Schema
from homo_dp.federation.mechanisms.base import Mechanism, Weights
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.tensors import write_body
from homo_dp.federation.sessions.aggregator import Aggregator
from homo_dp.federation.sessions.fit_state import FitState
from homo_dp.privacy.ledger.outbox import MemoryOutbox, Outbox

log = logging.getLogger(__name__)
FINAL = "final.safetensors"  # in a party's run folder once its run is over
Facts = dict[str, Any]
Row = dict[str, Any]


class RunFolder:
    """The folder in which one process keeps the state of one run; held by a lock that dies with
    the process.
    """

    def __init__(self, state_dir: str | Path, run: str) -> None:
        self.path = Path(state_dir) / run
        with explained(self.path):
            make_folder(self.path)
            if (reason := shared_with_writers(self.path)) is not None:
                raise InputError(f"state={self.path} {reason}")
            sync_directory(self.path.parent)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise InputError(
                f"state={self.path}: another process runs from it; stop that one first"
            ) from None
        sweep(self.path)

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)


def write_state(
    path: Path, tensors: Mapping[str, Any], facts: Facts, *, point: str, sync: bool = True
) -> None:
    """Replace ``path`` in one step by tensors and facts; ``point`` names the crash points.

    With ``sync`` it is on disk when this returns; without, a killed process has kept it but a power
    cut may lose it.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_state(Path(folder) / "s", {"w": torch.ones(2)}, {"round": 3}, point="doc")
    ...     read_state(Path(folder) / "s")
    ({'w': tensor([1., 1.])}, {'round': 3})
    """
    first, *pieces = write_body(tensors)
    header = {
        "__metadata__": {"facts": json.dumps(facts, allow_nan=False)},
        **json.loads(bytes(first[8:])),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with explained(path):
        write_file(path, len(text).to_bytes(8, "little") + text, *pieces, point=point, sync=sync)


def read_state(path: Path) -> tuple[Weights, Facts] | None:
    """What ``write_state`` wrote; None if there is no such file."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    foreign = state_file(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            text = (file.metadata() or {}).get("facts")
            # not a dict
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (
        OSError,
        ValueError,
        RuntimeError,
        TypeError,
        OverflowError,
        MemoryError,
        SafetensorError,
    ) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        foreign.refuse(f"cannot be read ({printable(reason)[:200]})")
    if text is None:
        foreign.refuse("has no facts beside its tensors")
    return tensors, foreign.check(dict[str, Any], foreign.json(text))


def state_file(path: Path) -> Foreign:
    """How a file of a run's folder is named in errors, and what helps."""
    return Foreign(f"state={path}", "restore it, or start a new federation.run")


def part(tensors: Weights, prefix: str) -> Weights:
    """The tensors below ``prefix.``, without it."""
    start = prefix + "."
    return {
        name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)
    }


def below(prefix: str, tensors: Mapping[str, Any]) -> Weights:
    """The tensors with ``prefix.`` before their names."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def aggregator_tensors(aggregator: Aggregator, weights: Weights | None = None) -> Weights:
    """All tensors of an aggregator between two rounds; ``weights`` stand in for weights that
    wait for their charge.
    """
    return {
        **below("weights", weights or aggregator.weights),
        **below("server_optimizer", aggregator.server_optimizer.state()),
        **below("average", aggregator.average.state()),
        **below("mechanism", aggregator.mechanism.state()),
        **below("best", aggregator.best or {}),
    }


def restore_aggregator(aggregator: Aggregator, tensors: Weights, round_number: int) -> None:
    """Put an aggregator where ``aggregator_tensors`` left it, after ``round_number`` rounds."""
    weights, best = part(tensors, "weights"), part(tensors, "best")
    wanted = {name: (tensor.shape, tensor.dtype) for name, tensor in aggregator.weights.items()}
    known = [
        {name: (tensor.shape, tensor.dtype) for name, tensor in each.items()}
        for each in (weights, best)
    ]
    if known[0] != wanted or known[1] not in ({}, wanted):
        raise InputError(
            "state: its weights are not those of this model; restore it, or start a new "
            "federation.run"
        )
    try:
        aggregator.server_optimizer.restore(part(tensors, "server_optimizer"))
        aggregator.average.restore(part(tensors, "average"))
        aggregator.mechanism.restore(part(tensors, "mechanism"))
    except (KeyError, IndexError, TypeError, RuntimeError) as error:
        raise InputError(
            f"state: does not fit this run ({type(error).__name__}: {error}); restore it, or start "
            "a new federation.run"
        ) from error
    aggregator.weights = weights
    aggregator.best = best or None
    aggregator.round = round_number


class _FitFacts(Schema):
    steps_done: Annotated[int, Strict(), Field(ge=0)]


class FitStates:
    """A party's optimiser after each round it fitted, written before that round is charged.

    Losing it costs some accuracy and no privacy, so the last one need not survive a power cut.

    Guarantees:
        - ``load(before)`` is the state after the last round before ``before`` that was kept and not
          discarded;
        - rounds that were fitted but never charged are discarded at a start, so nothing of them can
          leave later.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rounds(self) -> list[int]:
        """The rounds that are kept, in order."""
        with explained(self._folder):
            names = [path.name for path in self._folder.glob("fit-*.safetensors")]
        numbers = [name[4:-12] for name in names]  # others may have put files of other names there
        return sorted(
            int(number)
            for number in numbers
            if number.isascii() and number.isdigit() and len(number) < 19
        )

    def save(self, round_number: int, state: FitState) -> None:
        """Keep the state after a round."""
        tensors = {
            **below("optimizer", state.optimizer),
            **below("mechanism", state.mechanism),
            "generator": state.generator,
        }
        write_state(
            self._path(round_number),
            tensors,
            {"steps_done": state.steps_done},
            point="fit_state",
            sync=False,
        )

    def load(self, before: int, fit: LocalFit, mechanism: Mechanism) -> int:
        """Put fit and mechanism where they were before a round; the round they are then after, 0
        before the first.
        """
        known = [number for number in self.rounds() if number < before]
        if not known:
            return 0
        try:
            found = read_state(self._path(known[-1]))
        except InputError as error:
            log.warning("the optimiser starts afresh: %s", error)
            return known[-1]
        if found is None:
            return 0
        tensors, facts = found
        foreign = state_file(self._path(known[-1]))
        steps_done = foreign.check(_FitFacts, facts).steps_done
        optimizer, own = part(tensors, "optimizer"), part(tensors, "mechanism")
        try:
            FitState(optimizer, own, tensors["generator"], steps_done).put(fit, mechanism)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            foreign.refuse(f"does not fit this model ({type(error).__name__})")
        return known[-1]

    def discard(self, round_number: int) -> None:
        """Forget the state after a round."""
        with explained(self._folder):
            self._path(round_number).unlink(missing_ok=True)

    def _path(self, round_number: int) -> Path:
        return self._folder / f"fit-{round_number}.safetensors"


class _RoundRow(Schema):
    """What a resumed run reads of a row; the rest is for the reader of the indicators."""

    round: Annotated[int, Strict(), Field(ge=0)]
    replied: list[str] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)


class RowLog:
    """What is reported of each round, one JSON line each: a file that only grows, so that long runs
    stay cheap.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = RowLog(Path(folder) / "rounds.jsonl")
    ...     log.append({"round": 1, "seconds": 0.5})
    ...     log.append({"round": 2, "seconds": 0.4})
    ...     log.load(1)
    [{'round': 1, 'seconds': 0.5}]
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, row: Row) -> None:
        """Add the row of a round."""
        with explained(self._path), open(self._path, "ab", opener=open_private) as file:
            file.write(b"\n" + json.dumps(row, allow_nan=False).encode())

    def load(self, last: int) -> list[Row]:
        """The rows up to a round, the newest of each; a line that a crash cut short is left out."""
        if not self._path.exists():
            return []
        found: dict[int, Row] = {}
        with explained(self._path):
            lines = self._path.read_bytes().split(b"\n")
        foreign = state_file(self._path)
        for line in lines:
            with contextlib.suppress(InputError):
                row = foreign.json(line)
                found[foreign.check(_RoundRow, row).round] = row
        return [found[number] for number in sorted(found) if number <= last]


class PartyFiles:
    """All that a party keeps of a run, in its folder: plan, outbox, optimiser states, rows,
    refusals, final weights.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.outbox = Outbox(folder / "outbox")
        self.fits = FitStates(folder)
        self.rows = RowLog(folder / "rounds.jsonl")
        found = read_state(folder / "refusals.safetensors")
        self.refusals = 0 if found is None else int(found[1]["refusals"])

    def plan(self) -> dict[str, Any] | None:
        """The plan that was agreed to; None before."""
        found = read_state(self._folder / "plan.safetensors")
        return None if found is None else found[1]["plan"]

    def keep_plan(self, plan: dict[str, Any], rounds: int) -> None:
        """Keep the plan that was agreed to, and how many rounds the whole run has."""
        facts = {"plan": plan, "rounds": rounds}
        write_state(self._folder / "plan.safetensors", {}, facts, point="party_plan")

    def found(self) -> dict[str, Any] | None:
        """What was privately estimated in the first rounds; None before it came."""
        found = read_state(self._folder / "found.safetensors")
        return None if found is None else found[1]["found"]

    def keep_found(self, found: dict[str, Any]) -> None:
        """Keep what was privately estimated."""
        write_state(self._folder / "found.safetensors", {}, {"found": found}, point="party_found")

    def final(self) -> Weights | None:
        """The final weights; None before the end."""
        found = read_state(self._folder / FINAL)
        return None if found is None else found[0]

    def keep_final(self, weights: Mapping[str, Any]) -> None:
        """Keep the final weights."""
        write_state(self._folder / FINAL, weights, {}, point="party_final")

    def count_refusal(self) -> int:
        """One more message was refused; how many by now."""
        self.refusals += 1
        facts = {"refusals": self.refusals}
        write_state(
            self._folder / "refusals.safetensors", {}, facts, point="party_refusals", sync=False
        )
        return self.refusals

    def keep_fit(self, round_number: int, state: FitState) -> None:
        """Keep the optimiser after a round, before that round is charged."""
        crash_point("party.before_fit_state")
        self.fits.save(round_number, state)


class SumFiles:
    """What masked sums must not forget (keys, secrets, signed sets), one file a name in a folder of
    their own.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = SumFiles(Path(folder) / "sums")
    ...     files.put("agreed 1/update", b"set")
    ...     SumFiles(Path(folder) / "sums").get("agreed 1/update"), files.get("keys")
    (b'set', None)
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with explained(folder):
            make_folder(folder)
            sync_directory(folder.parent)
            sweep(folder)

    def get(self, name: str) -> bytes | None:
        """What was put under this name."""
        with explained(self._path(name)), contextlib.suppress(FileNotFoundError):
            return self._path(name).read_bytes()
        return None

    def put(self, name: str, content: bytes) -> None:
        """Keep it, on disk when this returns; the whole of it or nothing."""
        with explained(self._path(name)):
            write_file(self._path(name), content, point="sums")

    def _path(self, name: str) -> Path:
        return self._folder / quote(name, safe="")


class PartyMemory:
    """The same for a party that lives as long as its run: it is never started again, so little
    has to be kept.
    """

    keep_fit = None

    def __init__(self, outbox: MemoryOutbox | None = None) -> None:
        self.outbox = MemoryOutbox() if outbox is None else outbox
        self.fits = NoFitStates()
        self.rows = NoRows()
        self.refusals = 0

    def plan(self) -> dict[str, Any] | None:
        """None: a run in memory begins at its beginning."""
        return None

    def keep_plan(self, plan: dict[str, Any], rounds: int) -> None:
        """The session holds it."""

    def found(self) -> dict[str, Any] | None:
        """None: a run in memory begins at its beginning."""
        return None

    def keep_found(self, found: dict[str, Any]) -> None:
        """The session holds it."""

    def final(self) -> Weights | None:
        """None: a run in memory begins at its beginning."""
        return None

    def keep_final(self, weights: Mapping[str, Any]) -> None:
        """The session holds them."""

    def count_refusal(self) -> int:
        """One more message was refused; how many by now."""
        self.refusals += 1
        return self.refusals


def forget_before(state: PartyFiles | PartyMemory, run: str, number: int) -> None:
    """Forget a party's messages and optimiser states of rounds that the aggregator has left
    behind.
    """
    for key in state.outbox.pending():
        of_run, of_round, _ = key.split("/")
        if of_run == run and int(of_round) < number:
            state.outbox.remove(key)
    for kept in state.fits.rounds():
        # the state before the round that is open is where a fit that failed goes back to
        if kept < number - 1:
            state.fits.discard(kept)


class NoFitStates:
    """No optimiser states: a party in memory goes on from what it has in memory."""

    def rounds(self) -> list[int]:
        """None is kept."""
        return []

    def load(self, before: int, fit: LocalFit, mechanism: Mechanism) -> int:
        """Nothing to put back; the party is before its first round."""
        return 0

    def discard(self, round_number: int) -> None:
        """Nothing to forget."""


class NoRows:
    """No rows of rounds on disk."""

    def append(self, row: Row) -> None:
        """The session holds it."""

    def load(self, last: int) -> list[Row]:
        """None is kept."""
        return []


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Errors of the disk as one line that says how to go on."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"state={error.filename or path}: {error.strerror or error}; make room or give the "
            "permission, then start the same command again: the run continues"
        ) from error
