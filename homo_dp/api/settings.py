"""Settings as Python gives them: dotted names, nested dicts, a Config, and classes where a
config has import paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from homo_dp.api.own_code import import_path
from homo_dp.compat.names import ALL_KEYS, rename
from homo_dp.config.layers import drop, get, merge, put, split_key
from homo_dp.config.load import config_from
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError

if TYPE_CHECKING:
    from homo_dp.federation.mechanisms.base import Mechanism

Settings = Mapping[str, Any] | Config
Own = str | type | Callable[..., Any]
_SECTIONS = frozenset(Config.model_fields)


def tree_of(settings: Settings | None) -> dict[str, Any]:
    """Nested plain values; of two spellings of one key the later one wins.

    >>> tree_of({"privacy": {"delta": 1e-6}, "privacy.ledger": "ledger.sqlite", "train.rounds": 5})
    {'privacy': {'delta': 1e-06, 'ledger': 'ledger.sqlite'}, 'train': {'rounds': 5}}
    """
    if settings is None:
        return {}
    if isinstance(settings, Config):
        return settings.model_dump(mode="json")
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        path = split_key(ALL_KEYS.get(key, key))
        if len(path) == 1 and path[0] in _SECTIONS and isinstance(value, Mapping):
            for name, inner in value.items():
                put(tree, (*path, *split_key(name)), _plain(inner))
        else:
            put(tree, path, _plain(value))
    return rename(tree)


def with_arguments(
    settings: Settings | None,
    arguments: Mapping[str, Any],
    *,
    model: Own | None = None,
    mechanism: str | type[Mechanism] | None = None,
    own_tables: bool = False,
) -> dict[str, Any]:
    """The tree of a run: settings, then arguments (dotted names; None is not given) over them,
    then own classes.
    """
    base = tree_of(settings)
    # its own tables, and what goes with them, make way
    if own_tables and isinstance(settings, Config):
        for name in (
            "embedded",
            "files",
            "columns_from",
            "partition",
            "party_column",
            "rows",
            "test_file",
        ):
            if name != "columns_from" or get(base, "data.columns_from") == get(
                base, "data.embedded"
            ):
                drop(base, f"data.{name}")
    over: dict[str, Any] = {}
    for key, value in arguments.items():
        if value is not None:
            put(over, split_key(key), _plain(value))
    if mechanism is not None:
        put(over, ("privacy", "mechanism"), _plain(mechanism))
    if model is not None:
        if callable(model) and not isinstance(model, type) and hasattr(model, "state_dict"):
            raise ConfigError(
                f"model: is a {type(model).__name__} that is already made; give its class or a "
                "function that makes one, so that every run starts from new weights"
            )
        built_in = isinstance(model, str) and ":" not in model
        put(over, ("model", "name" if built_in else "factory"), _plain(model))
    return merge(base, over)


def config_of(tree: Mapping[str, Any]) -> Config:
    """The checked configuration of a tree."""
    return config_from(tree)


def _plain(value: Any) -> Any:
    """Values as a config file would hold them: paths as text, own classes as import paths, numpy
    numbers as numbers.
    """
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if callable(value):
        return import_path(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return value
