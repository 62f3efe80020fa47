"""Warnings that point at the line of the user's own code, however deep in ours they arise."""

from __future__ import annotations

import sys
import warnings

_OURS = "homo_dp"


def warn_caller(text: str) -> None:
    """Give a UserWarning at the innermost frame that is not in this package."""
    level, frame = 1, sys._getframe(1)
    while (
        frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _OURS
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level + 1)
