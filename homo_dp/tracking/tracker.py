"""The interface by which a run reports its start, each round and its end to a tracker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

PREDICTIONS, INDICATORS, MODEL, CONFIG, LEDGER, NORMS = (
    "predictions",
    "indicators",
    "model",
    "config",
    "ledger",
    "gradient_norms",
)


class Tracker(Protocol):
    """Keeps the history of runs. No call may stop or slow down training, whatever happens to the
    store behind it.
    """

    def start(
        self,
        params: Mapping[str, str],
        tags: Mapping[str, str],
        parties: Sequence[str],
        mark: str | None = None,
        dataset: Mapping[str, Any] | None = None,
    ) -> None:
        """A run begins, with its resolved config, flattened; one with the ``mark`` of an earlier
        run goes on in it.

        ``dataset`` is what is publicly known about the data: name, digest of the description,
        source.
        """

    def log_round(
        self, number: int, metrics: Mapping[str, float], parties: Mapping[str, Mapping[str, float]]
    ) -> None:
        """A round is over: the numbers of the whole run, and of each party."""

    def draw(self, record: Mapping[str, Any]) -> None:
        """Training is over and its files are being written: plots of these numbers can be begun."""

    def finish(
        self,
        status: str,
        files: Mapping[str, Path],
        tags: Mapping[str, str],
        metrics: Mapping[str, float] | None = None,
    ) -> str | None:
        """The run is over (``FINISHED``, ``FAILED`` or ``KILLED``) and left these files, by what
        they are.

        Returns where the run can be looked up, None if nowhere (yet). A second call does nothing.
        """


class NoTracker:
    """Keeps nothing."""

    def start(
        self,
        params: Mapping[str, str],
        tags: Mapping[str, str],
        parties: Sequence[str],
        mark: str | None = None,
        dataset: Mapping[str, Any] | None = None,
    ) -> None: ...

    def log_round(
        self, number: int, metrics: Mapping[str, float], parties: Mapping[str, Mapping[str, float]]
    ) -> None: ...

    def draw(self, record: Mapping[str, Any]) -> None: ...

    def finish(
        self,
        status: str,
        files: Mapping[str, Path],
        tags: Mapping[str, str],
        metrics: Mapping[str, float] | None = None,
    ) -> str | None: ...
