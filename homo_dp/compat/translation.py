"""What another system offers to this room, and a file of it in our keys: settings, notes for the
reader, and what is left open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from homo_dp.config.layers import EXCLUSIVE, get, put
from homo_dp.core.errors import ConfigError

Tree = Mapping[str, Any]


@dataclass(frozen=True)
class Ask:
    """Something that a file leaves open: the words for it, the keys that answer it, whether
    nothing runs without.
    """

    text: str
    keys: tuple[str, ...]
    needed: bool = False

    def is_open(self, merged: Mapping[str, Any]) -> bool:
        """Whether no file and no override answers it."""
        return all(get(merged, key) is None for key in self.keys)


@dataclass(frozen=True)
class Fallback:
    """A setting that holds where no file and no override sets its key, or a key in its place.

    Attributes:
        key: our key.
        value: what it is set to.
        name: the key of the other system that was left open; the notes list it. None where the
            other system's file does give the value.
        note: what the reader is told where the setting is used.
        unless: keys of ours that take its place, beside those that exclude `key`.
        mechanisms: those that read the key; empty for any.
    """

    key: str
    value: Any
    name: str | None = None
    note: str | None = None
    unless: tuple[str, ...] = ()
    mechanisms: tuple[str, ...] = ()

    def is_open(self, merged: Mapping[str, Any]) -> bool:
        """Whether nothing else sets the key.

        >>> Fallback("train.batch_size", 64).is_open({"train": {"sample_rate": 0.1}})
        False
        """
        mechanism = get(merged, "privacy.mechanism") or "dp_sgd"
        if self.mechanisms and mechanism not in self.mechanisms:
            return False
        given = [self.key, *self.unless]
        for group in EXCLUSIVE:
            mine = [key for key in group if f"{self.key}.".startswith(f"{key}.")]
            given += [key for key in group if mine and key not in mine]
        if self.key.startswith("data.partition."):  # it splits one table, not several
            files = get(merged, "data.files")
            if isinstance(files, dict) and len(files) > 1:
                return False
        return all(get(merged, key) is None for key in given)


@dataclass
class Translation:
    """Settings in our words, what the reader should know, and what is to be asked or filled in
    where nothing else answers it.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    system: str = "the other system"
    process: str = "train"  # or predict

    def place_data(self, merged: dict[str, Any]) -> None:
        """Put tables into `merged` that only a registry in it names; none, unless a system has
        such names.
        """

    def finish(self, merged: dict[str, Any]) -> list[str]:
        """Put into `merged` what no file and no override sets; all notes.

        Raises:
            ConfigError: something is still open that nothing runs without.
        """
        return [*self.notes, *self.fill(merged), *self.still_asked(merged)]

    def fill(self, merged: dict[str, Any]) -> list[str]:
        """Put the fallbacks that are still open into `merged`; the notes about them."""
        used: list[Fallback] = []
        for each in self.fallbacks:
            if each.is_open(merged):
                put(merged, tuple(each.key.split(".")), each.value)
                used.append(each)
        notes = [each.note for each in used if each.note is not None]
        if named := [f"{each.name}={_shown(each.value)}" for each in used if each.name is not None]:
            notes.append(f"left open, so the values of {self.system} hold: {', '.join(named)}")
        return notes

    def still_asked(self, merged: Mapping[str, Any]) -> list[str]:
        """What is still open once all files and overrides are put together; what nothing runs
        without is an error.
        """
        if needed := self.missing(merged):
            raise ConfigError(needed[0])
        return [ask.text for ask in self.asks if ask.is_open(merged)]

    def missing(self, merged: Mapping[str, Any]) -> list[str]:
        """What is still open that nothing runs without."""
        return [ask.text for ask in self.asks if ask.needed and ask.is_open(merged)]

    def tables_to_name(self, merged: Mapping[str, Any]) -> list[str]:
        """The parties whose file is not known yet."""
        return []


@dataclass(frozen=True)
class System:
    """Another system whose files can be given in the place of ours.

    Attributes:
        name: as notes and errors call it.
        recognises: whether what a file holds is a config of this system.
        translate: makes a translation of that, of the overrides given with it, and of the name
            that errors use for the file.
        translate_overrides: makes a translation of overrides in this system's words, given the
            files under them; None where neither speaks of this system. Not set for systems whose
            overrides are ours.
    """

    name: str
    recognises: Callable[[Tree], bool]
    translate: Callable[[Tree, Tree, str], Translation]
    translate_overrides: Callable[[Tree, Sequence[Tree]], Translation | None] | None = None


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
