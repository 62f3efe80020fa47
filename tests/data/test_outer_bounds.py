"""Outer bounds of a draft come from names alone: no value of the table is in them."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from homo_dp.core.errors import DataError
from homo_dp.data.outer_bounds import ANYTHING, outer_bounds, outer_draft


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("age", (0, 150)),
        ("patientAge", (0, 150)),
        ("AGE_AT_VISIT", (0, 150)),
        ("birth_year", (1800, 2200)),
        ("longitude", (-180, 180)),
        ("page", ANYTHING),  # a word that only contains another says nothing
        ("", ANYTHING),
    ],
)
def test_a_word_of_the_name_decides(name: str, bounds: tuple[float, float]) -> None:
    assert outer_bounds(name) == bounds


def test_a_draft_loads_as_yaml_and_holds_no_value(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,age,'odd: name',y\n1,7654321,8765432,1\n2,7654322,8765433,0\n")
    text = outer_draft(path, {"label": "y"}).text
    data = yaml.safe_load(text)["data"]
    assert set(data["columns"]) == {"age", "'odd: name'"}
    assert data["columns"]["age"]["bounds"] == [0, 150]
    assert (data["scaling"], data["bounds_source"], data["label"]) == ("private", "public", "y")
    assert "765432" not in text


def test_rows_do_not_change_the_draft(tmp_path: Path) -> None:
    drafts = []
    for rows in ("1,2\n", "900,-4\n" * 50):
        (tmp_path / "t.csv").write_text("income,y\n" + rows)
        drafts.append(outer_draft(tmp_path / "t.csv").text)
    assert drafts[0] == drafts[1]


def test_roles_come_from_flags_else_from_names_and_are_told(tmp_path: Path) -> None:
    path = tmp_path / "bank.csv"
    path.write_text("customer_id;age;default;bank\n1;30;no;a\n2;40;yes;b\n")
    found = outer_draft(path)
    data = yaml.safe_load(found.text)["data"]
    assert (data["id"], data["label"], data["party_column"]) == ("customer_id", "default", "bank")
    assert set(data["columns"]) == {"age"}
    assert data["separator"] == "semicolon", "without it the block does not fit its own file"
    assert [line.split(":")[0] for line in found.guesses] == [
        "guessed label=default",
        "guessed id=customer_id",
        "guessed party=bank",
    ]
    given = yaml.safe_load(
        outer_draft(path, {"label": "age", "user": "customer_id", "id": "none"}).text
    )["data"]
    assert (given["label"], given["user_column"]) == ("age", "customer_id")
    assert "id" not in given
    with pytest.raises(DataError, match="--label='income' is not a column"):
        outer_draft(path, {"label": "income"})
    path.write_text("a,b\n1,2\n")
    assert "label" not in yaml.safe_load(outer_draft(path).text)["data"], (
        "a label that is not there is not named"
    )


def test_levels_of_columns_of_words_are_estimated(tmp_path: Path) -> None:
    """By the type where the file states one, else by a word of the name; no row is looked at."""
    (tmp_path / "t.csv").write_text("home_city,x7,y\n1,2,0\n")
    columns = yaml.safe_load(outer_draft(tmp_path / "t.csv").text)["data"]["columns"]
    assert columns["home_city"] == {"levels": "private"}
    assert set(columns["x7"]) == {"bounds", "missing"}
    frame = pd.DataFrame(
        {"x7": ["a", "b"], "home_city": [1.0, 2.0], "kind": pd.Categorical(["u", "v"]), "y": [0, 1]}
    )
    frame.to_parquet(tmp_path / "t.parquet")
    columns = yaml.safe_load(outer_draft(tmp_path / "t.parquet").text)["data"]["columns"]
    assert {name for name, block in columns.items() if "levels" in block} == {"x7", "kind"}
