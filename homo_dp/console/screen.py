"""What a user sees: lines, tables and progress, drawn by rich on a terminal and as plain lines
elsewhere.

With `--quiet` only errors are shown; with `--json` the final summary is the only thing on stdout.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from homo_dp.core.errors import InputError, printable
from homo_dp.core.event_log import log, note_event

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PLAIN_REPORTS = 10  # lines that a progress of known length prints without a terminal
SHORTEST_WAIT = 5.0  # seconds; a shorter remaining time is not shown


class Progress(Protocol):
    """Something that counts steps and shows figures beside them."""

    def advance(self, steps: int = 1, **figures: object) -> None:
        """Count `steps` more and show `figures` (loss=0.31, epsilon=1.2)."""


class Screen:
    """Lines, tables, progress and the final summary of one command."""

    def __init__(self, quiet: bool = False, as_json: bool = False, as_log: bool = False) -> None:
        self.quiet = quiet
        self.as_json = as_json
        self.as_log = as_log  # lines are events of the log, with time, level, run, round and party
        self._closed: set[str] = set()

    def line(self, text: str = "") -> None:
        """Print a line of ordinary output."""
        if self.as_log and text:
            log.info("%s", text)
            return
        note_event(text)
        if not self.quiet:
            self._write(sys.stderr if self.as_json else sys.stdout, text)

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        if self.as_log:
            log.warning("%s", text)
        elif not self.quiet:
            self._write(sys.stderr, f"warning: {' '.join(text.split())}")

    def notes(self, notes: Sequence[str]) -> None:
        """Print the notes of a translated configuration on stderr."""
        for note in notes if not self.quiet else ():
            if self.as_log:
                log.info("%s", note)
            else:
                self._write(sys.stderr, f"note: {note}")

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table; numbers are shown with four digits and set to the right."""
        if self.quiet:
            return
        cells = [[show(cell) for cell in row] for row in rows]
        if self.as_log:
            for row in cells:
                named = (f"{name} {cell}".strip() for name, cell in zip(header, row, strict=True))
                log.info("%s", f"{title}: {', '.join(named)}")
            return
        right = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(header))]
        stream = sys.stderr if self.as_json else sys.stdout
        if _is_terminal(stream) and _rich_table(stream, title, header, cells, right):
            return
        for text in _plain_table(title, header, cells, right):
            self._write(stream, text)

    @contextmanager
    def progress(self, total: int | None, label: str = "round") -> Iterator[Progress]:
        """Show how far the work is: a bar on a terminal, about ten lines elsewhere; None for an
        unknown total.
        """
        if self.quiet:
            yield _Silent()
        elif self.as_log:
            yield _Lines(self.line, total, label)
        elif _is_terminal(sys.stderr):
            with _rich_progress() as bar:
                yield _Bar(bar, bar.add_task(label, total=total, figures=""))
        else:
            yield _Lines(self._to_stderr, total, label)

    def summary(self, values: Mapping[str, Any]) -> None:
        """With --json, print the final summary as one JSON object on stdout; otherwise nothing."""
        if not self.as_json or "stdout" in self._closed:
            return
        text = json.dumps(values, allow_nan=False, default=str, ensure_ascii=False)
        try:
            say(text, sys.stdout, must=True)
        except BrokenPipeError:
            silence(sys.stdout)
        except OSError as error:
            raise InputError(
                f"stdout: {error.strerror}; the summary there is not whole, the files are"
            ) from error

    def _to_stderr(self, text: str) -> None:
        self._write(sys.stderr, text)

    def _write(self, stream: TextIO, text: str) -> None:
        """Print, and go on in silence if the reader has gone away (`| head`) or the disk is
        full: the work goes on.
        """
        name = "stdout" if stream is sys.stdout else "stderr"
        if name in self._closed:
            return
        try:
            say(text, stream)
        except BrokenPipeError:
            self._closed.add(name)
            silence(stream)


def say(text: str, stream: TextIO, *, must: bool = False) -> None:
    """Print a line in a form that any terminal can show; unless it ``must`` be printed, a full disk
    is ignored.

    What could not be written may stay in the stream's buffer and appear with a later line.
    """
    text = printable(text)
    try:
        print(text, file=stream, flush=True)
    except UnicodeEncodeError:
        say(text.encode("ascii", "backslashreplace").decode(), stream, must=must)
    except BrokenPipeError:
        raise
    except OSError:
        if must:
            raise


