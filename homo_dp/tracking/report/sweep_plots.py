"""The pictures of a sweep: how each varied key changes accuracy and epsilon, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from homo_dp.tracking.report.plot_style import COLOURS, MARKERS, new_figure, png, widen_left

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Results = Sequence[Mapping[str, Any]]
NAMES = {
    "privacy.max_grad_norm": "clip threshold C (max_grad_norm)",
    "privacy.clip_norm": "clip threshold C (clip_norm)",
    "privacy.noise_multiplier": "noise multiplier z",
    "privacy.target_epsilon": "target epsilon",
    "train.learning_rate": "learning rate",
    "train.batch_size": "batch size (expected rows)",
    "train.rounds": "rounds",
}
MOST_LINES = len(COLOURS)


def key_picture(key: str, results: Results) -> bytes:
    """One varied key along the axis, a line for each combination of the others: accuracy left,
    epsilon right.
    """
    metric = "test_acc" if any(row.get("test_acc") is not None for row in results) else "test_loss"
    figure, axes = new_figure(1, 2, height=4.2, left=0.1, below=1.0)
    ticks = list(dict.fromkeys(_plain(row["values"][key]) for row in results))
    numeric = all(isinstance(tick, int | float) and not isinstance(tick, bool) for tick in ticks)
    ticks = sorted(ticks) if numeric else ticks
    lines = _lines(key, results)
    drawn = list(lines.items())[:MOST_LINES]
    for index, (label, rows) in enumerate(drawn):
        for axis, name in zip(axes, (metric, "epsilon"), strict=True):
            _line(axis, rows, key, name, label, index, len(drawn) - 1 - index, ticks, numeric)
    words = {
        "test_acc": "accuracy on test rows (share)",
        "test_loss": "loss on test rows (mean per row)",
    }
    axes[0].set_ylabel(words[metric])
    axes[1].set_ylabel("epsilon of one run" + _delta(results))
    axes[1].set_ylim(bottom=0)
    for axis in axes:
        _axis(axis, key, ticks, numeric)
    _epsilon_scale(axes[1], results)
    left_out = (
        f" ({len(lines) - MOST_LINES} more combinations not shown)"
        if len(lines) > MOST_LINES
        else ""
    )
    repeats = max(row.get("repeat", 0) for row in results) + 1
    shown = f" (mean and standard deviation of {repeats} runs)" if repeats > 1 else ""
    figure.suptitle(f"Effect of {NAMES.get(key, key)}{shown}{left_out}", fontsize="medium", y=0.985)
    handles, labels = axes[0].get_legend_handles_labels()
    if any(labels):
        figure.legend(
            handles,
            labels,
            loc="lower center",
            ncols=min(4, len(labels)),
            frameon=False,
            fontsize="small",
        )
    widen_left(figure, axes[0])
    return png(figure)


def _lines(key: str, results: Results) -> dict[str, list[Mapping[str, Any]]]:
    """Results by the values of all other keys."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in results:
        others = [
            f"{name.rpartition('.')[2]} {_plain(v)}"
            for name, v in row["values"].items()
            if name != key
        ]
        lines.setdefault(", ".join(others), []).append(row)
    return lines


def _line(
    axis: Axes,
    rows: Results,
    key: str,
    name: str,
    label: str,
    index: int,
    above: int,
    ticks: list[Any],
    numeric: bool,
) -> None:
    """Mean over repeats, with a bar of one standard deviation where there are several."""
    x: list[float] = []
    middle: list[float] = []
    spread: list[float] = []
    for at, tick in enumerate(ticks):
        values = [
            row[name]
            for row in rows
            if _plain(row["values"][key]) == tick and row.get(name) is not None
        ]
        if values:
            x.append(tick if numeric else at)
            middle.append(sum(values) / len(values))
            spread.append(
                math.sqrt(
                    sum((value - middle[-1]) ** 2 for value in values) / max(1, len(values) - 1)
                )
            )
    if x:
        # more than rounding
        wide = [each > 1e-9 * abs(mean) for each, mean in zip(spread, middle, strict=True)]
        bars = spread if any(wide) else None
        width = 1.5 if bars else 1.5 + 2.0 * above  # equal lines stay visible below each other
        colour, marker = COLOURS[index], MARKERS[index]
        x = _beside(x, ticks, numeric, index) if bars else x
        axis.errorbar(
            x, middle, bars, color=colour, marker=marker, label=label, linewidth=width, capsize=3
        )


def _beside(x: list[float], ticks: list[Any], numeric: bool, index: int) -> list[float]:
    """Each line a little further to the right, so that the bars of one value stand side by side."""
    if not numeric:
        return [each + 0.04 * index for each in x]
    if _logarithmic(ticks):
        return [each * (ticks[-1] / ticks[0]) ** (0.012 * index) for each in x]
    return [each + 0.012 * (ticks[-1] - ticks[0]) * index for each in x]


def _logarithmic(ticks: list[Any]) -> bool:
    return bool(ticks[0] > 0 and ticks[-1] / ticks[0] >= 4)


def _axis(axis: Axes, key: str, ticks: list[Any], numeric: bool) -> None:
    axis.set_xlabel(NAMES.get(key, key))
    if not numeric:
        axis.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
        return
    if _logarithmic(ticks):
        from matplotlib.ticker import NullLocator

        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def _epsilon_scale(axis: Axes, results: Results) -> None:
    """A logarithmic axis where epsilons span more than a factor of 20."""
    found = [row["epsilon"] for row in results if row.get("epsilon")]
    if found and max(found) / min(found) > 20:
        axis.set_yscale("log")
        axis.set_ylim(bottom=min(found) / 1.5)
    if not found:
        axis.text(0.5, 0.5, "no epsilon: NOT PRIVATE", transform=axis.transAxes, ha="center")


def _delta(results: Results) -> str:
    deltas = {row.get("delta") for row in results}
    return f" at delta = {deltas.pop():g}" if len(deltas) == 1 and None not in deltas else ""


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else str(value)
