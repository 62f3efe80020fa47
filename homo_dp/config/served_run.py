"""One run of a party that serves: who may have started it, and what differs from the party's own
config in it.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any, Final

from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError

SERVED: Final = "served.yaml"  # the layer, in the run's folder
_OUTPUTS: Final = ("predictFileName", "indicatorFileName", "modelFileName")


def check_bounded(config: Config) -> None:
    """Refuse to serve where nothing bounds what all runs together may cost.

    A cap holds for one run, and whoever may ask decides how many there are. So a lifetime budget
    has to bound them, or the operator, who sees each plan.
    """
    rules = config.party.serve
    if rules is None or rules.approve == "ask" or config.privacy.lifetime_epsilon is not None:
        return
    raise ConfigError(
        f"privacy.lifetime_epsilon: is not given, and party.serve.approve={rules.approve} takes "
        "any number of runs at the cap of one each; give what all runs on these data may cost "
        "together (with data.name), or party.serve.approve: ask"
    )


def served_layer(config: Config, run: str, aggregator_key: str | None) -> dict[str, Any]:
    """The run's name, its asker, a folder for its outputs, and on Flower a socket in its own
    folder.

    Raises:
        ConfigError: nothing bounds what all runs together may cost.
    """
    check_bounded(config)
    outputs = {name: Path(getattr(config.output, name)) for name in _OUTPUTS}
    return {
        "federation": {"run": run},
        "party": {"aggregator_key": aggregator_key},
        "output": {name: str(path.parent / run / path.name) for name, path in outputs.items()},
        "transport": {"flower": {"socket": None, "group": None}},
    }


def asker_key(config: Config, run: str) -> str | None:
    """The key of the first asker whose patterns fit a run's name; raises ConfigError if nobody
    may use that name.
    """
    rules = config.party.serve
    if rules is None or not rules.askers:
        return config.party.aggregator_key
    for asker in rules.askers:
        if any(fnmatch.fnmatchcase(run, pattern) for pattern in asker.runs):
            return asker.aggregator_key
    raise ConfigError(
        f"party.serve.askers: none of them may start run {run}; add its name to the runs of one"
    )
