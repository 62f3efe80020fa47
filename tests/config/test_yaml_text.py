"""YAML words: numbers, text that other readers take for something else, and the way back."""

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.config.yaml_text import parse_scalar, parse_yaml, to_yaml
from homo_dp.core.errors import ConfigError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5), ("1E5", 1e5), (".5", 0.5), ("-3", -3), ("+4", 4), ("1.", 1.0), (".inf", math.inf),
        ("no", "no"), ("Yes", "Yes"), ("on", "on"), ("12:30", "12:30"), ("2024-01-02", "2024-01-02"), ("0x1f", "0x1f"),
        ("1_000", "1_000"), ("~", None), ("null", None), ("", None), ("true", True), ("FALSE", False), ("<<", "<<"),
    ],
)  # fmt: skip
def test_words_follow_yaml_1_2(text: str, value: object) -> None:
    assert parse_scalar(text) == value
    if text not in ("", "<<"):
        assert parse_yaml(f"a: {text}") == {"a": value}


@settings(max_examples=200, deadline=None)
@given(PLAIN)
def test_round_trip_in_both_dialects(value: object) -> None:
    text = to_yaml({"value": value})
    assert parse_yaml(text) == {"value": value}
    assert yaml.safe_load(text) == {"value": value}


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_is_a_value_or_a_one_line_error(text: str) -> None:
    parse_scalar(text)
    said = ""
    try:
        parse_yaml(text)
    except ConfigError as error:
        said = str(error)
    assert "\n" not in said
