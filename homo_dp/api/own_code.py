"""A class or function of one's own under a name that a config can hold, without a package on the
path.

What can be imported keeps its own import path, so that a saved model can be opened elsewhere. What
cannot (a notebook's cell, a class inside of a function) is kept in this module for the life of the
process.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

_NOT_IN_A_NAME = re.compile(r"\W+")


def import_path(own: type | Callable[..., Any]) -> str:
    """``package.module:name`` under which ``own`` is found in this process.

    >>> import_path(import_path)
    'homo_dp.api.own_code:import_path'
    >>> import_path(lambda input_shape: None)
    'homo_dp.api.own_code:own_lambda'
    """
    module, name = (
        getattr(own, "__module__", None),
        getattr(own, "__qualname__", None) or type(own).__qualname__,
    )
    if (
        module
        and module != "__main__"
        and name.isidentifier()
        and getattr(sys.modules.get(module), name, None) is own
    ):
        return f"{module}:{name}"
    kept = "own_" + _NOT_IN_A_NAME.sub("_", name.rpartition("<locals>.")[2]).strip("_")
    keep(kept, own)
    return f"{__name__}:{kept}"


def keep(name: str, own: object) -> None:
    """Let this module answer to ``name`` with ``own``; a later object of the same name takes its
    place.
    """
    setattr(sys.modules[__name__], name, own)


def kept_name(path: str) -> str | None:
    """The name of a path that lies in this module, None for one that can be imported."""
    module, _, name = path.partition(":")
    return name if module == __name__ and name.startswith("own_") else None
