"""dp-accounting's event classes, without its accountants.

``import dp_accounting`` imports all of its accountants and with them most of scipy: half a second
and 60 MB. A run needs only the classes of its events, since PLD and RDP are computed here. So the
package is put into ``sys.modules`` without running its ``__init__``: one module of it can then be
imported by itself. The first access to anything else of the package (by user code, by a test) runs
its ``__init__``, and from then on the package is as always.
"""

import importlib.util
import sys
import threading
from typing import Any

_PACKAGE = "dp_accounting"


def _put_off() -> None:
    """Put the package into ``sys.modules``, with its ``__init__`` deferred to the first access;
    done once a process.
    """
    spec = None if _PACKAGE in sys.modules else importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.loader is None:
        return  # imported already, or not installed: then the import below raises
    package, run = importlib.util.module_from_spec(spec), spec.loader.exec_module
    lock, running, done = threading.RLock(), False, False

    def load(name: str) -> Any:
        """What the package's own code defines; its code is run the first time."""
        nonlocal running, done
        missing = AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
        if name.startswith("__"):
            raise missing  # inspection asks for such names
        with lock:
            if running:
                raise missing  # its own code asks for a name that it defines later
            if not done:
                running = True
                try:
                    run(package)
                    done = True
                finally:
                    running = False
        if name not in vars(package):
            raise missing
        return vars(package)[name]

    vars(package)["__getattr__"] = load
    sys.modules[_PACKAGE] = package


_put_off()

from dp_accounting.dp_event import (  # noqa: E402 (its package is put off first)
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

__all__ = [
    "ComposedDpEvent",
    "DpEvent",
    "GaussianDpEvent",
    "LaplaceDpEvent",
    "NoOpDpEvent",
    "PoissonSampledDpEvent",
    "RepeatAndSelectDpEvent",
    "SampledWithoutReplacementDpEvent",
    "SelfComposedDpEvent",
]
