"""Modules that can be called: ``homo_dp.train`` is the command's module and, called, the function
of the Python API.

Importing ``homo_dp.train`` anywhere binds the module to that name of the package, over whatever
function was there. So the function cannot be put beside the module; the module itself takes the
call (docs/adr/0009).
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """A module that can be called: the call goes to one function, which is looked up at that
    moment.
    """

    called: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _function(self.called)(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function, for ``inspect.signature`` and ``help``."""
        return inspect.signature(_function(self.called))


def make_callable(module: str, function: str) -> None:
    """Let a module be called as ``function``, named ``package.module:name``; it is imported at
    the first call.
    """
    found = sys.modules[module]
    found.__class__ = _Called
    found.called = function  # type: ignore[attr-defined]


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
