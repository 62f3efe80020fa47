"""Horizontal federated learning with differential privacy that holds.

    import homo_dp

    result = homo_dp.train({"a": frame_a, "b": frame_b}, label="outcome", epsilon=2, ledger="ledger.sqlite", ...)
    result.model.predict(frame)

Names are imported when they are first used: ``import homo_dp`` alone costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from homo_dp.api.model import Model, load
    from homo_dp.api.planning import Plan, plan
    from homo_dp.api.result import Result
    from homo_dp.api.training import train
    from homo_dp.config.schema import Config

# Where each name is. A command that is a function here too (train) is its module, which can be called.
_NAMES = {
    "Config": "homo_dp.config.schema:Config",
    "Model": "homo_dp.api.model:Model",
    "Plan": "homo_dp.api.planning:Plan",
    "Result": "homo_dp.api.result:Result",
    "load": "homo_dp.api.model:load",
    "plan": "homo_dp.api.planning:plan",
    "train": "homo_dp.train",
}

__all__ = ["Config", "Model", "Plan", "Result", "__version__", "load", "plan", "train"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'homo_dp' has no attribute {name!r}; it has {', '.join(sorted(_NAMES))}")
    module, _, attribute = _NAMES[name].partition(":")
    found: Any = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
