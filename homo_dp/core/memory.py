"""Whether something fits into memory, checked before it is allocated: a line of text instead of
a killed process.
"""

from __future__ import annotations

import os
from pathlib import Path

_LARGEST_LIMIT = 1 << 60  # cgroups write a huge number, or the word max, for no limit


def available_memory() -> int:
    """Bytes that a process can still get: what the system has, or what is left of the
    container's limit.
    """
    left = [_system()]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        most, now = _number(limit), _number(used)
        if most is not None and now is not None and most < _LARGEST_LIMIT:
            left.append(max(0, most - now))
    return min(left)


def too_large(needed: int) -> str | None:
    """Why ``needed`` bytes cannot be had, with both sizes; None if they can.

    >>> too_large(1)
    >>> "not enough memory: it needs 8388608.0 GiB" in str(too_large(1 << 53))
    True
    """
    free = available_memory()
    if needed <= free:
        return None
    return (
        f"not enough memory: it needs {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
    )


def _system() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass  # not Linux: all that is built in is the best guess
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
