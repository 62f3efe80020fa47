"""The pictures of a run, as PNG bytes: how well it learned, what it spent, what the clipping
did, what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from homo_dp.tracking.report.plot_style import COLOURS, GREY, MARKERS, new_figure, png, whole_rounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rounds = Sequence[Mapping[str, Any]]
MOST_CLASSES = 30  # of a confusion matrix
MOST_LINES, MOST_BARS, MOST_MARKERS = len(COLOURS), 12, 40
NOT_PRIVATE = " (NOT PRIVATE)"


def learning_curves(rounds: Rounds, mark: str = "") -> bytes | None:
    """Accuracy, AUC and loss on test rows after every round; None if no round has any of them.

    ``mark`` goes into the title, here and below: a picture of a run that is not private says so
    wherever it ends up.
    """
    shares = [
        (name, label)
        for name, label in (("test_acc", "accuracy"), ("test_auc", "AUC"))
        if _has(rounds, name)
    ]
    panels = [shares] if shares else []
    if _has(rounds, "test_loss"):
        panels.append([("test_loss", "loss")])
    if not panels:
        return None
    figure, axes = new_figure(len(panels), height=2.7 * len(panels) + 0.5)
    for axis, lines in zip(axes, panels, strict=True):
        for index, (name, label) in enumerate(lines):
            colour = COLOURS[1] if name == "test_loss" else COLOURS[0 if name == "test_acc" else 2]
            _line(axis, rounds, name, label, colour, MARKERS[index])
        whole_rounds(axis, [row["round"] for row in rounds])
        axis.set_ylabel(
            "loss (mean per row)" if lines[0][0] == "test_loss" else "share / area, 0 to 1"
        )
        if lines[0][0] != "test_loss":
            # above every line
            axis.legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), ncols=2, frameon=False)
    axes[0].set_title(f"Learning, on test rows{mark}", loc="left")
    return png(figure)


def epsilon_per_party(rows: Rounds, rounds: Rounds, delta: float | None) -> bytes | None:
    """Epsilon so far of every party, from the rows of the ledger; without them, the largest of
    all parties.
    """
    parties: dict[str, dict[int, float]] = {}
    rdp: dict[int, float] = {}
    for row in rows:
        if row.get("epsilon") is None:  # its noise was not private
            continue
        whose = str(row["party"])
        if whose == "aggregator" and row.get("unit") == "user":  # it keeps the ledger of all users
            whose = "each user"
        parties.setdefault(whose, {})[int(row["round"])] = float(row["epsilon"])
        rdp[int(row["round"])] = max(rdp.get(int(row["round"]), 0.0), float(row["epsilon_rdp"]))
    if not parties and _has(rounds, "epsilon"):
        parties["largest of all parties"] = _values(rounds, "epsilon")
        rdp = _values(rounds, "epsilon_rdp")
    if not parties:
        return None
    figure, (axis,) = new_figure()
    _party_lines(axis, parties)
    if rdp:
        mark = "_" if len(rdp) == 1 else ""
        label = "cross-check by RDP (largest)"
        axis.plot(
            list(rdp), list(rdp.values()), "--", color=GREY, marker=mark, markersize=14, label=label
        )
    whole_rounds(axis, [number for values in parties.values() for number in values])
    highest = max(value for values in (rdp, *parties.values()) for value in values.values())
    axis.set_ylim(0, 1.06 * highest or 1.0)
    axis.ticklabel_format(axis="y", style="plain")
    axis.set_ylabel("epsilon so far" + (f" at delta = {delta:g}" if delta else ""))
    axis.set_title("Privacy spent: epsilon after every round")
    axis.legend(loc="lower right", frameon=False)
    return png(figure)


def roc(
    fpr: Sequence[float], tpr: Sequence[float], area: float | None, mark: str = ""
) -> bytes | None:
    """The ROC curve of two classes on test rows, with the diagonal of guessing; None without a
    curve.
    """
    if not fpr:
        return None
    figure, (axis,) = new_figure()
    axis.plot(
        fpr, tpr, color=COLOURS[0], label="model" if area is None else f"model, AUC {area:.3f}"
    )
    axis.plot([0, 1], [0, 1], "--", color=GREY, label="guessing, AUC 0.5")
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("false-positive rate")
    axis.set_ylabel("true-positive rate")
    axis.set_title(f"ROC, on test rows{mark}")
    axis.legend(loc="lower right", frameon=False)
    return png(figure)


def released_curves(curves: Mapping[str, Any], mark: str = "") -> bytes | None:
    """ROC and calibration from released histograms, each point with the 95 % bar of its noise;
    None without.
    """
    roc_points, bins = curves.get("roc"), curves.get("calibration")
    if not roc_points or not bins:
        return None
    figure, (left, right) = new_figure(columns=2)
    bar: dict[str, Any] = {"capsize": 2, "elinewidth": 0.8, "markersize": 4}
    fpr, tpr = roc_points["fpr"], roc_points["tpr"]
    left.errorbar(
        fpr, tpr, roc_points["tpr_error"], roc_points["fpr_error"], "o-", color=COLOURS[0], **bar
    )
    # the others hold noise alone
    known = [at for at, error in enumerate(bins["share_error"]) if error < 1.0]
    score, share, error = (
        [bins[name][at] for at in known] for name in ("score", "share", "share_error")
    )
    right.errorbar(score, share, error, None, "s", color=COLOURS[1], **bar)
    for axis in (left, right):
        axis.plot([0, 1], [0, 1], "--", color=GREY)
        axis.set_xlim(-0.02, 1.02)
        axis.set_ylim(-0.02, 1.02)
    left.set_xlabel("false-positive rate")
    left.set_ylabel("true-positive rate")
    left.set_title(f"ROC, released with noise{mark}")
    right.set_xlabel("score (middle of its bin)")
    right.set_ylabel("share of class 1")
    right.set_title(f"Calibration, {len(known)} of {len(bins['share'])} bins{mark}")
    return png(figure)


def confusion(
    matrix: Sequence[Sequence[int]], classes: Sequence[str], mark: str = ""
) -> bytes | None:
    """Rows of each true class by what was predicted; numbers in the cells where they can be
    read.
    """
    count = len(matrix)
    if not count or count > MOST_CLASSES or not any(map(any, matrix)):
        return None
    figure, (axis,) = new_figure(height=max(3.2, 0.45 * count + 1.4))
    shares = [[cell / max(1, sum(row)) for cell in row] for row in matrix]
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, cells in enumerate(matrix):
        for column, cell in enumerate(cells):
            ink = "white" if shares[row][column] > 0.6 else "black"
            axis.text(
                column, row, f"{cell:,}", ha="center", va="center", color=ink, fontsize="small"
            )
    names = [name if len(name) <= 12 else name[:11] + "…" for name in map(str, classes)]
    axis.set_xticks(range(count), names)
    axis.set_yticks(range(count), names)
    axis.grid(False)
    axis.set_xlabel("predicted class")
    axis.set_ylabel("true class")
    axis.set_title(f"Confusion matrix, test rows{mark}")
    return png(figure)


def accuracy_against_epsilon(
    rounds: Rounds, delta: float | None, majority: float | None = None, plain: float | None = None
) -> bytes | None:
    """What every unit of epsilon bought: accuracy (or loss) on test rows against epsilon so far.

    Accuracy starts where a model that learned nothing stands: at the share of the most frequent
    class, ``majority``, or at zero where that is not known. ``plain`` is the accuracy of a fit
    without privacy.
    """
    name = "test_acc" if _has(rounds, "test_acc") else "test_loss"
    points = [
        (row["epsilon"], row[name], row["round"])
        for row in rounds
        if row.get("epsilon") is not None and row.get(name) is not None
    ]
    if not points:
        return None
    compared = name == "test_acc" and (majority is not None or plain is not None)
    figure, (axis,) = new_figure(below=0.85 if compared else 0.55)
    mark = "o" if len(points) <= MOST_MARKERS else ""
    axis.plot(
        [p[0] for p in points], [p[1] for p in points], marker=mark, color=COLOURS[0], markersize=4
    )
    _name_ends(axis, points)
    if name == "test_acc":
        lowest = min(0.0 if majority is None else majority, *(p[1] for p in points))
        axis.set_ylim(max(0.0, lowest - 0.03) if majority is not None else 0.0, 1.02)
        for value, label in (
            (majority, "most frequent class"),
            (plain, "linear model without privacy"),
        ):
            if value is not None:
                axis.axhline(
                    value, color=GREY, linestyle="--" if value == majority else ":", label=label
                )
        if compared:  # below the axes: accuracy may lie anywhere inside them
            figure.legend(loc="lower center", ncols=2, frameon=False, fontsize="small")
    else:
        axis.set_ylim(0, 1.12 * max(p[1] for p in points))
    axis.set_xlim(0, points[-1][0] * 1.15)
    axis.set_xlabel("epsilon so far" + (f" at delta = {delta:g}" if delta else ""))
    axis.set_ylabel(
        "accuracy on test rows (share)"
        if name == "test_acc"
        else "loss on test rows (mean per row)"
    )
    axis.set_title("What the privacy budget bought")
    return png(figure)


def gradient_norms(histogram: Mapping[str, Any], mark: str = "") -> bytes:
    """Gradient norms before clipping against the clip norm C. LOCAL: drawn from private rows
    without noise.
    """
    figure, (axis,) = new_figure()
    edges, clip_norm = histogram["edges"], float(histogram["clip_norm"])
    parties = _few(histogram["parties"])
    for index, (name, party) in enumerate(parties.items()):
        total = max(1, sum(party["counts"]))
        shares = [count / total for count in party["counts"]]
        label = f"{name}: {party['fraction_clipped']:.0%} above C"
        width = 1.4 + 1.2 * (len(parties) - 1 - index)
        axis.stairs(shares, edges, color=COLOURS[index], linewidth=width, label=label)
    axis.axvline(clip_norm, color="black", linestyle="--", label=f"clip norm C = {clip_norm:g}")
    axis.set_xlim(0, edges[-1])
    axis.set_xlabel("L2 norm of one record's gradient, before clipping")
    axis.set_ylabel("share of records")
    axis.set_title(f"Gradient norms against the clip norm (LOCAL ONLY){mark}")
    axis.legend(frameon=False)
    return png(figure)


def budget_bars(datasets: Sequence[Mapping[str, Any]], mark: str = "") -> bytes | None:
    """What each dataset has given away so far: this run, earlier runs, and the lifetime limit
    where there is one.
    """
    if not datasets:
        return None
    largest = sorted(datasets, key=lambda each: -each["epsilon_sum"])[:MOST_BARS]
    shown = [each for each in datasets if each in largest][:MOST_BARS]
    figure, (axis,) = new_figure(height=1.9 + 0.42 * len(shown), left=0.27, below=0.95)
    for index, each in enumerate(shown):
        earlier = max(0.0, each["epsilon_sum"] - each["epsilon_this_run"])
        if earlier:
            axis.barh(index, earlier, color=GREY, label="earlier runs, added up")
        axis.barh(index, each["epsilon_this_run"], left=earlier, color=COLOURS[0], label="this run")
        if each.get("epsilon_together") is not None and each.get("runs", 1) > 1:
            axis.plot(
                each["epsilon_together"],
                index,
                "D",
                color="black",
                label="all runs together (RDP)",
                zorder=3,
            )
        if each.get("lifetime_epsilon") is not None:
            ends = index - 0.45, index + 0.45
            axis.vlines(
                each["lifetime_epsilon"], *ends, COLOURS[1], linewidth=3, label="lifetime limit"
            )
    axis.set_yticks(range(len(shown)), [_short(each) for each in shown], fontsize="small")
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    axis.set_xlim(left=0)
    axis.set_xlabel("epsilon")
    left_out = (
        f" (the {len(shown)} largest of {len(datasets)})" if len(datasets) > len(shown) else ""
    )
    axis.set_title(f"Budget: what was released of each dataset{left_out}{mark}", loc="right")
    handles, labels = axis.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(
        once.values(),
        once.keys(),
        loc="lower center",
        ncols=len(once),
        frameon=False,
        fontsize="small",
    )
    return png(figure)


def _party_lines(axis: Axes, parties: Mapping[str, Mapping[int, float]]) -> None:
    """One line a party, each thinner than the one below so that equal ones all stay visible; a
    band for many.
    """
    if len(parties) <= MOST_LINES:
        for index, (name, values) in enumerate(parties.items()):
            width = 1.5 + 2.5 * (len(parties) - 1 - index)
            mark, size = ("o" if len(values) == 1 else ""), width + 5
            line = list(values), list(values.values())
            axis.plot(
                *line,
                color=COLOURS[index],
                linewidth=width,
                marker=mark,
                markersize=size,
                label=name,
            )
        return
    numbers = sorted({number for values in parties.values() for number in values})
    spent = [
        [values[number] for values in parties.values() if number in values] for number in numbers
    ]
    low, high = [min(each) for each in spent], [max(each) for each in spent]
    axis.fill_between(
        numbers, low, high, color=COLOURS[0], alpha=0.25, label=f"all {len(parties)} parties"
    )
    axis.plot(
        numbers,
        high,
        color=COLOURS[0],
        linewidth=2,
        marker="o" if len(numbers) == 1 else "",
        label="largest",
    )


def _few(parties: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """The histograms of the parties, or of all of them together where they would not be told
    apart.
    """
    if len(parties) <= MOST_LINES:
        return parties
    sizes = [sum(party["counts"]) for party in parties.values()]
    above = sum(
        party["fraction_clipped"] * size
        for party, size in zip(parties.values(), sizes, strict=True)
    )
    counts = [
        sum(column) for column in zip(*(party["counts"] for party in parties.values()), strict=True)
    ]
    return {
        f"all {len(parties)} parties": {
            "counts": counts,
            "fraction_clipped": above / max(1, sum(sizes)),
        }
    }


def _name_ends(axis: Axes, points: Sequence[tuple[float, float, int]]) -> None:
    """Say which round the first and the last point are: the last beside the line, the first
    below its point.
    """
    ends = {"last": points[-1]} if len(points) == 1 else {"first": points[0], "last": points[-1]}
    for end, (epsilon, value, number) in ends.items():
        shift = (6, -4) if end == "last" else (-4, -16)
        back = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8}
        text = f"round {number}"
        axis.annotate(
            text, (epsilon, value), shift, textcoords="offset points", fontsize="small", bbox=back
        )
        axis.plot(epsilon, value, "o", color=COLOURS[0], markersize=5)


def _line(axis: Axes, rounds: Rounds, name: str, label: str, colour: str, marker: str) -> None:
    points = [(row["round"], row[name]) for row in rounds if row.get(name) is not None]
    mark = marker if len(points) <= MOST_MARKERS else ""
    axis.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=colour,
        marker=mark,
        markersize=4,
        label=label,
    )


def _short(each: Mapping[str, Any]) -> str:
    name = str(each["dataset"])
    return f"{name if len(name) <= 24 else '…' + name[-23:]}\n(one {each['unit']})"


def _has(rounds: Rounds, name: str) -> bool:
    return any(row.get(name) is not None for row in rounds)


def _values(rounds: Rounds, name: str) -> dict[int, float]:
    return {int(row["round"]): float(row[name]) for row in rounds if row.get(name) is not None}
