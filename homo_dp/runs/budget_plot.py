"""Pictures of budgets: epsilon against training length for several noise levels, and what runs
have spent.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from homo_dp.core.errors import InputError
from homo_dp.core.files import check_writable, write_whole
from homo_dp.privacy.accounting.accountants import epsilon_curve
from homo_dp.runs.budget_plan import BudgetPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg", "pdf")
POINTS = 48
FACTORS = (0.5, 0.7, 1.0, 1.5, 2.5)
# Okabe & Ito's palette, told apart by people with any colour vision; the plan itself is black.
COLOURS = ("#D55E00", "#E69F00", "#000000", "#0072B2", "#009E73")


def check_plot(path: str) -> None:
    """Refuse, before any work, a picture that could not be written."""
    if Path(path).suffix.lstrip(".").lower() not in FORMATS:
        raise InputError(f"--plot={path}: must end in .{', .'.join(FORMATS)}; name a picture file")
    check_writable(path, "--plot")


def draw(path: str, plan: BudgetPlan, noise_multiplier: float) -> None:
    """Write the picture, whole or not at all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullLocator

    figure = Figure(figsize=(7.2, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for factor, colour in zip(FACTORS, COLOURS, strict=True):
        _curve(axes, plan, noise_multiplier * factor, colour, planned=factor == 1.0)
    unit = "rounds" if plan.epochs is None else "epochs"
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_locator(NullLocator())
    if plan.epochs is None:
        # there is no half round
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlim(0, _length(plan))
    axes.set_xlabel(unit)
    axes.set_ylabel(f"epsilon at delta = {plan.delta:g}")
    small, large = plan.names
    axes.set_title(
        f"Epsilon over {unit} for several noise multipliers z\n{large} {plan.total:,}, "
        f"{small.replace('_', ' ')} {plan.drawn:,}, sampling: {plan.sampling}, "
        f"{plan.relation.replace('_', ' ')}",
        fontsize="medium",
    )
    axes.grid(True, which="major", color="0.85", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format=Path(path).suffix.lstrip(".").lower())
    write_whole(path, picture.getvalue(), "--plot")


def draw_spent(path: str, title: str, spent: Sequence[tuple[str, str, float | None]]) -> None:
    """Write a picture of (run, observer, epsilon): a point for each run, the runs in order, a
    colour an observer.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.2, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    number = {
        run: place for place, run in enumerate(dict.fromkeys(run for run, _, _ in spent), start=1)
    }
    for observer, colour in (("aggregator", COLOURS[3]), ("model_reader", COLOURS[0])):
        points = [
            (number[run], epsilon)
            for run, who, epsilon in spent
            if who == observer and epsilon is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.vlines(x, 0, y, color=colour, linewidth=1.2, alpha=0.6)
            axes.plot(
                x,
                y,
                "o",
                color=colour,
                markersize=5,
                label=f"told to the {observer.replace('_', ' ')}",
            )
            axes.legend(frameon=False)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0.5, len(number) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("run, in the order of the ledger")
    axes.set_ylabel("epsilon of the run")
    axes.set_title(f"What each run has told about {title}", fontsize="medium")
    axes.grid(True, axis="y", color="0.85", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format=Path(path).suffix.lstrip(".").lower())
    write_whole(path, picture.getvalue(), "--plot")


def _curve(axes: Axes, plan: BudgetPlan, noise: float, colour: str, planned: bool) -> None:
    whole = math.ceil(plan.steps / POINTS)
    # what is left over is done first, so that the curve ends with the plan
    pieces, first = divmod(plan.steps, whole)
    spent = epsilon_curve(
        plan.event(noise, whole), pieces, plan.delta, before=plan.event(noise, first)
    )
    at = ((first + done * whole) * _length(plan) / plan.steps for done in range(1, pieces + 1))
    shown = [(x, value.quoted) for x, value in zip(at, spent, strict=True) if value.quoted > 0]
    if not shown:
        return
    x, y = zip(*shown, strict=True)
    axes.plot(x, y, color=colour, linewidth=2.8 if planned else 1.8, clip_on=False)
    axes.plot(x[-1], y[-1], "o", color=colour, markersize=6 if planned else 4, clip_on=False)
    axes.annotate(
        f"z = {noise:.3g}{' (plan)' if planned else ''}\nepsilon {y[-1]:.3g}",
        (x[-1], y[-1]),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize="small",
        fontweight="bold" if planned else "normal",
        annotation_clip=False,
    )


def _length(plan: BudgetPlan) -> float:
    return float(plan.steps) if plan.epochs is None else float(plan.epochs)
