"""Makes permissions count for a process of root too, which may otherwise write into any folder."""

import ctypes
import os
import sys

_VERSION_3 = 0x20080522
_OVERRIDES = (1 << 1) | (1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def bound_by_permissions() -> bool:
    """Give up, for the rest of this process's life, the right to pass over file modes; whether
    they count now.
    """
    if os.geteuid() != 0:
        return True
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    header, held = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, held) != 0:
        return False
    for word in (0, 1):  # effective, permitted
        held[word] &= ~_OVERRIDES
    return bool(libc.capset(header, held) == 0)
