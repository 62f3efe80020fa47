"""How our pictures look: size, fonts, colours that people with any colour vision can tell apart,
PNG bytes.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette without its yellow, which is too light on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#888888"
WIDTH, HEIGHT, DPI = 7.2, 4.0, 110


def new_figure(
    rows: int = 1, columns: int = 1, height: float = HEIGHT, left: float = 0.11, below: float = 0.55
) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of axes, in reading order; ``left`` is a share of the width, ``below``
    is in inches.

    Margins are fixed: letting matplotlib find them draws every picture several times.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=left, right=0.97, bottom=below / height, top=1 - 0.4 / height, hspace=0.3, wspace=0.28
    )
    axes = list(grid.flat)
    for each in axes:
        each.grid(True, color="0.88", linewidth=0.8)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def widen_left(figure: Figure, axes: Axes) -> None:
    """Move the left edge of the axes so far in that their title and long tick labels are on the
    picture.
    """
    box = axes.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    missing = 6.0 - (box.x0 if box is not None else 6.0)  # pixels
    if missing > 0:
        figure.subplots_adjust(left=figure.subplotpars.left + missing / figure.bbox.width)


def png(figure: Figure) -> bytes:
    """The figure as PNG, without the date and version that would make every file different."""
    picture = io.BytesIO()
    quick = {"compress_level": 2}  # a tenth larger than the default, in a third of its time
    figure.savefig(picture, format="png", metadata={"Software": None}, pil_kwargs=quick)
    return picture.getvalue()


def whole_rounds(axes: Axes, rounds: list[int]) -> None:
    """An axis of rounds: whole numbers, from the first to the last."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlim(min(rounds) - 0.5, max(rounds) + 0.5)
    axes.set_xlabel("round")
