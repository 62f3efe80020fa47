"""From files and overrides in anybody's words to one checked configuration, and what its reader
should be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.compat.names import ALL_KEYS, rename, rename_for_nbafl
from homo_dp.config.layers import get, put
from homo_dp.config.load import (
    Overrides,
    Paths,
    config_from,
    listed_paths,
    merge_layers,
    override_tree,
    read_tree,
)
from homo_dp.config.privacy import left_aside
from homo_dp.config.schema import Config

if TYPE_CHECKING:
    from homo_dp.compat.translation import System, Translation

_OURS = frozenset(Config.model_fields)
NO_CONFIG = "no config"


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


@dataclass
class InOurWords:
    """The layers of a configuration in our keys, and the translations that made them."""

    files: list[dict[str, Any]]
    overrides: dict[str, Any]
    translations: list[Translation]

    def merged(self) -> dict[str, Any]:
        """One tree of all layers, with the tables that a registry names."""
        tree = merge_layers(self.files, self.overrides)
        for each in self.translations:
            each.place_data(tree)
        if get(tree, "data.registry"):
            from homo_dp.compat.primihub.registry import put_addresses  # as in _systems

            put_addresses(tree)
        if self.translations and get(tree, "train.auto") is None:
            put(tree, ("train", "auto"), False)  # what is left open has that system's value
        return tree


def load(path: Paths | None = None, overrides: Overrides = ()) -> Loaded:
    """Read configs of ours or of other systems (None: the defaults alone), put `overrides`
    (dotted key -> value, in any of these words) over them, check them.
    """
    paths = listed_paths(path)
    over = override_tree(overrides, ALL_KEYS)
    ours = in_our_words([(f"--config {each}", read_tree(Path(each))) for each in paths], over)
    merged = ours.merged()
    notes = list(dict.fromkeys(note for t in ours.translations for note in t.finish(merged)))
    idle = left_aside(merged.get("privacy"))
    notes += [f"privacy.{name}: is not used by privacy.mechanism=none; left aside" for name in idle]
    asked = (each.process for each in ours.translations)
    process = next((process for process in asked if process != "train"), "train")
    return Loaded(config_from(merged), tuple(notes), process, _source(paths, ours.overrides))


def in_our_words(
    files: Sequence[tuple[str, dict[str, Any]]], overrides: dict[str, Any]
) -> InOurWords:
    """Translate every layer that another system wrote.

    Args:
        files: what errors call each file, and what it holds.
        overrides: what is put over the files.

    Returns:
        The layers in our keys.

    Raises:
        ConfigError: a file or an override asks for something that is not built here.
    """
    systems = _systems([*(tree for _, tree in files), overrides])
    translations: list[Translation] = []
    layers: list[dict[str, Any]] = []
    for source, tree in files:
        system = next((each for each in systems if each.recognises(tree)), None)
        if system is None:
            layers.append(rename(tree))
        else:
            translations.append(system.translate(tree, overrides, source))
            layers.append(rename(translations[-1].tree))
    over = overrides
    for each in systems:
        if each.translate_overrides is not None:
            made = each.translate_overrides(over, [tree for _, tree in files])
            if made is not None:
                translations.append(made)
                over = made.tree
    *layers, over = rename_for_nbafl(*layers, rename(over))
    return InOurWords(layers, over, translations)


def _systems(trees: Sequence[dict[str, Any]]) -> Sequence[System]:
    """The systems that may have written some of these; none where all sections are ours."""
    if all(tree.keys() <= _OURS for tree in trees):
        return ()
    # six modules and 0.03 s that a run of a config of ours does not need
    from homo_dp.compat.systems import SYSTEMS

    return SYSTEMS


def _source(paths: Sequence[str | Path], over: Mapping[str, Any]) -> str:
    """Where a configuration comes from, as the first line of a run shows it."""
    if paths:
        return f"config: {', '.join(map(str, paths))}"
    own_data = any(get(over, f"data.{key}") for key in ("files", "embedded", "registry"))
    return NO_CONFIG if own_data else f"{NO_CONFIG}: the built-in example"
