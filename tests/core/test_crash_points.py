"""Crash points kill at the named place, at the named time, and are nothing without the variable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
from homo_dp.core.crash_points import crash_point
for number in range(1, 4):
    crash_point("other")
    crash_point("here")
    print(number, flush=True)
"""


@pytest.mark.parametrize(
    ("asked", "printed"), [(None, 3), ("elsewhere", 3), ("here", 0), ("here:3", 2)]
)
def test_the_process_dies_at_the_point(asked: str | None, printed: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HOMO_DP_CRASH_AT"}
    if asked is not None:
        environment["HOMO_DP_CRASH_AT"] = asked
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert len(done.stdout.split()) == printed
    assert done.returncode == (0 if printed == 3 else -signal.SIGKILL)
