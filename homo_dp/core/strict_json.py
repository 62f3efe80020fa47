"""JSON as its standard has it: Python's reader also takes NaN, infinities and keys that are
given twice.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def strict_json(text: str | bytes, *, unique: bool = True) -> Any:
    """The value of a JSON text; ValueError for NaN and infinities and, where keys must be
    ``unique``, for a second one.

    >>> strict_json('{"epsilon": 1.5}')
    {'epsilon': 1.5}
    """
    return json.loads(
        text, parse_constant=_no_constant, object_pairs_hook=_each_once if unique else None
    )


def json_digest(value: Any) -> str:
    """The SHA-256 of a value as JSON, whatever the order of its keys; a number that is not finite
    is refused.

    >>> json_digest({"rounds": 3, "version": 1}) == json_digest({"version": 1, "rounds": 3})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")
