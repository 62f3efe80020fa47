"""Values that a description does not know, counted over the pieces of a table."""

from __future__ import annotations

from homo_dp.data.unexpected_values import ColumnStrays, Strays


def test_pieces_add_up() -> None:
    strays = Strays()
    strays.add(10, {"a": ColumnStrays(other=1), "b": ColumnStrays(missing=2)})
    strays.add(30, {"a": ColumnStrays(other=3, clipped=2)})
    assert strays.rows == 40
    # a missing value alone is no stray
    assert strays.counts() == {"a": {"other": 4, "clipped": 2, "missing": 0}}


def test_only_shares_above_the_limit_are_told() -> None:
    strays = Strays()
    strays.add(10, {"a": ColumnStrays(other=2), "b": ColumnStrays(clipped=1)})
    assert len(strays.warnings(0.1)) == 1
    assert "(20 %)" in strays.warnings(0.1)[0]
    assert strays.warnings(0.2) == []
    assert Strays().warnings(0.0) == []


def test_a_share_is_compared_with_that_in_training() -> None:
    strays = Strays()
    strays.add(10, {"a": ColumnStrays(clipped=3), "b": ColumnStrays(clipped=3)})
    (line,) = strays.warnings(0.1, {"a": {"other": 0.0, "clipped": 0.25}})
    assert line.startswith("column 'b'")
    assert line.endswith("in training 0 %")
    assert len(strays.warnings(0.1)) == 2, "without figures of training the share alone counts"
