"""dp-accounting's event classes, without its accountants.

``import dp_accounting`` runs all of its accountants and with them most of scipy, half a second and 60 MB, and a run
needs the classes of its events alone: its own PLD and RDP do the sums. So the package is entered in ``sys.modules``
with its code put off: a module of it can be imported by itself, and whoever asks the package for anything else (their
own code, a test) has its code run first and sees the package as always.
"""

import importlib.util
import sys
import threading
from typing import Any

_PACKAGE = "dp_accounting"


def _put_off() -> None:
    """Enter the package with its code put off until somebody asks it for something; done once a process."""
    spec = None if _PACKAGE in sys.modules else importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.loader is None:
        return  # imported already, or not installed: the import below does, or says, what is right
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
                raise missing  # its own code asks for what comes further down
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
    "SampledWithoutReplacementDpEvent",
    "SelfComposedDpEvent",
]
