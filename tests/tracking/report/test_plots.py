"""Plots: every one is a picture, says what it shows, and is left out where there is nothing to
show.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from homo_dp.tracking.report import plots, sweep_plots
from homo_dp.tracking.report.plot_style import png as to_png
from homo_dp.tracking.report.plots import (
    accuracy_against_epsilon,
    budget_bars,
    epsilon_per_party,
    gradient_norms,
    learning_curves,
)
from homo_dp.tracking.report.report_files import plots_of
from homo_dp.tracking.report.run_files import Record
from homo_dp.tracking.report.sweep_plots import key_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

ROUNDS = [
    {
        "round": n,
        "epsilon": n / 2,
        "epsilon_rdp": n / 1.8,
        "test_acc": 0.5 + n / 20,
        "test_auc": 0.9,
        "test_loss": 1 / n,
    }
    for n in range(1, 6)
]
NORMS: dict[str, Any] = {
    "clip_norm": 1.0,
    "edges": [0.0, 1.0, 2.0],
    "parties": {"a": {"counts": [3, 1], "fraction_clipped": 0.25}},
}


def ledger(parties: int) -> list[dict[str, Any]]:
    return [
        {
            "party": f"p{party}",
            "round": number,
            "epsilon": number * (1 + party / 9),
            "epsilon_rdp": number * 3.0,
        }
        for party in range(parties)
        for number in range(1, 4)
    ]


def dataset(**changes: Any) -> dict[str, Any]:
    return {
        "dataset": "a data set with a name that is much too long/for any axis",
        "unit": "record",
        "runs": 2,
        "epsilon_this_run": 2.0,
        "epsilon_sum": 5.0,
        "epsilon_together": 3.1,
        "lifetime_epsilon": 8.0,
    } | changes


def pixels(data: bytes | None) -> np.ndarray:
    assert data is not None
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def has_colour(picture: np.ndarray, colour: str) -> bool:
    wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    return bool(
        (np.abs(picture.astype(int) - wanted).sum(axis=2) < 6).sum() > 60
    )  # more than the soft edges of letters


def test_learning_shows_what_there_is() -> None:
    both = pixels(learning_curves(ROUNDS))
    regression = pixels(learning_curves([{"round": 1, "test_loss": 2.0, "test_acc": None}]))
    assert both.shape[0] > 1.5 * regression.shape[0]
    assert has_colour(both, "#0072B2")
    assert has_colour(both, "#D55E00")
    assert learning_curves([{"round": 1, "epsilon": 1.0}]) is None
    assert learning_curves([]) is None


@pytest.mark.parametrize("parties", [1, 3, 7, 40])
def test_epsilon_has_a_line_for_every_party_or_a_band(parties: int) -> None:
    picture = pixels(epsilon_per_party(ledger(parties), [], 1e-5))
    assert has_colour(picture, "#0072B2")
    assert has_colour(picture, "#D55E00") == (1 < parties <= 7)


def test_epsilon_without_a_ledger_is_that_of_the_rounds() -> None:
    assert has_colour(pixels(epsilon_per_party((), ROUNDS, 1e-5)), "#0072B2")
    assert epsilon_per_party((), [{"round": 1, "epsilon": None}], None) is None
    assert epsilon_per_party((), [{"round": 1, "epsilon": 2.0}], None) is not None
    assert epsilon_per_party((), [{"round": 1, "epsilon": 0.0}], None) is not None


def test_accuracy_against_epsilon_falls_back_to_loss() -> None:
    assert pixels(accuracy_against_epsilon(ROUNDS, 1e-5)).shape[2] == 3
    losses = [{"round": 1, "epsilon": 1.0, "test_loss": 0.5}]
    assert accuracy_against_epsilon(losses, None) is not None
    assert accuracy_against_epsilon([{"round": 1, "test_acc": 0.5}], None) is None


def test_norms_and_budget() -> None:
    assert has_colour(pixels(gradient_norms(NORMS)), "#0072B2")
    many = {**NORMS, "parties": dict.fromkeys("abcdefghij", NORMS["parties"]["a"])}
    assert has_colour(pixels(gradient_norms(many)), "#000000")
    picture = pixels(
        budget_bars([dataset(), dataset(lifetime_epsilon=None, epsilon_together=None)])
    )
    assert all(has_colour(picture, colour) for colour in ("#0072B2", "#888888", "#D55E00"))
    alone = pixels(budget_bars([dataset(runs=1, epsilon_sum=2.0, lifetime_epsilon=None)]))
    assert not has_colour(alone, "#888888")
    assert budget_bars([]) is None


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert learning_curves(ROUNDS) == learning_curves(ROUNDS)


def panel(picture: bytes) -> np.ndarray:
    """The left half of a picture, without the legend below it."""
    whole = pixels(picture)
    return whole[: int(0.75 * whole.shape[0]), : whole.shape[1] // 2]


@pytest.mark.parametrize("values", [(0.1, 0.3, 1, 3), (2, 3, 4), (1,)])
def test_a_sweep_with_repeats_shows_every_line(values: tuple[float, ...]) -> None:
    results = [
        {
            "values": {"train.rounds": value, "privacy.max_grad_norm": norm},
            "repeat": repeat,
            "test_acc": 0.5 + norm / 10 + repeat / 50,
            "epsilon": 2.0 * value,
        }
        for value in values
        for norm in (1, 2)
        for repeat in (0, 1)
    ]
    shown = panel(key_picture("train.rounds", results))
    assert all(has_colour(shown, colour) for colour in ("#0072B2", "#D55E00"))


def test_a_sweep_over_words_and_lists_and_without_epsilon() -> None:
    results = [
        {
            "values": {"train.optimizer": name, "model.layers": layers},
            "repeat": repeat,
            "test_acc": 0.5 + repeat / 9,
        }
        for name in ("sgd", "adam")
        for layers in ([8], [8, 4])
        for repeat in (0, 1)
    ]
    for key in ("train.optimizer", "model.layers"):
        assert all(
            has_colour(panel(key_picture(key, results)), colour)
            for colour in ("#0072B2", "#D55E00")
        )


def test_a_sweep_over_numbers_with_epsilons_far_apart() -> None:
    results = [
        {
            "values": {"privacy.noise_multiplier": z},
            "repeat": 0,
            "test_loss": z,
            "epsilon": 100 / z**3,
            "delta": 1e-5,
        }
        for z in (0.1, 1.0, 10.0)
    ]
    assert has_colour(pixels(key_picture("privacy.noise_multiplier", results)), "#0072B2")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures behind the pictures that a test draws."""
    drawn: list[Figure] = []

    def png(figure: Figure) -> bytes:
        drawn.append(figure)
        return to_png(figure)

    monkeypatch.setattr(plots, "png", png)
    monkeypatch.setattr(sweep_plots, "png", png)
    return drawn


