"""Where the seconds of a run go: functions are wrapped, and each second counts for the innermost
phase it is in.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from homo_dp.core.heavy_imports import quick_imports


class Phases:
    """Wall and CPU seconds by phase; the CPU is that of this process with all its threads, not
    of its children.
    """

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self._open: list[str] = ["rest"]
        self._since = time.perf_counter(), time.process_time()

    def watch(self, phase: str, owner: Any, *names: str) -> None:
        """Count the calls of these functions of a class or module for a phase."""
        for name in names:
            around(owner, name, functools.partial(self.enter, phase), self.leave)

    def enter(self, phase: str) -> None:
        """From now on, count for this phase."""
        self._count()
        self._open.append(phase)

    def leave(self) -> None:
        """Back to the phase before."""
        self._count()
        self._open.pop()

    def seconds(self) -> dict[str, float]:
        """Wall seconds of every phase so far, the longest first."""
        self._count()
        return dict(sorted(self.wall.items(), key=lambda entry: -entry[1]))

    def _count(self) -> None:
        now = time.perf_counter(), time.process_time()
        self.wall[self._open[-1]] += now[0] - self._since[0]
        self.cpu[self._open[-1]] += now[1] - self._since[1]
        self._since = now


def around(
    owner: Any, name: str, before: Callable[[], object], after: Callable[[], object] = lambda: None
) -> None:
    """Let something happen before and after every call of a function of a class or module."""
    work = getattr(owner, name)

    @functools.wraps(work)
    def framed(*arguments: Any, **named: Any) -> Any:
        before()
        try:
            return work(*arguments, **named)
        finally:
            after()

    setattr(owner, name, framed)


def watch_run(phases: Phases) -> None:
    """Wrap the parts of a training run; imports all of them, which counts as its own phase."""
    phases.enter("imports")
    with quick_imports():
        import homo_dp.privacy.engine.engine  # noqa: F401 (imported late by a run)
        from homo_dp.federation.mechanisms.dp_sgd import DpSgd
        from homo_dp.federation.mechanisms.local_fit import LocalFit
        from homo_dp.privacy.ledger import Ledger
        from homo_dp.runs import lifecycle, outputs, simulation
        from homo_dp.tracking.mlflow.tracker import MlflowTracker

    phases.leave()
    phases.watch("training", LocalFit, "train_round")
    phases.watch("reading", simulation, "load_federation")
    phases.watch("calibration", DpSgd, "plan")
    phases.watch("setup", DpSgd, "training")
    phases.watch(
        "ledger", Ledger, "__init__", "charge", "charged", "would_exceed", "extract", "spent"
    )
    phases.watch("evaluation", simulation.Simulation, "_report")
    phases.watch("screen", lifecycle, "show")
    phases.watch("files", outputs, "write_outputs")
    phases.watch("mlflow", MlflowTracker, "__init__", "start", "log_round", "finish")
