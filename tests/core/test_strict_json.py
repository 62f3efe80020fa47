"""Strict JSON: what two readers could take for different values is refused."""

import pytest

from homo_dp.core.strict_json import strict_json


@pytest.mark.parametrize(
    "text",
    ["NaN", "[Infinity]", '{"a": -Infinity}', '{"a": 1, "a": 2}', '{"b": {"a": 1, "a": 1}}', "{"],
)
def test_what_is_not_plain_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        strict_json(text)


def test_a_second_key_is_taken_only_where_that_is_said() -> None:
    assert strict_json('{"a": 1, "a": 2}', unique=False) == {"a": 2}
    with pytest.raises(ValueError, match="NaN is not a number"):
        strict_json("NaN", unique=False)
