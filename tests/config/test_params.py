"""The --params language: both forms, separators, quotes, and the way back."""

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.config.explain import dotted
from homo_dp.config.layers import split_key
from homo_dp.config.load import load_config
from homo_dp.config.params import format_item, parse_pairs, parse_params
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
    assert list(parse_params([text]).items) == items


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("predictFileName:STRING:0:/data/x.csv", [("output.predictFileName", "/data/x.csv")]),
        (
            "predictFileName:STRING:0:/d/p.csv, indicatorFileName:STRING:0:/d/i.json, modelFileName:STRING:0:/d/m.pl",
            [
                ("output.predictFileName", "/d/p.csv"),
                ("output.indicatorFileName", "/d/i.json"),
                ("output.modelFileName", "/d/m.pl"),
            ],
        ),
        ("BatchSize:INT32:0:128,NumIters:INT32:0:100", [("train.batch_size", 128), ("train.rounds", 100)]),
        ("data.use:STRING:1:a;b;5", [("data.use", ["a", "b", "5"])]),
        ("model.layers:INT32:1:64;32;", [("model.layers", [64, 32])]),
        ("data.label:STRING:0:5", [("data.label", "5")]),
        ("data.label:BYTE:0:y", [("data.label", "y")]),
        ("noise_multiplier:STRING:0:2.5", [("privacy.noise_multiplier", 2.5)]),
        ("privacy.secure_mode:STRING:0:true", [("privacy.secure_mode", True)]),
        ("learning_rate:STRING:0:optimal", [("train.schedule", "optimal")]),
        ("predictFileName:STRING:0:C:\\my out\\x=1:2.csv", [("output.predictFileName", "C:\\my out\\x=1:2.csv")]),
        ("data.id:STRING:0:/my out/p.csv train.rounds=3", [("data.id", "/my out/p.csv"), ("train.rounds", 3)]),
        ("data.id:STRING:0:'/a, b/p.csv',train.rounds=3", [("data.id", "/a, b/p.csv"), ("train.rounds", 3)]),
        ("predictFileName:STRING:0:a;b", [("output.predictFileName", "a;b")]),
        ("data.files.a:STRING:0:/x.csv,train.rounds=3", [("data.files.a", "/x.csv"), ("train.rounds", 3)]),
    ],
)  # fmt: skip
def test_old_form(text: str, items: list[tuple[str, Any]]) -> None:
    assert list(parse_params([text]).items) == items


def test_old_names_without_counterpart_are_said() -> None:
    params = parse_params(["hostLookupTable:STRING:0:./h.csv,train.rounds=3"])
    assert params.items == (("train.rounds", 3),)
    assert "hostLookupTable" in params.notes[0]


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
        ("BatchSize:INT32:0:many", "must be a whole number of 32 bits"),
        ("BatchSize:INT32:0:4294967296", "must be a whole number of 32 bits"),
        ("Data_File:STRING:0:train_party_0;train_party_1", "give data.files.<party>=FILE"),
        ("a:FLOAT:0:1", "is not key=value"),
    ],
)
def test_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_params([text])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_keys_are_refused_by_the_schema() -> None:
    for text in ("predictfilename=x", "nobody:STRING:0:x"):
        with pytest.raises(ConfigError, match="unknown key"):
            load_config(None, parse_params([text]).items)


def test_pairs() -> None:
    assert parse_pairs(["a.b", "[1, 2]", "c", "x=y z"]).items == (("a.b", [1, 2]), ("c", "x=y z"))
    with pytest.raises(ConfigError, match="c has no value"):
        parse_pairs(["a", "1", "c"])


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
    read = [(split_key(key), value) for key, value in parse_params([text]).items]
    assert read == items


@settings(max_examples=300, deadline=None)
@given(st.text(string.ascii_letters + "=:,.;'\"[]{} \\#01-", max_size=40))
def test_any_text_is_items_or_a_one_line_error(text: str) -> None:
    said = ""
    try:
        parse_params([text])
    except ConfigError as error:
        said = str(error)
    assert "\n" not in said


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.text(string.ascii_letters + "/\\:=._-'() ", min_size=1, max_size=20),
        min_size=1,
        max_size=3,
    )
)
def test_old_form_keeps_any_path_without_comma(paths: list[str]) -> None:
    paths = [path.strip() or "x" for path in paths]
    names = ("predictFileName", "indicatorFileName", "modelFileName")
    if any(
        path[0] in "'" or " '" in path or (" " in path and ("=" in path or ":" in path))
        for path in paths
    ):
        return  # quoted, or a word after a space that is an item of its own
    text = ",".join(f"{name}:STRING:0:{path}" for name, path in zip(names, paths, strict=False))
    assert [value for _, value in parse_params([text]).items] == paths
