"""What a run tells whoever keeps its history: the start, each round, the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Tracker(Protocol):
    """A keeper of run histories. No call may stop or slow training, whatever happens to the keeper."""

    def start(self, params: Mapping[str, str], tags: Mapping[str, str], parties: Sequence[str]) -> None:
        """A run begins, with its resolved config, flattened."""

    def log_round(self, number: int, metrics: Mapping[str, float], parties: Mapping[str, Mapping[str, float]]) -> None:
        """A round is over: the numbers of the whole run, and of each party."""

    def finish(self, status: str, artifacts: Sequence[Path], tags: Mapping[str, str]) -> None:
        """The run is over (``FINISHED``, ``FAILED`` or ``KILLED``) and left these files."""


class NoTracker:
    """Keeps nothing."""

    def start(self, params: Mapping[str, str], tags: Mapping[str, str], parties: Sequence[str]) -> None: ...

    def log_round(
        self, number: int, metrics: Mapping[str, float], parties: Mapping[str, Mapping[str, float]]
    ) -> None: ...

    def finish(self, status: str, artifacts: Sequence[Path], tags: Mapping[str, str]) -> None: ...
