"""What a file of another system leaves open is asked, until some file or override answers it."""

import json
from pathlib import Path
from typing import Any

import pytest

from homo_dp.compat.load import load
from homo_dp.compat.translation import Ask, Fallback, Translation
from homo_dp.core.errors import ConfigError
from tests.compat.primihub.test_task_file import FILES, TASK


def test_an_answer_by_any_of_its_keys_closes_a_question() -> None:
    made = Translation(asks=[Ask("where are the rows?", ("data.files", "data.embedded"))])
    assert made.still_asked({"privacy": {"delta": 1e-5}}) == ["where are the rows?"]
    assert made.still_asked({"data": {"embedded": "digits"}}) == []


def test_what_nothing_runs_without_is_an_error() -> None:
    made = Translation(asks=[Ask("which label?", ("data.label",), needed=True)])
    with pytest.raises(ConfigError, match="which label"):
        made.still_asked({})
    assert made.still_asked({"data": {"label": "y"}}) == []


def test_a_fallback_holds_where_neither_its_key_nor_one_in_its_place_is_set() -> None:
    batch = Fallback("train.batch_size", 64, "dataloader.batch_size")
    made = Translation(fallbacks=[batch], system="Theirs")
    merged: dict[str, Any] = {}
    assert made.fill(merged) == [
        "left open, so the values of Theirs hold: dataloader.batch_size=64"
    ]
    assert merged == {"train": {"batch_size": 64}}
    for given in ({"train": {"batch_size": 3}}, {"train": {"sample_rate": 0.5}}):
        before = repr(given)
        assert made.fill(given) == []
        assert repr(given) == before


def test_a_fallback_of_a_mechanism_is_for_its_runs_only() -> None:
    made = Translation(fallbacks=[Fallback("nbafl.mu", 0.0, mechanisms=("nbafl",))])
    plain: dict[str, Any] = {}
    nbafl: dict[str, Any] = {"privacy": {"mechanism": "nbafl"}}
    made.fill(plain)
    made.fill(nbafl)
    assert (plain, nbafl["nbafl"]) == ({}, {"mu": 0.0})


def test_a_split_of_one_table_is_not_filled_in_beside_several_files() -> None:
    made = Translation(fallbacks=[Fallback("data.partition.parties", 10)])
    several: dict[str, Any] = {"data": {"files": {"a": "a.csv", "b": "b.csv"}}}
    made.fill(several)
    assert "partition" not in several["data"]


@pytest.mark.parametrize(
    "text",
    [
        "federate: {client_num: 4, total_round_num: 2}\ndata: {type: toy}\nmodel: {type: lr}\n",
        '{"no_models": 10, "k": 2, "global_epochs": 2, "dp": true, "C": 1, "sigma": 0.5}',
        json.dumps(TASK),
    ],
    ids=["FederatedScope", "book chapter", "PrimiHub"],
)
def test_a_translated_config_has_the_rules_off_unless_they_are_asked_for(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / ("theirs.json" if text.startswith("{") else "theirs.yaml")
    path.write_text(text)
    over = {} if path.suffix == ".yaml" else FILES
    assert load(path, over).config.train.auto is False
    assert load(path, {**over, "train.auto": True}).config.train.auto is True
