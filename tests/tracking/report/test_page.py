"""Pages of templates: nothing that comes from a run is taken for HTML, and nothing is left out
silently.
"""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from homo_dp.tracking.report.page import HtmlTable, render

HOSTILE = "<script>alert('x')</script>\"&"


@pytest.mark.parametrize("last_is_hash", [False, True])
def test_names_and_cells_are_escaped(last_is_hash: bool) -> None:
    page = render(
        "plan.html", parties=HtmlTable([HOSTILE], [[HOSTILE]], last_is_hash), texts=[HOSTILE]
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 3


def test_attributes_are_escaped() -> None:
    page = render("plots.html", plots={'" onload="x': b"\x89PNG"})
    assert page.count('"') == 4  # of alt and src alone
    assert "data:image/png;base64,iVBORw==" in page


def test_a_value_that_a_template_needs_must_be_given() -> None:
    with pytest.raises(UndefinedError, match="texts"):
        render("plan.html", parties=HtmlTable([], []))


def test_columns_of_numbers_stand_to_the_right() -> None:
    assert HtmlTable(
        ["a", "b", "c"], [["x", 1, True], ["y", 0.5, False], ["z", None, True]]
    ).right == [
        False,
        True,
        False,
    ]
    assert HtmlTable(["a"], []).right == [False]
