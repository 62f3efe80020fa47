"""What every section of the configuration shares: a frozen base class and the value types with
their messages.
"""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from homo_dp.config.addresses import address
from homo_dp.core.untrusted_text import LARGEST_WHOLE_NUMBER

Scalar = str | int | float | bool

_PARTY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z")
_LARGEST_FACTOR = 1e38  # of float32 tensors
_LARGEST_SEED = 2**64 - 1  # of torch's generators


class Section(BaseModel):
    """A frozen part of the configuration that refuses keys it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=False, hide_input_in_errors=True
    )


class Conflict(ValueError):
    """A message about several keys that is already complete: no key=value is put before it."""


def number(
    value: object, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> float:
    """Return a finite number within the given range, or say which range it is."""
    wanted = _range(above, least, most)
    if isinstance(value, bool) or not isinstance(value, int | float) or not _fits(value):
        raise ValueError(f"must be a finite number{wanted}")
    if not (value > above and least <= value <= most):
        raise ValueError(f"must be a number{wanted}")
    return float(value)


def _fits(value: float) -> bool:
    """Whether a number is finite as a float; whole numbers of 400 digits are not."""
    return math.isfinite(value) if isinstance(value, float) else abs(value) <= LARGEST_WHOLE_NUMBER


def whole(value: object, *, least: int, most: float = math.inf) -> int:
    """Return a whole number within the given range; 1e4 counts as one."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not (_fits(value) and least <= value <= most)
    ):
        raise ValueError(f"must be a whole number{_range(-math.inf, least, most)}")
    return value


def _range(above: float, least: float, most: float) -> str:
    parts = [f" above {above:g}"] if above > -math.inf else []
    parts += [f" of at least {least:g}"] if least > -math.inf else []
    parts += [f" at most {most:g}"] if most < math.inf else []
    return " and".join(parts)


def _probability(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError("must be a number above 0 and below 1")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be text that is not empty")
    return value


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("must be a file path")
    return str(address(value))


def _column(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # a header like 2024 reads as a number in YAML
    if not isinstance(value, str) or not value:
        raise ValueError("must be the name of a column")
    return value


def _party_name(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not _PARTY.match(value):
        raise ValueError(
            "must be a party name of 1 to 64 letters, digits, _ or -, starting with a letter or "
            "digit"
        )
    return value


def _import_path(value: object) -> str:
    if not isinstance(value, str) or not _IMPORT_PATH.match(value):
        raise ValueError("must be an import path like package.module:name")
    return value


def is_import_path(value: str) -> bool:
    """Whether a value names an object of the user's own code.

    >>> is_import_path("mine.laplace:Laplace"), is_import_path("dp_sgd")
    (True, False)
    """
    return bool(_IMPORT_PATH.match(value))


def _bounds(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("must be a list of two numbers, [low, high]")
    low, high = (number(end) for end in value)
    if low >= high:
        raise ValueError("must have low < high: swap or widen the bounds")
    return (low, high)


def listed(value: object) -> object:
    """Let one value stand for a list of one."""
    return (value,) if isinstance(value, str | int | float | bool) else value


def _scalar(value: object) -> object:
    if not isinstance(value, str | int | float) or not (isinstance(value, str) or _fits(value)):
        raise ValueError("must be text, a finite number, or true/false")
    return value


def shorthand(key: str) -> Callable[[Any], Any]:
    """Let a bare word stand for the mapping {key: word}."""
    return lambda value: {key: value} if isinstance(value, str) else value


Positive = Annotated[float, BeforeValidator(lambda v: number(v, above=0))]
StepSize = Annotated[float, BeforeValidator(lambda v: number(v, above=0, most=_LARGEST_FACTOR))]
Strength = Annotated[float, BeforeValidator(lambda v: number(v, least=0, most=_LARGEST_FACTOR))]
Number = Annotated[float, BeforeValidator(number)]
Rate = Annotated[float, BeforeValidator(lambda v: number(v, above=0, most=1))]
Fraction = Annotated[float, BeforeValidator(lambda v: number(v, least=0, most=1))]
Probability = Annotated[float, BeforeValidator(_probability)]
Count = Annotated[int, BeforeValidator(lambda v: whole(v, least=1))]
CountOrZero = Annotated[int, BeforeValidator(lambda v: whole(v, least=0))]
Seed = Annotated[int, BeforeValidator(lambda v: whole(v, least=0, most=_LARGEST_SEED))]
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_text)]
FilePath = Annotated[str, BeforeValidator(_path)]
Column = Annotated[str, BeforeValidator(_column)]
PartyName = Annotated[str, BeforeValidator(_party_name)]
ImportPath = Annotated[str, BeforeValidator(_import_path)]
Bounds = Annotated[tuple[float, float], BeforeValidator(_bounds)]
Value = Annotated[Scalar, BeforeValidator(_scalar)]
Values = Annotated[tuple[Value, ...], BeforeValidator(listed)]
Columns = Annotated[tuple[Column, ...], BeforeValidator(listed)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(listed)]


def key(default: Any, says: str) -> Any:
    """A field with its default and the sentence that docs/config.md prints."""
    return Field(default=default, description=says)


def section(kind: type[Section], says: str) -> Any:
    """A field that is a section of its own, all defaults when not given."""
    return Field(default_factory=kind, description=says)


def mapping(says: str) -> Any:
    """A field that is a mapping with free keys, empty when not given."""
    return Field(default_factory=dict, description=says)
