"""Merging layers of settings: the later layer wins, and what contradicts it is dropped from the
earlier one.
"""

from collections.abc import Sequence
from typing import Any

from homo_dp.config.mechanisms import SECTIONS, capabilities_of
from homo_dp.config.privacy import idle_keys
from homo_dp.core.errors import ConfigError
from homo_dp.core.untrusted_text import DEEPEST

# Keys of which only one can be given: setting one in a later layer drops the others of the earlier
# layer.
EXCLUSIVE: tuple[tuple[str, ...], ...] = (
    ("privacy.target_epsilon", "privacy.noise_multiplier"),
    ("privacy.cohort_size", "privacy.sample_rate"),
    ("nbafl.delta", "nbafl.constant"),
    ("train.local_epochs", "train.local_steps"),
    ("train.batch_size", "train.sample_rate"),
    ("data.embedded", "data.files"),
    ("data.test_file", "data.test_fraction", "data.split_column"),
    ("data.partition", "data.party_column"),
)
# Sections that may be written as a bare word, and the key that takes the word.
SHORTHANDS = {
    "train.schedule": "kind",
    "train.averaging": "kind",
    "train.server_optimizer": "name",
    "data.partition": "kind",
}


def split_key(key: str) -> tuple[str, ...]:
    """Split a dotted key; parts in quotes may hold dots and spaces.

    >>> split_key("data.columns.'mean radius'.bounds")
    ('data', 'columns', 'mean radius', 'bounds')
    """
    parts: list[str] = []
    word, quote, i = "", "", 0
    while i < len(key):
        letter = key[i]
        if quote and letter == quote and key[i + 1 : i + 2] == quote:
            word, i = word + quote, i + 1
        elif quote:
            quote, word = ("", word) if letter == quote else (quote, word + letter)
        elif letter in "'\"" and not word:
            quote = letter
        elif letter == "." and len(parts) >= DEEPEST:
            raise ConfigError(
                f"{key[:40]}...: has more than {DEEPEST} parts; see docs/config.md for the keys"
            )
        elif letter == ".":
            parts, word = [*parts, word], ""
        else:
            word += letter
        i += 1
    parts.append(word)
    if quote or not all(parts):
        raise ConfigError(f"{key}: is not a dotted key such as train.rounds; check dots and quotes")
    return tuple(parts)


def put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a nested key; a later value of the same key wins."""
    for depth, name in enumerate(path[:-1], start=1):
        inner = tree.get(name)
        if isinstance(inner, str) and (word := SHORTHANDS.get(".".join(path[:depth]))):
            inner = {word: inner}
        tree[name] = inner if isinstance(inner, dict) else {}
        tree = tree[name]
    tree[path[-1]] = value


def get(tree: Any, key: str) -> Any:
    """A nested value by its dotted key, None if it is not there."""
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def drop(tree: dict[str, Any], key: str) -> None:
    """Forget a nested key, if it is there."""
    path, _, last = key.rpartition(".")
    owner = get(tree, path) if path else tree
    if isinstance(owner, dict):
        owner.pop(last, None)


def merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Put a layer over another: mappings join, everything else replaces; exclusive keys make
    way.
    """
    base: dict[str, Any] = _copy(under)
    for group in EXCLUSIVE:
        if any(get(over, key) is not None for key in group):
            for key in group:
                if get(over, key) is None:
                    drop(base, key)
    _leave_mechanism(base, over)
    if get(over, "data.embedded") is not None:  # which brings a description of its own
        drop(base, "data.columns_from")
    joined: dict[str, Any] = _join(base, over, "")
    return joined


def forget_former_split(layers: Sequence[dict[str, Any]]) -> None:
    """Where a later layer names other tables, drop how the former ones were split, up to the
    layer that named them.
    """
    named = [
        at
        for at, layer in enumerate(layers)
        if get(layer, "data.files") or get(layer, "data.embedded")
    ]
    for layer in layers[: named[-2] + 1] if len(named) > 1 else ():
        for name in ("partition", "party_column", "user_column"):
            drop(layer, f"data.{name}")


def _leave_mechanism(base: dict[str, Any], over: dict[str, Any]) -> None:
    """If the later layer names another mechanism, drop from the earlier one what only the former
    mechanism reads.
    """
    mechanism = get(over, "privacy.mechanism")
    if not isinstance(mechanism, str) or mechanism == get(base, "privacy.mechanism"):
        return
    for name in (*idle_keys(mechanism), "unit"):
        drop(base, f"privacy.{name}")
    record = capabilities_of(mechanism)
    for name in SECTIONS if record.trains else ():
        if name not in record.sections:
            base.pop(name, None)


def _join(under: Any, over: Any, prefix: str) -> Any:
    if isinstance(over, dict) and isinstance(under, str) and prefix in SHORTHANDS:
        under = {SHORTHANDS[prefix]: under}
    if not (isinstance(over, dict) and isinstance(under, dict)):
        return _copy(over)
    joined = dict(under)
    for name, value in over.items():
        joined[name] = _join(under.get(name), value, f"{prefix}.{name}".lstrip("."))
    return joined


def _copy(tree: Any) -> Any:
    return {name: _copy(value) for name, value in tree.items()} if isinstance(tree, dict) else tree
