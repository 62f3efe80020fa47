"""From YAML files and overrides to one checked configuration, and back to text.

This is for files in our words; `homo_dp.compat.load` reads those of other systems too.

Layers: the defaults of the schema, then the files in order, then the overrides. An override of one
key of an exclusive pair (`privacy.noise_multiplier` over the file's `privacy.target_epsilon`)
replaces the other; both in one layer are wrong.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from homo_dp.config.addresses import masked_tree
from homo_dp.config.aliases import ALIASES, rename
from homo_dp.config.explain import dotted, explain, show
from homo_dp.config.layers import forget_former_split, get, merge, put, split_key
from homo_dp.config.recipes import recipe_path
from homo_dp.config.schema import Config
from homo_dp.config.yaml_text import LARGEST_YAML, parse_yaml, to_yaml
from homo_dp.core.errors import ConfigError
from homo_dp.core.untrusted_text import Foreign

# Files that are given without a config and without a description are taken to have the default
# recipe's columns.
_OF_THE_DEFAULT_RECIPE = {"data": {"columns_from": "breast_cancer"}}
_DESCRIBED_BY = ("data.columns", "data.image", "federation.run")  # with the last, by the aggregator
WORKING_CONFIG = "config.yaml"  # of the working folder; commands read it where none is named

Overrides = Mapping[str, Any] | Iterable[tuple[str, Any]]
Paths = str | Path | Sequence[str | Path]


def load_config(path: Paths | None = None, overrides: Overrides = ()) -> Config:
    """Read YAML configs (None: the defaults alone), put `overrides` (dotted key -> value) over
    them, check them.

    >>> load_config(None, {"privacy.noise_multiplier": 1.1}).privacy.target_epsilon is None
    True
    """
    files = [rename(read_tree(Path(each))) for each in listed_paths(path)]
    return config_from(merge_layers(files, rename(override_tree(overrides, ALIASES))))


def listed_paths(path: Paths | None) -> Sequence[str | Path]:
    """The files that a caller names: none, one, or several."""
    return [path] if isinstance(path, str | Path) else (path or ())


def override_tree(overrides: Overrides, names: Mapping[str, str]) -> dict[str, Any]:
    """Overrides as nested values; a later value of the same key wins, also under another name.

    Args:
        overrides: dotted keys and their values.
        names: other names of dotted keys.

    Returns:
        The nested values.
    """
    tree: dict[str, Any] = {}
    pairs = overrides.items() if isinstance(overrides, Mapping) else overrides
    for key, value in pairs:
        put(tree, split_key(names.get(key, key)), value)
    return tree


def merge_layers(files: Sequence[dict[str, Any]], overrides: dict[str, Any]) -> dict[str, Any]:
    """One tree of files in order, and of overrides over them.

    Args:
        files: what each file holds, in our words.
        overrides: the same of what is put over them.

    Returns:
        The settings that hold.
    """
    layers = [*files, overrides]
    of_files = get(overrides, "data.files")
    if not files and of_files and not any(get(overrides, key) for key in _DESCRIBED_BY):
        layers.insert(0, _OF_THE_DEFAULT_RECIPE)
    forget_former_split(layers)
    nothing: dict[str, Any] = {}
    return reduce(merge, layers, nothing)


def working_config() -> str | None:
    """The configuration of the working folder, None if there is none.

    Raises:
        ConfigError: the file is there, and is not a configuration of homo_dp.
    """
    path = Path(WORKING_CONFIG)
    if not os.path.lexists(path):
        return None
    try:
        tree = read_tree(path)
    except ConfigError as error:
        text = str(error).removeprefix("--config ")
        raise ConfigError(f"{text}; or name another configuration with --config FILE") from None
    if not isinstance(tree.get("data"), dict):
        raise ConfigError(
            f"{WORKING_CONFIG}: is in the working folder, but is not a configuration of homo_dp "
            "(it has no data: section); name the configuration to use with --config FILE"
        )
    return WORKING_CONFIG


def config_from(tree: Mapping[str, Any]) -> Config:
    """Check a tree of plain values."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, Config, tree)) from None


def dump_yaml(config: Config) -> str:
    """The resolved configuration as YAML; loading it again gives an equal one, unless a password
    was masked.

    >>> config_from(parse_yaml(dump_yaml(Config()))) == Config()
    True
    """
    return to_yaml(masked_tree(config.model_dump(mode="json")))


def flatten(config: Config) -> dict[str, str | int | float | bool | None]:
    """The resolved configuration as dotted keys and scalars (lists as text), for MLflow.

    >>> flatten(Config())["privacy.target_epsilon"]
    4.0
    """
    flat: dict[str, str | int | float | bool | None] = {}

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, (*path, name))
        elif isinstance(value, list):
            flat[dotted(path)] = (
                to_yaml(value).strip() if not value else "[" + ", ".join(map(str, value)) + "]"
            )
        else:
            flat[dotted(path)] = value

    walk(masked_tree(config.model_dump(mode="json")), ())
    return flat


def read_tree(path: Path) -> dict[str, Any]:
    """The sections of a configuration file, or of a recipe by its name, as they are written."""
    path = recipe_path(path)
    is_json = path.suffix == ".json"
    file = Foreign(f"--config {path}", "correct it", ConfigError, LARGEST_YAML)
    try:
        content = file.read(path)
    except FileNotFoundError:
        raise ConfigError(f"--config {path}: no such file; the recipes are in conf/") from None
    tree = file.json(content) if is_json else parse_yaml(file.text(content), str(path))
    if tree is None or tree == {}:
        raise ConfigError(
            f"--config {path}: holds no settings; write sections such as model, data, privacy "
            "(docs/config.md), or leave it out to train the built-in example"
        )
    if not isinstance(tree, dict):
        raise ConfigError(
            f"--config {path}: must hold sections such as model, data, privacy; see docs/config.md"
        )
    named: dict[str, Any] = _with_text_keys(tree)
    return named


def _with_text_keys(tree: Any) -> Any:
    """A column or party called 2024 is a number to YAML, and a name to us."""
    if isinstance(tree, dict):
        return {
            name if isinstance(name, str) else show(name): _with_text_keys(value)
            for name, value in tree.items()
        }
    return [_with_text_keys(part) for part in tree] if isinstance(tree, list) else tree
