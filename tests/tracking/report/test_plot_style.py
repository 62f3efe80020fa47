"""How pictures look: the same figure gives the same bytes, and long labels stay on the picture."""

from homo_dp.tracking.report.plot_style import (
    COLOURS,
    MARKERS,
    new_figure,
    png,
    whole_rounds,
    widen_left,
)


def picture() -> bytes:
    figure, axes = new_figure(rows=1, columns=2)
    for each in axes:
        each.plot([1, 2], [3, 4])
        whole_rounds(each, [1, 2])
    return png(figure)


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert picture() == picture()
    assert picture().startswith(b"\x89PNG")


def test_long_names_are_not_cut_off() -> None:
    figure, (axes,) = new_figure()
    axes.barh(["a party with a very long name indeed, and then some"], [1.0])
    widen_left(figure, axes)
    box = axes.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    assert box is not None
    assert box.x0 >= 0


def test_every_line_has_a_colour_and_a_marker_of_its_own() -> None:
    assert len(set(COLOURS)) == len(COLOURS) == len(set(MARKERS))
