"""From YAML files and overrides to one checked configuration, and back to text.

Layers: the defaults of the schema, then the files in order, then the overrides. An override of one
key of an exclusive pair (`privacy.noise_multiplier` over the file's `privacy.target_epsilon`)
replaces the other; both in one layer are wrong.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from homo_dp.config.addresses import masked_tree
from homo_dp.config.aliases import ALIASES, rename, rename_for_nbafl
from homo_dp.config.book_chapter import is_book_chapter, translate_book_chapter
from homo_dp.config.explain import dotted, explain, show
from homo_dp.config.federatedscope import SECTIONS, is_federatedscope, translate_federatedscope
from homo_dp.config.layers import forget_former_split, get, merge, put, split_key
from homo_dp.config.primihub import PrimihubTask, check_files, is_task, translate
from homo_dp.config.primihub_registry import read_registry
from homo_dp.config.privacy import left_aside
from homo_dp.config.recipes import recipe_path
from homo_dp.config.schema import Config
from homo_dp.config.translation import Translation
from homo_dp.config.yaml_text import LARGEST_YAML, parse_yaml, to_yaml
from homo_dp.core.errors import ConfigError
from homo_dp.core.untrusted_text import Foreign

# Files that are given without a config and without a description are taken to have the default
# recipe's columns.
_OF_THE_DEFAULT_RECIPE = {"data": {"columns_from": "breast_cancer"}}
_DESCRIBED_BY = ("data.columns", "data.image", "federation.run")  # with the last, by the aggregator
WORKING_CONFIG = "config.yaml"  # of the working folder; commands read it where none is named
NO_CONFIG = "no config"

Overrides = Mapping[str, Any] | Iterable[tuple[str, Any]]
Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Loaded:
    """A configuration and what its reader should be told about it."""

    config: Config
    notes: tuple[str, ...] = ()
    process: str = "train"  # or predict: what a PrimiHub task file asks for
    source: str = NO_CONFIG  # the files that it was read from, for the first line of a run

    @property
    def named_source(self) -> str:
        """The same for a command that trains no built-in example."""
        return NO_CONFIG if self.source.startswith(NO_CONFIG) else self.source


def load_config(path: Paths | None = None, overrides: Overrides = ()) -> Config:
    """Read YAML configs (None: the defaults alone), put `overrides` (dotted key -> value) over
    them, check them.

    >>> load_config(None, {"privacy.noise_multiplier": 1.1}).privacy.target_epsilon is None
    True
    """
    return load(path, overrides).config


def load(path: Paths | None = None, overrides: Overrides = ()) -> Loaded:
    """Like `load_config`, with the notes of a translation from another system."""
    paths: Sequence[str | Path] = [path] if isinstance(path, str | Path) else (path or ())
    over: dict[str, Any] = {}
    pairs = overrides.items() if isinstance(overrides, Mapping) else overrides
    for key, value in pairs:
        put(over, split_key(ALIASES.get(key, key)), value)
    layers: list[dict[str, Any]] = []
    tasks: list[PrimihubTask] = []
    translations: list[Translation] = []
    read = [read_tree(Path(each)) for each in paths]
    for each, tree in zip(paths, read, strict=True):
        if (translation := translated(tree, over, f"--config {each}")) is not None:
            translations.append(translation)
            tasks += [translation] if isinstance(translation, PrimihubTask) else []
        layers.append(rename(tree if translation is None else translation.tree))
    theirs = [tree for tree in read if is_federatedscope(tree)]
    if theirs or SECTIONS & set(over):
        translation = translate_federatedscope(
            over, "overrides", under=theirs[-1] if theirs else {}
        )
        translations.append(translation)
        over = translation.tree
    over = rename(over)
    if not paths and get(over, "data.files") and not any(get(over, key) for key in _DESCRIBED_BY):
        layers.append(_OF_THE_DEFAULT_RECIPE)
    layers = rename_for_nbafl(*layers, over)
    forget_former_split(layers)
    nothing: dict[str, Any] = {}
    merged = reduce(merge, layers, nothing)
    _look_up(merged, tasks)
    for task in tasks:
        check_files(task, merged)
    notes = [
        note
        for each in translations
        for note in (*each.notes, *each.fill(merged), *each.still_asked(merged))
    ]
    notes = list(dict.fromkeys(notes))
    if translations and get(merged, "train.auto") is None:
        put(merged, ("train", "auto"), False)  # what is left open has that system's value
    idle = left_aside(merged.get("privacy"))
    notes += [f"privacy.{name}: is not used by privacy.mechanism=none; left aside" for name in idle]
    config = config_from(merged)
    process = next((task.process for task in tasks), "train")
    return Loaded(config, tuple(notes), process, _source(paths, over))


def _source(paths: Sequence[str | Path], over: Mapping[str, Any]) -> str:
    """Where a configuration comes from, as the first line of a run shows it."""
    if paths:
        return f"config: {', '.join(map(str, paths))}"
    own_data = any(get(over, f"data.{key}") for key in ("files", "embedded", "registry"))
    return NO_CONFIG if own_data else f"{NO_CONFIG}: the built-in example"


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


def translated(tree: dict[str, Any], over: dict[str, Any], source: str) -> Translation | None:
    """A config of another system in our words; None if it is ours."""
    if is_task(tree):
        return translate(tree, source)
    if is_federatedscope(tree):
        return translate_federatedscope(tree, source, over=over)
    return translate_book_chapter(tree, source) if is_book_chapter(tree) else None


def _look_up(merged: dict[str, Any], tasks: Sequence[PrimihubTask]) -> None:
    """Put the addresses that the registry knows in the place of data set names."""
    paths = get(merged, "data.registry")
    if not paths:
        return
    names = read_registry([paths] if isinstance(paths, str) else paths)
    for task in tasks:
        key = "data.files" if task.process == "train" else "data.test_file"
        for party, name in task.data_sets.items():
            given = get(merged, key)
            if name in names and not isinstance(given, str) and party not in (given or {}):
                put(merged, (*key.split("."), party), names[name])
    for key in ("files", "test_file"):
        given = get(merged, f"data.{key}")
        if isinstance(given, dict):
            merged["data"][key] = {party: names.get(name, name) for party, name in given.items()}
        elif isinstance(given, str):
            merged["data"][key] = names.get(given, given)


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
