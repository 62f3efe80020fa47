"""Other spellings of our own keys and values: short names of outputs, `dpsgd`."""

from collections.abc import Mapping
from typing import Any

from homo_dp.config.explain import SHORT_NAMES
from homo_dp.config.layers import drop, get, put
from homo_dp.core.errors import ConfigError

ALIASES = {
    **{name: f"output.{name}" for name in SHORT_NAMES},
    "data.file": "data.files",
}
MECHANISMS = {
    "dpsgd": "dp_sgd",
    "dp-sgd": "dp_sgd",
    "DPSGD": "dp_sgd",
    "dpfedavg": "dp_fedavg",
    "dp-fedavg": "dp_fedavg",
}


def rename(tree: dict[str, Any]) -> dict[str, Any]:
    """Replace every alias in one layer by our own key.

    >>> rename({"predictFileName": "p.csv", "privacy": {"mechanism": "dpsgd"}})
    {'privacy': {'mechanism': 'dp_sgd'}, 'output': {'predictFileName': 'p.csv'}}
    """
    tree = renamed(tree, ALIASES)
    mechanism = get(tree, "privacy.mechanism")
    if isinstance(mechanism, str) and mechanism in MECHANISMS:
        tree["privacy"]["mechanism"] = MECHANISMS[mechanism]
    return tree


def renamed(tree: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A copy of a tree in which other names of dotted keys are replaced.

    Args:
        tree: nested plain values.
        names: each other name, and the key that it stands for.

    Returns:
        The copy.

    Raises:
        ConfigError: a key and another name of it are given with different values.
    """
    tree = {name: dict(value) if isinstance(value, dict) else value for name, value in tree.items()}
    for alias, ours in names.items():
        value = get(tree, alias)
        if value is None:
            continue
        drop(tree, alias)
        if get(tree, ours) not in (None, value):
            raise ConfigError(
                f"{alias}={value}: is another name of {ours}={get(tree, ours)}; give only one of "
                "them"
            )
        put(tree, tuple(ours.split(".")), value)
    return tree
