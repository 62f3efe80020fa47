"""Progress in a notebook: one bar in the cell's output that moves, without widgets to install."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from homo_dp.console.screen import Progress, Screen, show


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookScreen(Screen):
    """A screen whose progress is HTML in the cell; lines go to stderr's place as before."""

    @contextmanager
    def progress(self, total: int | None, label: str = "round") -> Iterator[Progress]:
        """A bar that is drawn again at every step."""
        yield _Bar(total, label)


class _Bar:
    def __init__(self, total: int | None, label: str) -> None:
        self._total, self._label, self._done = total, label, 0
        self._shown: Any = None

    def advance(self, steps: int = 1, **figures: object) -> None:
        """Count on and draw the bar with the figures beside it."""
        from IPython.display import HTML, display

        self._done += steps
        page = HTML(bar(self._done, self._total, self._label, figures))
        if self._shown is None:
            self._shown = display(page, display_id=True)
        else:
            self._shown.update(page)


def bar(done: int, total: int | None, label: str, figures: dict[str, object]) -> str:
    """The bar as HTML.

    >>> bar(2, 4, "round", {"loss": 0.5})
    '<progress value="2" max="4"></progress> round 2 of 4, loss 0.5'
    """
    ends = f' max="{total}"' if total else ""
    words = [f"{label} {done}" + (f" of {total}" if total else "")]
    words += [f"{name} {show(value)}" for name, value in figures.items() if value is not None]
    return f'<progress value="{done}"{ends}></progress> ' + escape(", ".join(words))
