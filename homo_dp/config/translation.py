"""What comes out of a file of another system: settings in our words, notes, and what the file leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from homo_dp.config.layers import get
from homo_dp.core.errors import ConfigError


@dataclass(frozen=True)
class Ask:
    """Something that a file leaves open: the words for it, the keys that answer it, whether nothing runs without."""

    text: str
    keys: tuple[str, ...]
    needed: bool = False

    def is_open(self, merged: Mapping[str, Any]) -> bool:
        """Whether no file and no override answers it."""
        return all(get(merged, key) is None for key in self.keys)


@dataclass
class Translation:
    """Settings in our words, what the reader should know, and what is to be asked where nothing else answers it."""

    tree: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)

    def still_asked(self, merged: Mapping[str, Any]) -> list[str]:
        """What is still open once all files and overrides are put together; what nothing runs without is an error."""
        left = [ask for ask in self.asks if ask.is_open(merged)]
        for ask in left:
            if ask.needed:
                raise ConfigError(ask.text)
        return [ask.text for ask in left]