def texts(figure: Figure) -> list[Text]:
    """Every text of a picture but the numbers at its axes, of which matplotlib keeps some that
    it does not draw.
    """
    from matplotlib.text import Text

    ticks = {
        text for axis in figure.axes for text in (*axis.get_xticklabels(), *axis.get_yticklabels())
    }
    return [text for text in figure.findobj(Text) if text.get_text() and text not in ticks]


def rounds_of(count: int) -> list[dict[str, Any]]:
    """A run whose accuracy goes up and down, with the last rounds below all others."""
    return [
        {
            "round": n,
            "epsilon": n**0.5,
            "test_acc": 0.9 + 0.05 * ((n * 7) % 5) / 5 - (0.2 if n > 0.9 * count else 0.0),
            "test_auc": 0.95,
            "test_loss": 1 / n,
        }
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize("count", [1, 2, 200])
def test_no_text_leaves_the_picture_or_covers_a_line(figures: list[Figure], count: int) -> None:
    rounds = rounds_of(count)
    assert accuracy_against_epsilon(rounds, 1e-5) is not None
    assert learning_curves(rounds) is not None
    for figure in figures:
        for text in texts(figure):
            box = text.get_window_extent()
            assert box.x0 >= 0, text
            assert box.y0 >= 0, text
            assert box.x1 <= figure.bbox.x1, text
            assert box.y1 <= figure.bbox.y1, text
    names = [text.get_text() for text in texts(figures[0]) if text.get_text().startswith("round")]
    assert names == list(dict.fromkeys(["round 1", f"round {count}"]))
    last = next(
        text for text in texts(figures[0]) if text.get_text() == f"round {count}"
    ).get_window_extent()
    (axis,) = figures[0].axes
    points = axis.transData.transform([(row["epsilon"], row["test_acc"]) for row in rounds])
    assert not last.count_contains(points)
    legend = figures[1].axes[0].get_legend()
    assert legend is not None
    assert legend.get_window_extent().y0 >= figures[1].axes[0].get_window_extent().y1 - 1


def test_one_round_is_a_point_on_an_axis_of_whole_rounds(figures: list[Figure]) -> None:
    one = [row for row in ledger(3) if row["round"] == 1]
    picture = pixels(epsilon_per_party(one, [], 1e-5))
    # the legend, which has all colours, is on the right
    left = picture[:, : int(0.55 * picture.shape[1])]
    assert all(has_colour(left, colour) for colour in ("#0072B2", "#D55E00", "#009E73"))
    many = [row for row in ledger(30) if row["round"] == 1]
    picture = pixels(epsilon_per_party(many, [], 1e-5))
    assert has_colour(picture[:, : int(0.55 * picture.shape[1])], "#0072B2")
    assert learning_curves(rounds_of(1)) is not None
    for figure in figures:
        ticks = figure.axes[0].get_xticks()
        assert [tick for tick in ticks if 0.5 <= tick <= 1.5] == [1.0]


def test_what_users_spent_is_not_called_the_aggregators(figures: list[Figure]) -> None:
    """The aggregator keeps their ledger where it adds the noise, and is the one who is not
    protected against.
    """
    row = {"party": "aggregator", "unit": "user", "epsilon_rdp": 1.2}
    epsilon_per_party(
        [{**row, "round": number, "epsilon": 0.5 * number} for number in (1, 2)], (), 1e-4
    )
    assert figures[0].axes[0].get_legend_handles_labels()[1][0] == "each user"


def test_thirty_parties_stay_readable(figures: list[Figure]) -> None:
    parties = {
        f"party_{n}": {"counts": [30, n], "fraction_clipped": n / (30 + n)} for n in range(30)
    }
    gradient_norms({**NORMS, "parties": parties})
    labels = figures[0].axes[0].get_legend_handles_labels()[1]
    assert labels == ["all 30 parties: 33% above C", "clip norm C = 1"]
    datasets = [
        dataset(dataset=f"d/party_{n}", epsilon_sum=1.0 + n / 30, epsilon_this_run=1.0)
        for n in range(30)
    ]
    budget_bars(datasets)
    (axis,) = figures[1].axes
    assert "the 12 largest of 30" in axis.get_title(loc="right")
    assert [label.get_text().split()[0] for label in axis.get_yticklabels()] == [
        f"d/party_{n}" for n in range(18, 30)
    ]


def test_pictures_of_a_run_that_is_not_private_say_so(figures: list[Figure]) -> None:
    ledgers = {"datasets": [dataset()]}
    indicators = {
        "privacy": {"private": False, "delta": 1e-5},
        "rounds": rounds_of(3),
        "ledger": ledgers,
    }
    rounds = [{**row, "epsilon": None} for row in rounds_of(3)]
    drawn = plots_of(Record({**indicators, "rounds": rounds}, norms=NORMS))
    assert set(drawn) == {"learning", "gradient_norms", "budget"}
    for figure in figures:
        marked = [
            text.get_window_extent() for text in texts(figure) if "NOT PRIVATE" in text.get_text()
        ]
        assert marked
        legend = figure.axes[0].get_legend()
        assert legend is None or not legend.get_window_extent().count_overlaps(marked)


def test_repeats_that_agree_have_no_bars(figures: list[Figure]) -> None:
    from matplotlib.container import ErrorbarContainer

    values = {"train.rounds": 3}
    key_picture(
        "train.rounds",
        [{"values": values, "repeat": n, "test_acc": 0.5, "epsilon": 0.1} for n in range(3)],
    )
    for axis in figures[0].axes:
        (bars,) = axis.containers
        assert isinstance(bars, ErrorbarContainer)
        assert not bars.has_yerr  # although three times a tenth is not quite three tenths


def test_lines_that_are_all_the_same_stay_visible_below_each_other(figures: list[Figure]) -> None:
    values = [
        {"train.rounds": n, "privacy.max_grad_norm": norm} for n in (1, 2) for norm in range(5)
    ]
    key_picture("train.rounds", [{"values": v, "test_acc": 0.5, "epsilon": 1.0} for v in values])
    for axis in figures[0].axes:
        widths = [line.get_linewidth() for line in axis.lines]
        assert len(set(widths)) == 5
        assert widths == sorted(widths, reverse=True)
