"""Named points at which a test can kill this process, as a power cut would: no clean-up, no
exception, no flush.

``HOMO_DP_CRASH_AT=ledger.after_commit`` kills at the first time that point is reached,
``ledger.after_commit:3`` at the third. Without the variable a point is an empty call.
"""

import os
import signal
import time

__all__ = ["crash_point"]

VARIABLE = "HOMO_DP_CRASH_AT"


def _plan(text: str | None) -> tuple[str, int] | None:
    if not text:
        return None
    name, _, times = text.partition(":")
    return name, int(times) if times else 1


_planned = _plan(os.environ.get(VARIABLE))
_reached = 0


def crash_point(name: str) -> None:
    """Kill this process (SIGKILL) if the environment asked for a crash here.

    >>> crash_point("anywhere")
    """
    if _planned is not None:
        _count(name, _planned)


def _count(name: str, planned: tuple[str, int]) -> None:
    global _reached
    if name != planned[0]:
        return
    _reached += 1
    if _reached == planned[1]:
        os.kill(os.getpid(), signal.SIGKILL)
        while True:  # other threads may run on for an instant; this one never passes the point
            time.sleep(1)
