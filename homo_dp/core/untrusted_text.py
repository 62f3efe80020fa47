"""One way to read text that others wrote: bounded in size and depth, checked against a schema,
refused with our error.

Files on disk, command lines and metadata of model files are all read here. A damaged or crafted one
gives one line that names the file, the place in it and what to do; it never gives a traceback, and
the memory it takes is bounded.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from homo_dp.core.errors import InputError, printable
from homo_dp.core.strict_json import strict_json

Checked = TypeVar("Checked")

DEEPEST = 64  # brackets or indents inside each other; our own files need 12
MOST_VALUES = 2_000_000  # of one file, with everything that its aliases repeat
LARGEST_TEXT = 64 << 20  # bytes
LARGEST_WHOLE_NUMBER = 10**38


class Schema(BaseModel):
    """A part of a foreign file whose keys are known; others may stand beside them and are
    ignored.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", hide_input_in_errors=True, allow_inf_nan=False
    )


@dataclass(frozen=True)
class Foreign:
    """Where a foreign text comes from, what to do if it cannot be used, and how large it may be.

    >>> Foreign("a.json", "correct it").json('{"rounds": 3}')
    {'rounds': 3}
    >>> Foreign("a.json", "correct it").json('{"rounds": 3')
    Traceback (most recent call last):
    ...
    homo_dp.core.errors.InputError: a.json: line 1, column 13 is not valid JSON (Expecting ',' delimiter); correct it
    """

    name: str
    cure: str
    error: type[ValueError] = InputError
    largest: int = LARGEST_TEXT

    def read(self, path: Path) -> bytes:
        """The bytes of a file; FileNotFoundError is left to the caller, who knows what a missing
        file means.
        """
        try:
            with path.open("rb") as file:
                content = file.read(self.largest + 1)
        except FileNotFoundError:
            raise
        except IsADirectoryError:
            raise self.error(f"{self.name}: is a directory; give a file in it") from None
        except (OSError, ValueError) as error:
            self.refuse(f"cannot be read ({_said(error)})")
        self._check_size(len(content))
        return content

    def text(self, content: bytes) -> str:
        """The bytes as UTF-8 text, with or without a byte-order mark."""
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self.refuse(f"byte {error.start} is not UTF-8 text")

    def json(self, content: str | bytes) -> Any:
        """Strict JSON: no NaN, no infinity, no number or text that the rest of the program could
        not hold.
        """
        self._check_size(len(content))
        text = self.text(content) if isinstance(content, bytes) else content
        try:
            tree = strict_json(text, unique=False)
        except json.JSONDecodeError as error:
            self.refuse(
                f"line {error.lineno}, column {error.colno} is not valid JSON ({error.msg})"
            )
        except RecursionError:
            self.refuse(f"is nested deeper than {DEEPEST}")
        except ValueError as error:
            self.refuse(f"is not valid JSON ({_said(error)})")
        self._check_values(tree)
        return tree

    def check(self, schema: type[Checked] | TypeAdapter[Checked], tree: Any) -> Checked:
        """The tree as the schema says; the first thing that does not fit is named by its place."""
        adapter = schema if isinstance(schema, TypeAdapter) else TypeAdapter(schema)
        try:
            return adapter.validate_python(tree)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the whole"
            cause = (first.get("ctx") or {}).get("error")
            said = (
                str(cause)
                if isinstance(cause, ValueError)
                else first["msg"][:1].lower() + first["msg"][1:]
            )
            self.refuse(f"{printable(place)[:100]}: {said}")

    def refuse(self, problem: str) -> NoReturn:
        """Raise our error: the name, what is wrong, the cure."""
        raise self.error(f"{self.name}: {problem}; {self.cure}") from None

    def _check_size(self, size: int) -> None:
        if size > self.largest:
            self.refuse(f"is larger than {self.largest >> 10} KiB")

    def _check_values(self, tree: Any) -> None:
        left = [(tree, 1)]
        seen = 0
        while left:
            value, depth = left.pop()
            seen += 1
            if depth > DEEPEST or seen > MOST_VALUES:
                self.refuse(
                    f"is nested deeper than {DEEPEST}"
                    if depth > DEEPEST
                    else f"has over {MOST_VALUES} values"
                )
            if isinstance(value, dict):
                left += [(each, depth + 1) for pair in value.items() for each in pair]
            elif isinstance(value, list):
                left += [(each, depth + 1) for each in value]
            elif (problem := unfit(value)) is not None:
                self.refuse(problem)


def unfit(value: object) -> str | None:
    """Why a plain value could not be held by the rest of the program: written, compared, or made a
    float.

    >>> unfit("a"), unfit(10**400), unfit("\\ud800")
    (None, 'a whole number has more than 38 digits', 'a text holds half a character (a lone surrogate)')
    """
    if isinstance(value, str):
        return (
            None
            if value.isascii() or not _has_surrogate(value)
            else "a text holds half a character (a lone surrogate)"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return "a number is too large for a float"
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE_NUMBER:
        return "a whole number has more than 38 digits"
    return None


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _said(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return printable(" ".join(text.split()))[:200] or type(error).__name__
