"""How every run is tracked, ended and shown: a training, statistics, a party or an aggregator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from homo_dp.config.addresses import masked
from homo_dp.runs.run_facts import failure_tags
from homo_dp.tracking.mlflow.tracker import open_tracker
from homo_dp.tracking.tracker import NoTracker, Tracker

if TYPE_CHECKING:
    from pathlib import Path

    from homo_dp.config.schema import Config
    from homo_dp.console.screen import Screen

UNLISTED = "histogram_"  # files of these roles are counted on the screen, not listed


@dataclass(frozen=True)
class Table:
    """A table of the screen."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Ending:
    """What a run leaves, and what is shown of it.

    Attributes:
        statement: the privacy statement.
        files: the files by what they are.
        guarantee: the lines that state the guarantee.
        summary: what ``--json`` prints beside files and MLflow run.
        numbers: the last figures, for the tracker.
        tables: shown first.
        warnings: shown after the tables; None stands for nothing to warn of.
        lines: shown before the guarantee, likewise.
        interrupted: whether only a part of the rounds was run.
    """

    statement: Mapping[str, Any]
    files: Mapping[str, Path]
    guarantee: Sequence[str]
    summary: Mapping[str, Any]
    numbers: Mapping[str, float] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    warnings: Sequence[str | None] = ()
    lines: Sequence[str | None] = ()
    interrupted: bool = False


class Life:
    """One run from its first to its last call to the tracker.

    Guarantees:
        - whatever ends the block, the tracked run ends too: finished, failed with its reason, or
          interrupted.
    """

    def __init__(self, config: Config, screen: Screen) -> None:
        self.config = config
        self.screen = screen
        self.tracker: Tracker = open_tracker(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.tracker.finish("KILLED", {}, {})
        elif error is not None:
            self.tracker.finish("FAILED", {}, failure_tags(self.config, error))

    def stop_tracking(self) -> None:
        """Track no more of this run."""
        self.tracker.finish("KILLED", {}, {})
        self.tracker = NoTracker()

    def track_end(self, ending: Ending) -> str | None:
        """Tell the tracker that the run is over.

        Returns:
            Where the run can be looked up; None if nowhere.
        """
        status = "KILLED" if ending.interrupted else "FINISHED"
        tags = {"statement": str(ending.statement["statement"])}
        return self.tracker.finish(status, ending.files, tags, ending.numbers)

    def finish(self, ending: Ending) -> None:
        """Tell the tracker that the run is over, and show what it left."""
        tracked = self.track_end(ending)
        show(self.screen, ending, tracked, masked(self.config.tracking.uri))


def show(screen: Screen, ending: Ending, tracked: str | None, store: str) -> None:
    """Show the end of a run.

    Args:
        screen: where it is shown.
        ending: what the run left.
        tracked: the run's name at the tracker; None if it has none.
        store: the address of the tracker.
    """
    for table in ending.tables:
        screen.table(table.title, table.columns, table.rows)
    for warning in filter(None, ending.warnings):
        screen.warn(warning)
    for line in filter(None, (*ending.lines, *ending.guarantee)):
        screen.line(line)
    listed = {name: path for name, path in ending.files.items() if not name.startswith(UNLISTED)}
    for name, path in listed.items():
        screen.line(f"{name}: {path}")
    others = [str(path) for name, path in ending.files.items() if name not in listed]
    if others:
        screen.line(f"pictures: {len(others)} files beside it, such as {others[0]}")
    if tracked is not None:
        screen.line(f"MLflow run: {tracked} in {store}")
    files = {name: str(path) for name, path in ending.files.items()}
    screen.summary({**ending.summary, "files": files, "mlflow_run": tracked})
