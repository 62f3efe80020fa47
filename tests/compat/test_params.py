"""PrimiHub's form of `--params`, and FederatedScope's pairs."""

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.compat.params import parse_pairs, parse_params
from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError


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
        ("BatchSize:INT32:0:many", "must be a whole number of 32 bits"),
        ("BatchSize:INT32:0:4294967296", "must be a whole number of 32 bits"),
        ("Data_File:STRING:0:train_party_0;train_party_1", "give data.files.<party>=FILE"),
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