def silence(stream: TextIO) -> None:
    """Discard what is in a stream's buffer and what is still written to it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def hush(quiet: bool) -> None:
    """Show library warnings as one line each, or not at all."""
    if quiet:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        return
    warnings.formatwarning = _one_line
    handler = logging.StreamHandler()
    handler.setFormatter(Plain())
    logging.basicConfig(handlers=[handler])  # before a library sets its own


def show(value: object) -> str:
    """A cell or figure as text.

    >>> show(0.123456), show(True), show(None), show(12345.0), show(1e-5)
    ('0.1235', 'yes', '-', '12345', '1e-05')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"
    return printable(" ".join(str(value).split()))


def figures_text(figures: Mapping[str, object]) -> str:
    """Figures as `loss 0.31  epsilon 1.2`; those that are None are left out."""
    return "  ".join(
        f"{name.replace('_', ' ')} {show(value)}"
        for name, value in figures.items()
        if value is not None
    )


def duration(seconds: float) -> str:
    """How long something takes, as a person would say it.

    >>> duration(8.2), duration(95), duration(7300)
    ('8 s', '1 min 35 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s"
        if whole < 3600
        else f"{whole // 3600} h {whole % 3600 // 60} min"
    )


class Plain(logging.Formatter):
    """A log record as the screen shows a warning."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname.lower()}: {' '.join(record.getMessage().split())}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return printable(text)


class _Silent:
    def advance(self, steps: int = 1, **figures: object) -> None:
        """Show nothing."""


class _Lines:
    """Progress as a few lines: about ten for a known total, at every doubling otherwise."""

    def __init__(self, write: Callable[[str], None], total: int | None, label: str) -> None:
        self._write, self._total, self._label = write, total, label
        self._done, self._next = 0, 1
        # the first report: what went before it is setting up
        self._since: tuple[float, int] | None = None

    def advance(self, steps: int = 1, **figures: object) -> None:
        self._done += steps
        if self._done < self._next and self._done != self._total:
            return
        each = -(-self._total // PLAIN_REPORTS) if self._total else self._done
        self._next = self._done + max(each, 1)
        of = f"/{self._total}" if self._total is not None else ""
        texts = (f"{self._label} {self._done}{of}", figures_text(figures), self._left())
        self._write("  ".join(filter(None, texts)))

    def _left(self) -> str:
        """How long the rest takes, where it is long enough to wait for."""
        now = time.monotonic()
        if self._since is None:
            self._since = now, self._done
        start, before = self._since
        if self._total is None or self._done == before:
            return ""
        seconds = (now - start) / (self._done - before) * (self._total - self._done)
        return f"{duration(seconds)} left" if seconds >= SHORTEST_WAIT else ""


class _Bar:
    """Progress as a bar of rich."""

    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def advance(self, steps: int = 1, **figures: object) -> None:
        self._bar.update(self._task, advance=steps, figures=figures_text(figures))


def _one_line(message: Warning | str, category: type[Warning], *_: object, **__: object) -> str:
    return printable(f"warning: {' '.join(str(message).split())}") + "\n"


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _plain_table(
    title: str, header: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> Iterator[str]:
    widths = [max(len(row[i]) for row in [header, *cells]) for i in range(len(header))]
    if title:
        yield title
    for row in [header, *cells]:
        texts = (
            text.rjust(width) if side else text.ljust(width)
            for text, width, side in zip(row, widths, right, strict=True)
        )
        yield "  ".join(texts).rstrip()


def _rich_table(
    stream: TextIO,
    title: str,
    header: Sequence[str],
    cells: Sequence[Sequence[str]],
    right: Sequence[bool],
) -> bool:
    """Draw the table if it fits the width: as it is, with one word a line in its header, or
    transposed; else False.

    Left to itself, rich would cut off numbers."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(file=stream)
    (*names,), *turned = zip(header, *cells, strict=True)
    for head, rows, sides in (
        (header, cells, right),
        ([name.replace(" ", "\n") for name in header], cells, right),
        (names, turned, [False, *[True] * len(cells)]),
    ):
        columns = zip(head, *rows, strict=True)
        widths = [
            max(cell_len(line) for text in column for line in text.split("\n"))
            for column in columns
        ]
        if sum(widths) + 3 * len(widths) + 1 > console.width:
            continue
        table = Table(title=escape(title) or None, title_justify="left")
        for name, side in zip(head, sides, strict=True):
            table.add_column(escape(name), justify="right" if side else "left")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
        return True
    return False


def _rich_progress() -> RichProgress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class _WithFigures(Progress):
        """Figures stand on a line below the bar: beside it they leave no room at 80 columns."""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            for task in self.tasks:
                if task.fields["figures"]:
                    yield Text(task.fields["figures"])

    return _WithFigures(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
    )
