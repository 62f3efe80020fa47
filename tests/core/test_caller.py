"""A warning points at the code that called the package."""

from __future__ import annotations

import pytest

from homo_dp.core import caller


def test_the_warning_is_at_the_callers_line() -> None:
    with pytest.warns(UserWarning, match="many were clipped") as told:
        caller.warn_caller("many were clipped")
    assert told[0].filename == __file__


def test_frames_of_the_package_are_passed_over() -> None:
    inside: dict[str, object] = {"__name__": "homo_dp.somewhere", "warn_caller": caller.warn_caller}
    exec(
        compile("def outer(): inner()\ndef inner(): warn_caller('deep')", "ours.py", "exec"), inside
    )
    with pytest.warns(UserWarning, match="deep") as told:
        inside["outer"]()  # type: ignore[operator]
    assert told[0].filename == __file__
