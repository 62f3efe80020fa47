"""Value types of the config: their ranges, and that a wrong value is told with its range."""

import math
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from homo_dp.config import base


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (base.Positive, 1e-9, [0, -1, math.inf, math.nan, True, "1", 10**400]),
        (base.Rate, 1, [0, 1.1]),
        (base.Fraction, 0, [-0.1, 1.1]),
        (base.Probability, 0.5, [0, 1, True]),
        (base.Count, 1e4, [0, 1.5, True, "3", 10**400]),
        (base.Seed, 2**64 - 1, [-1, 2**64]),
        (base.Flag, False, [0, "false", None]),
        (base.Text, "a", ["", "  ", 3]),
        (base.FilePath, "a/b", ["", "a\0b"]),
        (base.PartyName, "bank_a-1", ["", "-a", "a/b", "a" * 65, ".."]),
        (base.ImportPath, "mine.own:Thing", ["mine", "os;x:y", "a:b:c", ":x"]),
        (base.Bounds, [0, 1], [[1, 0], [1, 1], [0], [0, math.inf], "01"]),
    ],
)
def test_ranges(kind: Any, good: object, bad: list[object]) -> None:
    adapter = TypeAdapter[object](kind)
    adapter.validate_python(good)
    for value in bad:
        with pytest.raises(ValidationError, match="must"):
            adapter.validate_python(value)


def test_names_that_read_as_numbers_stay_names() -> None:
    assert TypeAdapter[object](base.Column).validate_python(2024) == "2024"
    assert TypeAdapter[object](base.PartyName).validate_python(7) == "7"


def test_a_section_is_frozen_and_refuses_what_it_does_not_know() -> None:
    class Small(base.Section):
        rate: base.Rate = base.key(0.5, "A rate.")

    with pytest.raises(ValidationError):
        Small(rats=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        Small().rate = 1.0
    with pytest.raises(ValidationError) as caught:
        Small(rate=12345.678)
    # a value may be a secret: only our own messages show it
    assert "12345" not in str(caught.value)
