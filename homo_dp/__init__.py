"""Horizontal federated learning with differential privacy that holds.

    import homo_dp

    result = homo_dp.fit(
        {"a": frame_a, "b": frame_b},
        label="outcome",
        epsilon=2,
        bounds={"age": (0, 120)},
        categories={"ward": ["A", "B"]},
        ledger="ledger.sqlite",
    )
    result.model.predict(frame)

Names are imported when they are first used: ``import homo_dp`` alone costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from homo_dp.api.auditing import audit
    from homo_dp.api.clients import train_clients
    from homo_dp.api.describing import describe
    from homo_dp.api.model import Model, load
    from homo_dp.api.planning import Plan, plan
    from homo_dp.api.processes import aggregator, party
    from homo_dp.api.result import Result
    from homo_dp.api.run import Run
    from homo_dp.api.statistics import Statistics, stats
    from homo_dp.api.training import fit
    from homo_dp.config.schema import Config

# Where each name is.
_NAMES = {
    "Config": "homo_dp.config.schema:Config",
    "Model": "homo_dp.api.model:Model",
    "Plan": "homo_dp.api.planning:Plan",
    "Result": "homo_dp.api.result:Result",
    "Run": "homo_dp.api.run:Run",
    "Statistics": "homo_dp.api.statistics:Statistics",
    "aggregator": "homo_dp.api.processes:aggregator",
    "audit": "homo_dp.api.auditing:audit",
    "describe": "homo_dp.api.describing:describe",
    "fit": "homo_dp.api.training:fit",
    "load": "homo_dp.api.model:load",
    "party": "homo_dp.api.processes:party",
    "plan": "homo_dp.api.planning:plan",
    "stats": "homo_dp.api.statistics:stats",
    "train_clients": "homo_dp.api.clients:train_clients",
}

__all__ = [
    "Config",
    "Model",
    "Plan",
    "Result",
    "Run",
    "Statistics",
    "__version__",
    "aggregator",
    "audit",
    "describe",
    "fit",
    "load",
    "party",
    "plan",
    "stats",
    "train_clients",
]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(
            f"module 'homo_dp' has no attribute {name!r}; it has {', '.join(sorted(_NAMES))}"
        )
    module, _, attribute = _NAMES[name].partition(":")
    found: Any = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
