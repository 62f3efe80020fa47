"""What stands after `--params` and `--cfg FILE`, with the names that PrimiHub's commands use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from homo_dp.compat.names import IGNORED, NEEDS_FILES, OLD_NAMES
from homo_dp.config.explain import takes_text
from homo_dp.config.params import TypedItem, checked_key, parse_value, read_items
from homo_dp.config.schema import Config
from homo_dp.config.yaml_text import parse_scalar
from homo_dp.core.errors import ConfigError


@dataclass(frozen=True)
class Params:
    """Overrides in the order given, and what was set aside."""

    items: tuple[tuple[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


def parse_params(texts: Iterable[str]) -> Params:
    """Read the texts of all `--params` options.

    >>> parse_params(["train.rounds=30,data.use=[a, b] predictFileName:STRING:0:/data/x.csv"]).items
    (('train.rounds', 30), ('data.use', ['a', 'b']), ('output.predictFileName', '/data/x.csv'))
    """
    items: list[tuple[str, Any]] = []
    notes: list[str] = []
    for item in read_items(texts):
        if not isinstance(item, TypedItem):
            items.append(item)
        elif item.name in IGNORED:
            notes.append(f"{item.name}: {IGNORED[item.name]}; ignored")
        else:
            items.extend(_translated(item))
    return Params(tuple(items), tuple(notes))


def parse_pairs(words: Sequence[str]) -> Params:
    """Read `key value key value ...`, as FederatedScope writes overrides after `--cfg FILE`.

    >>> parse_pairs(["nbafl.mu", "0.01", "train.rounds", "5"]).items
    (('nbafl.mu', 0.01), ('train.rounds', 5))
    """
    if len(words) % 2:
        raise ConfigError(f"--cfg: {words[-1]} has no value; give overrides as `key value` pairs")
    return Params(
        tuple(
            (checked_key(key), parse_value(value))
            for key, value in zip(words[::2], words[1::2], strict=True)
        )
    )


def _translated(item: TypedItem) -> Iterator[tuple[str, Any]]:
    name, value = item.name, item.value
    if name in NEEDS_FILES:
        raise ConfigError(
            f"--params {name}={value}: names PrimiHub data sets; give data.files.<party>=FILE for "
            "each"
        )
    if name == "learning_rate" and value == "optimal":
        yield "train.schedule", "optimal"
        return
    key = checked_key(OLD_NAMES.get(name, name))
    parts = [part for part in value.split(";") if part] if item.is_array else [value]
    values = [_typed(key, item.kind, part) for part in parts]
    yield key, values if item.is_array else values[0]


def _typed(key: str, kind: str, value: str) -> Any:
    if kind == "INT32":
        if not re.fullmatch(r"\s*[-+]?[0-9]{1,10}\s*", value) or not -(2**31) <= int(value) < 2**31:
            raise ConfigError(
                f"--params {key}:INT32={value}: must be a whole number of 32 bits; correct it"
            )
        return int(value)
    # The older form has no type for numbers with a fraction: text is read as a scalar where the
    # key wants no text.
    return value if takes_text(Config, key) else parse_scalar(value)
