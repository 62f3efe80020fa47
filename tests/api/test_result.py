"""A result of training in Python, and in a notebook."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import homo_dp


def test_a_result_has_model_privacy_and_rounds(result: homo_dp.Result) -> None:
    assert result.epsilon is not None
    assert 0 < result.epsilon <= 8
    assert set(result.privacy["parties"]) == {"a", "b"}
    assert list(result.rounds["round"]) == [1, 2]
    assert result.ledger is not None
    assert len(result.ledger) == 4
    assert result.indicators["test_acc"] is not None
    assert "Strength of the guarantee: " in repr(result)


def test_a_result_says_where_the_model_is_useless(result: homo_dp.Result) -> None:
    words = "not better than always predicting the most frequent class"
    for accuracy, useless in ((0.6, True), (0.9, False)):
        shown = replace(
            result, indicators={**result.indicators, "test_acc": accuracy, "test_majority": 0.63}
        )
        assert (words in repr(shown)) is useless
        assert (words in shown._repr_html_()) is useless


def test_a_notebook_shows_a_table_a_plot_and_a_report(
    result: homo_dp.Result, tmp_path: Path
) -> None:
    page = result._repr_html_()
    assert "<table>" in page
    assert "data:image/png" in page
    paths = result.plot().save(tmp_path / "plots")
    assert {"learning.png", "epsilon.png"} <= {path.name for path in paths}
    assert "epsilon" in result.report(tmp_path / "report.html").read_text()
    assert "test_acc" not in result.report(tmp_path / "published.html", published=True).read_text()
