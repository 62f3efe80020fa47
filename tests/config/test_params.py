"""The --params language: items, separators, quotes, and the way back."""

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.config.explain import dotted
from homo_dp.config.layers import split_key
from homo_dp.config.params import TypedItem, format_item, read_items
from homo_dp.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a=1,b=2", [("a", 1), ("b", 2)]),
        ("a=1 b=2", [("a", 1), ("b", 2)]),
        (" a=1 ,\n b=2 , ", [("a", 1), ("b", 2)]),
        ("", []),
        (" , ", []),
        ("a=[1, 2],b=3", [("a", [1, 2]), ("b", 3)]),
        ("a={x: [1, 2], y: 'z, w'} b=3", [("a", {"x": [1, 2], "y": "z, w"}), ("b", 3)]),
        ("a=[x, 'b, c]', d]", [("a", ["x", "b, c]", "d"])]),
        ("a='x, y',b=2", [("a", "x, y"), ("b", 2)]),
        ('a="x \\" y" b=2', [("a", 'x " y'), ("b", 2)]),
        ("a='it''s, so' b=1", [("a", "it's, so"), ("b", 1)]),
        ("a=it's,b=don't", [("a", "it's"), ("b", "don't")]),
        ("'a=x, y' b=2", [("a", "x, y"), ("b", 2)]),
        ("a=C:\\data\\x.csv,b=/d/e=f:g#h", [("a", "C:\\data\\x.csv"), ("b", "/d/e=f:g#h")]),
        ("a=sqlite:///x.db", [("a", "sqlite:///x.db")]),
        ("a=1e-3,b=true,c=null,d=,e=~", [("a", 1e-3), ("b", True), ("c", None), ("d", None), ("e", None)]),
        ("a='5',b=\"true\"", [("a", "5"), ("b", "true")]),
        ("a=no,b=*x,c=&y,d=!z", [("a", "no"), ("b", "*x"), ("c", "&y"), ("d", "!z")]),
        ("a=@w,b=%v,c=|,d=>", [("a", "@w"), ("b", "%v"), ("c", "|"), ("d", ">")]),
        ("a=x[1,b=2", [("a", "x[1"), ("b", 2)]),
        ("a=x[1,2],b=3", [("a", "x[1,2]"), ("b", 3)]),
        ("data.columns.'mean radius'.bounds=[6, 22]", [("data.columns.'mean radius'.bounds", [6, 22])]),
        ("data.columns.\"a.b=c\".bounds=[6, 22]", [("data.columns.\"a.b=c\".bounds", [6, 22])]),
    ],
)  # fmt: skip
def test_new_form(text: str, items: list[tuple[str, Any]]) -> None:
    assert list(read_items([text])) == items


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "a: is not key=value"),
        ("a=1,2", "2: is not key=value"),
        ("data.files.a=/my dir/x.csv", "dir/x.csv: is not key=value"),
        ("=3", "is not a dotted key"),
        ("a..b=3", "is not a dotted key"),
        ("a=[1, 2", "--params [1: line 1, column 3 is not valid YAML: expected ',' or ']'"),
        ("a=[1, 2}", "is not valid YAML"),
        ("a={x: 1, x: 2}", "key x is given twice"),
        ("a:FLOAT:0:1", "is not key=value"),
    ],
)
def test_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        list(read_items([text]))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_older_form_is_read_as_it_stands() -> None:
    assert list(read_items(["x:STRING:0:/a=b:c,y:INT32:1:1;2 train.rounds=3"])) == [
        TypedItem("x", "STRING", False, "/a=b:c"),
        TypedItem("y", "INT32", True, "1;2"),
        ("train.rounds", 3),
    ]


KEYS = st.lists(
    st.text(string.printable + "é中", min_size=1, max_size=8), min_size=1, max_size=4
).map(tuple)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=4)
    | st.dictionaries(st.text(min_size=1), SCALARS, max_size=3)
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=4), st.sampled_from([",", " ", ", "]))
def test_round_trip(items: list[tuple[tuple[str, ...], Any]], separator: str) -> None:
    text = separator.join(format_item(dotted(path), value) for path, value in items)
    pairs = [item for item in read_items([text]) if not isinstance(item, TypedItem)]
    read = [(split_key(key), value) for key, value in pairs]
    assert read == items


@settings(max_examples=300, deadline=None)
@given(st.text(string.ascii_letters + "=:,.;'\"[]{} \\#01-", max_size=40))
def test_any_text_is_items_or_a_one_line_error(text: str) -> None:
    said = ""
    try:
        list(read_items([text]))
    except ConfigError as error:
        said = str(error)
    assert "\n" not in said
