"""Heavy imports, without the garbage collector looking through them again and again, and never cut in two."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
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
        with _later_interrupts():
            yield
    finally:
        if len(sys.modules) >= known + MANY:
            gc.freeze()
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _later_interrupts() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end: raised inside torch's own code, they would abort the process."""
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread():
        handlers = {}  # signals go to the main thread
    came: list[int] = []
    for number in handlers:
        signal.signal(number, lambda which, _: came.append(which))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
