"""Ids of runs and processes; they become parts of paths and subjects, so they are checked here
and nowhere else.
"""

import re
from typing import Final

from homo_dp.core.errors import MessageError

AGGREGATOR: Final = "aggregator"  # the aggregator's id in every run; no party may take it
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_id(name: str, value: object) -> str:
    """`value` if it can be an id of a run or a process, and so part of a path or a subject.

    >>> check_id("run", "bank_a.2027")
    'bank_a.2027'
    >>> check_id("run", "../a")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    homo_dp.core.errors.MessageError: run='../a' cannot be an id: use 1 to 64 letters, digits, _ . -, a letter or ...
    """
    if (
        not isinstance(value, str)
        or not _ID.fullmatch(value)
        or ".." in value
        or value.endswith(".")
    ):
        shown = repr(value)[:80]
        raise MessageError(
            f"{name}={shown} cannot be an id: use 1 to 64 letters, digits, _ . -, a letter or "
            "digit first, no '..'"
        )
    return value
