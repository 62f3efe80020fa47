"""Heavy imports, without the garbage collector looking through them again and again."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

MANY = 100  # modules; fewer are not worth it


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import in here what takes seconds: it takes a quarter less, and so does what the process does next.

    Importing torch and its like makes a million objects, none of which will go, and the collector walks over all of
    them whenever it runs in full; frozen, they are left out of that walk for the rest of the process.

    >>> with quick_imports():
    ...     import decimal
    >>> gc.isenabled()
    True
    """
    was_on, known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) >= known + MANY:
            gc.freeze()
        if was_on:
            gc.enable()
