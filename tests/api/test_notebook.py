"""Progress in a notebook: values are escaped, and a plain process is none."""

from homo_dp.api.notebook import bar, in_notebook


def test_figures_cannot_write_html() -> None:
    assert "<script>" not in bar(1, None, "<script>", {"loss": "<script>", "nothing": None})
    assert "nothing" not in bar(1, None, "round", {"nothing": None})
    assert "max" not in bar(1, None, "round", {})


def test_a_test_run_is_not_a_notebook() -> None:
    assert not in_notebook()
