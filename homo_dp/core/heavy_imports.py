"""Heavy imports: without runs of the garbage collector, not interrupted half-way, and without
torch's compiler.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
from collections.abc import Iterator

MANY = 100  # modules; fewer are not worth it
# where torch._compile keeps the method that it excluded from compilation
_DISABLED = "__dynamo_disable"


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import large packages inside this block: it takes a quarter less time, and later collections
    are shorter, too.

    Importing torch makes a million objects that live as long as the process, and every full run of
    the garbage collector visits all of them. The collector is off during the import; afterwards the
    objects are frozen, that is, no later run visits them.

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


def keep_compiler_out() -> None:
    """Save the import of torch._dynamo, half a second, that making the first optimiser of a process
    costs.

    The methods of an optimiser are marked "not to be compiled", and torch imports its compiler to
    apply that mark. We apply the mark ourselves, since nothing here is compiled; a torch that marks
    methods in another way imports its compiler as usual. ``step`` imports it in any case, but plain
    SGD does not call it (``privacy/engine/sgd.py``).
    """
    if "torch._dynamo" in sys.modules:
        return
    from torch.optim import Optimizer

    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        method = getattr(getattr(Optimizer, name, None), "__wrapped__", None)
        if method is not None and not hasattr(method, _DISABLED):
            setattr(method, _DISABLED, method)


@contextlib.contextmanager
def _later_interrupts() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the block ends: raised inside torch's own code, they would
    abort the process.
    """
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
