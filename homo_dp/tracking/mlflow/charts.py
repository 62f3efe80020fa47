"""Which numbers of a run become charts in MLflow, and under which names.

MLflow draws charts in the order of their names. What a reader looks for first has the names that
come first (`accuracy`, `auc`, `epsilon`), and a number that never changes is a parameter, because a
chart of it is a flat line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {"test_acc": "accuracy", "test_auc": "auc"}
FIRST_COLUMNS = ("epsilon", "accuracy", "auc")
# charts, even of a single round
CHANGING = ("epsilon", "accuracy", "auc", "train_", "test_", "seconds")
CONSTANT = ("rounds_done", "test_majority")  # told once, at the end


def chart_names(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a run under the names of their charts, as short as a column of MLflow's table
    shows them; in full they are in the indicators.

    >>> chart_names({"test_acc": 0.912345, "epsilon": 3.99181, "seconds": 0.123456})
    {'accuracy': 0.9123, 'epsilon': 3.992, 'seconds': 0.123456}
    """
    return {NAMES.get(name, name): _short(name, value) for name, value in metrics.items()}


def _short(name: str, value: Any) -> Any:
    """Four significant digits of what the first columns show, as on the screen."""
    shown = NAMES.get(name, name) in FIRST_COLUMNS and isinstance(value, float)
    return float(f"{value:.4g}") if shown else value


class Steady:
    """Holds back numbers that have been the same in all rounds of a run so far, such as the
    noise that is added.
    """

    def __init__(self) -> None:
        self._held: dict[str, list[tuple[int, float]]] = {}

    def charted(self, step: int, metrics: Mapping[str, float]) -> dict[int, dict[str, float]]:
        """What is to be drawn now, by round: these numbers, and those held back that have changed
        just now.

        >>> steady = Steady()
        >>> steady.charted(1, {"epsilon": 1.0, "clip_norm": 0.5})
        {1: {'epsilon': 1.0}}
        >>> steady.charted(2, {"epsilon": 2.0, "clip_norm": 0.4})
        {1: {'clip_norm': 0.5}, 2: {'epsilon': 2.0, 'clip_norm': 0.4}}
        """
        drawn: dict[int, dict[str, float]] = {}
        now: dict[str, float] = {}
        for name, value in metrics.items():
            held = self._held.setdefault(name, []) if not name.startswith(CHANGING) else None
            if held is None or (held and held[-1][0] < 0):  # a chart already
                now[name] = value
            elif not held or held[0][1] == value:
                held.append((step, value))
            else:
                for before, former in held:
                    drawn.setdefault(before, {})[name] = former
                self._held[name] = [(-1, value)]
                now[name] = value
        return drawn | {step: now} if now else drawn

    def constants(self) -> dict[str, float]:
        """The numbers that never changed."""
        return {name: held[0][1] for name, held in self._held.items() if held[0][0] >= 0}
