"""From YAML files and overrides to one checked configuration, and back to text.

Layers: the defaults of the schema, then the files in order, then the overrides. An override of one key of an exclusive
pair (`privacy.noise_multiplier` over the file's `privacy.target_epsilon`) replaces the other; both in one layer are
wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from homo_dp.config.addresses import masked_tree
from homo_dp.config.aliases import ALIASES, rename, rename_for_nbafl
from homo_dp.config.explain import dotted, explain, show
from homo_dp.config.layers import forget_former_split, get, merge, put, split_key
from homo_dp.config.primihub import Task, check_files, is_task, translate
from homo_dp.config.privacy import left_aside
from homo_dp.config.recipes import recipe_path
from homo_dp.config.schema import Config
from homo_dp.config.text import LARGEST_YAML, parse_yaml, to_yaml
from homo_dp.core.errors import ConfigError
from homo_dp.core.foreign import Foreign

# What conf/homo_lr_dpsgd.yaml says that does not go with its table: tables that nobody describes may have its columns.
_OF_THE_DEFAULT_RECIPE = {"data": {"columns_from": "breast_cancer"}}
_DESCRIBED_BY = ("data.columns", "data.image", "federation.run")  # with the last, by the aggregator

Overrides = Mapping[str, Any] | Iterable[tuple[str, Any]]
Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Loaded:
    """A configuration and what its reader should be told about it."""

    config: Config
    notes: tuple[str, ...] = ()


def load_config(path: Paths | None = None, overrides: Overrides = ()) -> Config:
    """Read YAML configs (None: the defaults alone), put `overrides` (dotted key -> value) over them, check them.

    >>> load_config(None, {"privacy.noise_multiplier": 1.1}).privacy.target_epsilon is None
    True
    """
    return load(path, overrides).config


def load(path: Paths | None = None, overrides: Overrides = ()) -> Loaded:
    """Like `load_config`, with the notes of a translation from another system."""
    paths: Sequence[str | Path] = [path] if isinstance(path, str | Path) else (path or ())
    layers: list[dict[str, Any]] = []
    tasks: list[Task] = []
    for each in paths:
        tree = _read(Path(each))
        if is_task(tree):
            tasks.append(translate(tree, f"--config {each}"))
            tree = tasks[-1].tree
        layers.append(rename(tree))
    over: dict[str, Any] = {}
    pairs = overrides.items() if isinstance(overrides, Mapping) else overrides
    for key, value in pairs:
        put(over, split_key(ALIASES.get(key, key)), value)
    over = rename(over)
    if not paths and get(over, "data.files") and not any(get(over, key) for key in _DESCRIBED_BY):
        layers.append(_OF_THE_DEFAULT_RECIPE)
    layers = rename_for_nbafl(*layers, over)
    forget_former_split(layers)
    nothing: dict[str, Any] = {}
    merged = reduce(merge, layers, nothing)
    for task in tasks:
        check_files(task, merged)
    notes = [note for task in tasks for note in task.notes]
    idle = left_aside(merged.get("privacy"))
    notes += [f"privacy.{name}: is not used by privacy.mechanism=none; left aside" for name in idle]
    return Loaded(config_from(merged), tuple(notes))


def config_from(tree: Mapping[str, Any]) -> Config:
    """Check a tree of plain values."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, Config, tree)) from None


def dump_yaml(config: Config) -> str:
    """The resolved configuration as YAML; loading it again gives an equal one, unless a password was masked.

    >>> config_from(parse_yaml(dump_yaml(Config()))) == Config()
    True
    """
    return to_yaml(masked_tree(config.model_dump(mode="json")))


def flatten(config: Config) -> dict[str, str | int | float | bool | None]:
    """The resolved configuration as dotted keys and scalars (lists as text), for MLflow.

    >>> flatten(Config())["privacy.delta"]
    1e-05
    """
    flat: dict[str, str | int | float | bool | None] = {}

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, (*path, name))
        elif isinstance(value, list):
            flat[dotted(path)] = to_yaml(value).strip() if not value else "[" + ", ".join(map(str, value)) + "]"
        else:
            flat[dotted(path)] = value

    walk(masked_tree(config.model_dump(mode="json")), ())
    return flat


def _read(path: Path) -> dict[str, Any]:
    path = recipe_path(path)
    is_json = path.suffix == ".json"
    file = Foreign(f"--config {path}", "correct it", ConfigError, LARGEST_YAML)
    try:
        content = file.read(path)
    except FileNotFoundError:
        raise ConfigError(f"--config {path}: no such file; the recipes are in conf/") from None
    tree = file.json(content) if is_json else parse_yaml(file.text(content), str(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"--config {path}: must hold sections such as model, data, privacy; see docs/config.md")
    named: dict[str, Any] = _with_text_keys(tree)
    return named


def _with_text_keys(tree: Any) -> Any:
    """A column or party called 2024 is a number to YAML, and a name to us."""
    if isinstance(tree, dict):
        return {name if isinstance(name, str) else show(name): _with_text_keys(value) for name, value in tree.items()}
    return [_with_text_keys(part) for part in tree] if isinstance(tree, list) else tree
