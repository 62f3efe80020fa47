"""The draft of a data block: loud, round, and usable once it is edited."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from homo_dp.config.schema import Config
from homo_dp.config.yaml_text import parse_yaml
from homo_dp.core.errors import DataError
from homo_dp.data.describe import draft, round_out, tables_of, yaml_line
from homo_dp.data.parties import load_federation
from tests.data.parts import people, save


def test_a_draft_loads_as_it_is(tmp_path: Path) -> None:
    frame = people(
        80, answer=["Yes", "No"] * 40, note=[f"text {i}" for i in range(80)], split="train"
    )
    frame.loc[3, "age"] = np.nan
    path = save(tmp_path, "t.csv", frame)
    text = draft(path).text
    block = yaml.safe_load(text)["data"]
    assert "read from the rows" in text.splitlines()[0]
    assert block["classes"] == [0, 1]
    assert block["columns"]["answer"] == {"levels": ["No", "Yes"]}, "quoted, or YAML reads booleans"
    assert block["columns"]["age"]["missing"] == "middle"
    assert block["drop"] == ["note"]
    assert block["split_column"] == "split"
    config = Config.model_validate({"data": block})
    assert block["files"] == {"t": path}
    assert load_federation(config).encoding.names == ["age", "sex", "answer"]


def two_tables(folder: Path) -> dict[str, str]:
    """The values of the second table lie outside those of the first."""
    north = people(60).assign(outcome=["no", "yes"] * 30).drop(columns="y")
    south = north.assign(age=north["age"] + 40, sex="other")
    return {
        "north": save(folder, "north.csv", north),
        "south": save(folder, "south.csv", south.assign(bed=1)),
    }


def test_several_tables_are_drafted_at_once(tmp_path: Path) -> None:
    tables = two_tables(tmp_path)
    block = yaml.safe_load(draft(tables).text)["data"]
    assert (block["name"], block["files"]) == ("north-south", tables)
    assert block["columns"]["age"]["bounds"][1] > draft_bounds(tables["north"], "age")[1]
    assert "other" in block["columns"]["sex"]["levels"]
    assert block["drop"] == ["bed"]
    assert "north has no such column" in draft(tables).text
    assert list(load_federation(Config.model_validate({"data": block})).parties) == list(tables)


def test_a_draft_can_leave_the_tables_to_another_config(tmp_path: Path) -> None:
    block = yaml.safe_load(draft(two_tables(tmp_path), addresses={}).text)["data"]
    assert not {"name", "files"} & set(block)


def draft_bounds(path: str, column: str) -> list[float]:
    bounds: list[float] = yaml.safe_load(draft(path).text)["data"]["columns"][column]["bounds"]
    return bounds


def test_a_table_with_a_party_column_is_one_file(tmp_path: Path) -> None:
    frame = people(40).assign(hospital=["a", "b"] * 20)
    path = save(tmp_path, "t.csv", frame)
    block = yaml.safe_load(draft(path).text)["data"]
    assert (block["files"], block["party_column"]) == (path, "hospital")
    assert set(load_federation(Config.model_validate({"data": block})).parties) == {"a", "b"}
    other = save(tmp_path, "u.csv", frame)
    two = yaml.safe_load(draft({"t": path, "u": other}).text)["data"]
    assert "party_column" not in two, "each table is a party"


def test_tables_of_different_forms_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age;y\n40;0\n50;1\n")
    (tmp_path / "b.csv").write_text("age,y\n40,0\n50,1\n")
    with pytest.raises(DataError, match=r"a\.csv.*b\.csv.*save them alike"):
        draft({party: str(tmp_path / f"{party}.csv") for party in "ab"})
    with pytest.raises(DataError, match="write PARTY=FILE"):
        tables_of(["one/t.csv", "other/t.csv"])


def test_columns_that_give_the_label_away_are_flagged(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 400)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, 400),
            "marker": y + rng.normal(0, 1, 400),  # informative, as a measurement is
            "died": np.where(y == 1, "T", "F"),
            "days_to_death": np.where(y == 1, rng.uniform(0, 30, 400), np.nan),
            "discharge_code": y * 500 + rng.integers(0, 400, 400),
            "outcome": y,
        }
    )
    found = draft(save(tmp_path, "t.csv", frame))
    flagged = {line.partition(":")[0] for line in found.guesses if "WARNING: alone" in line}
    assert flagged == {"died", "days_to_death", "discharge_code"}
    assert "    # died: WARNING" in found.text
    amounts = rng.uniform(0, 100, 400)
    frame = pd.DataFrame({"age": frame["age"], "paid": 1.2 * amounts, "target": amounts})
    guesses = draft(save(tmp_path, "r.csv", frame)).guesses
    assert [line.partition(":")[0] for line in guesses if "rank correlation" in line] == ["paid"]


def test_bounds_are_rounded_outward(tmp_path: Path) -> None:
    block = yaml.safe_load(
        draft(save(tmp_path, "t.csv", people(50, price=np.linspace(103.7, 988.1, 50)))).text
    )["data"]
    assert block["columns"]["price"]["bounds"] == [0, 1000]
    generator = np.random.default_rng(0)
    for _ in range(200):
        low, high = sorted(generator.normal(size=2) * 10.0 ** generator.integers(-6, 9))
        below, above = round_out(low, high)
        assert below <= low < high <= above
        assert above - below <= 2 * (high - low) + 1e-12


def test_roles_are_guessed_or_given(tmp_path: Path) -> None:
    frame = people(30).rename(columns={"id": "key", "y": "outcome"}).assign(hospital="a", user="u")
    block = yaml.safe_load(draft(save(tmp_path, "t.csv", frame), {"id": "key"}).text)["data"]
    assert (block["id"], block["label"]) == ("key", "outcome")
    assert (block["party_column"], block["user_column"]) == ("hospital", "user")
    regression = people(30, y=np.linspace(1.5, 48.2, 30))
    assert yaml.safe_load(draft(save(tmp_path, "r.csv", regression)).text)["data"][
        "target_bounds"
    ] == [0, 50]
    with pytest.raises(DataError, match="--label='z' is not a column"):
        draft(tmp_path / "t.csv", {"label": "z"})


def test_guesses_are_said_and_two_values_are_preferred(tmp_path: Path) -> None:
    frame = people(40).drop(columns=["id", "y"])
    frame = frame.assign(
        income=np.linspace(1e4, 9e4, 40),
        customer_id=np.arange(40),
        left=["no", "yes"] * 20,
        sex="f",
    )
    path = save(tmp_path, "t.csv", frame)
    found = draft(path)
    block = yaml.safe_load(found.text)["data"]
    assert (block["label"], block["id"], block["bounds_source"]) == (
        "left",
        "customer_id",
        "draft",
    )
    assert "user_column" not in block, "nobody comes twice"
    assert any(
        "guessed label=left: the only column with two values" in line for line in found.guesses
    )
    numbered = save(tmp_path, "n.csv", frame.rename(columns={"customer_id": "pid"}))
    doubt = "pid: whole numbers in a row, none comes twice"
    assert [line for line in draft(numbered).guesses if line.startswith(doubt)]
    for given in ({"id": "pid"}, {"id": "none"}):
        assert not [line for line in draft(numbered, given).guesses if doubt in line]
    again = yaml.safe_load(draft(path, {"label": "income", "id": "none"}).text)["data"]
    assert again["label"] == "income"
    assert again["target_bounds"] == [0, 90000]
    assert "id" not in again


def test_files_as_banks_have_them(tmp_path: Path) -> None:
    lines = ["Größe;since;code;member;amount;y"]
    lines += [
        f"{100 + i},5;2021-03-{1 + i:02};{i % 3 + 1};{('true', 'false')[i % 2]};1.{200 + i},25;{i % 2}"
        for i in range(28)
    ]
    path = tmp_path / "bank.csv"
    path.write_bytes("\n".join(lines).encode("latin1"))
    block = yaml.load(draft(path).text, Loader=yaml.BaseLoader)["data"]
    form = (block["separator"], block["encoding"], block["decimal"], block["thousands"])
    assert form == ("semicolon", "cp1252", ",", ".")
    assert block["columns"]["since"] == {"date": ["2021-01-01", "2021-12-31"]}
    assert block["columns"]["code"] == {"levels": ["1", "2", "3"]}, "a code, not an amount"
    assert block["columns"]["member"] == {"levels": ["false", "true"]}
    whole = parse_yaml(draft(path).text)["data"] | {"files": {"a": str(path)}}
    loaded = load_federation(Config.model_validate({"data": whole}))
    assert loaded.encoding.names == ["Größe", "since", "code", "member", "amount"]


@pytest.mark.parametrize(
    ("form", "doubt"),
    [
        ("%d.%m.%Y", None),
        ("%d/%m/%Y", None),
        ("%m/%d/%Y", None),
        ("%Y%m%d", None),
        ("%d.%m.%Y %H:%M", None),
        ("%d-%m-%Y", "all values could also be %m-%d-%Y"),
    ],
)
def test_dates_as_people_write_them(form: str, doubt: str | None, tmp_path: Path) -> None:
    days = pd.date_range("2021-03-02", periods=10 if doubt else 60, freq="D")
    frame = pd.DataFrame({"seen": days.strftime(form), "y": [0, 1] * (len(days) // 2)})
    found = draft(save(tmp_path, "t.csv", frame))
    whole = parse_yaml(found.text)["data"]
    assert whole["columns"]["seen"] == {"date": ["2021-01-01", "2021-12-31"], "format": form}
    assert (
        any(doubt in line for line in found.guesses)
        if doubt
        else all("seen" not in line for line in found.guesses)
    )
    loaded = load_federation(
        Config.model_validate({"data": whole | {"files": {"a": str(tmp_path / "t.csv")}}})
    )
    assert loaded.encoding.names == ["seen"]


def test_what_is_left_out_is_said_with_its_reason(tmp_path: Path) -> None:
    frame = people(60)
    frame["note"] = [f"came on day {i} in pain" for i in range(60)]
    frame["key"] = [f"K{i:04}" for i in range(60)]
    frame["icd"] = [f"A{i % 55:02}" for i in range(60)]
    frame.to_csv(tmp_path / "t.csv")  # with pandas' row numbers
    found = draft(tmp_path / "t.csv")
    reasons = dict(
        line.strip("# ").split(": ", 1)
        for line in found.text.splitlines()
        if line.startswith("  #   ")
    )
    assert reasons["note"] == "free text"
    assert reasons["key"] == "an identifier: no value comes twice"
    assert "levels: private" in reasons["icd"]
    assert "the first column has no name" in found.text
    assert (
        "left out the first column, which has no name: row numbers, as pandas writes them"
        in found.guesses
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert not any("no name" in line for line in draft(tmp_path / "t.csv").guesses)


def test_columns_alike_are_described_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"drug_{i}": rng.integers(0, 2, 60) for i in range(8)})
    frame["drug_8"] = rng.uniform(0, 50, 60)  # one of them is not alike
    frame["lab_a"], frame["lab_b"] = 1.0, 2.0  # too few for a pattern
    for i in range(6):
        frame[f"x{i}"] = rng.integers(0, 2, 60)
    frame["x_id"] = [f"N{i:03}" for i in range(60)]  # the pattern would match it, so there is none
    frame["y"] = [0, 1] * 30
    text = draft(save(tmp_path, "t.csv", frame)).text
    whole = parse_yaml(text)["data"]
    assert whole["columns"]["drug_*"] == {"bounds": [0, 1]}
    assert whole["columns"]["drug_8"] == {"bounds": [0, 50]}
    assert {"lab_a", "lab_b", *(f"x{i}" for i in range(6))} < set(whole["columns"])
    assert len(whole["columns"]) == 10
    config = Config.model_validate({"data": whole | {"files": {"a": str(tmp_path / "t.csv")}}})
    assert {f"drug_{i}" for i in range(9)} < set(load_federation(config).encoding.names)


def test_images(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "t.npz",
        x=np.full((4, 2, 2), 200, dtype=np.uint8),
        y=np.arange(4),
        user=np.arange(4),
    )
    block = yaml.safe_load(draft(tmp_path / "t.npz").text)["data"]
    assert block["image"] == {"shape": [1, 2, 2], "scale": [0, 255]}
    assert (block["classes"], block["user_column"]) == ([0, 1, 2, 3], "user")


def test_outer_bounds_are_drafted_from_names_alone(tmp_path: Path) -> None:
    from homo_dp.data.outer_bounds import outer_draft

    one, other = tmp_path / "one" / "t.csv", tmp_path / "other" / "t.csv"
    one.parent.mkdir()
    other.parent.mkdir()
    one.write_text("id,age,yearly_income,y\n1,44,1234,0\n")
    other.write_text("id,age,yearly_income,y\n2,99,9876,1\n")
    texts = [outer_draft(path).text.replace(str(path), "") for path in (one, other)]
    assert texts[0] == texts[1]
    assert "age: {bounds: [0, 150], missing: middle}" in texts[0]
    assert "scaling: private" in texts[0]


def test_control_characters_of_names_and_values_are_escaped(tmp_path: Path) -> None:
    """One that reverses the text behind it reached the terminal."""
    path = tmp_path / "t.csv"
    path.write_text("id,a\u202eb,y\n" + "1,x\u202ey,0\n2,größe,1\n" * 20, encoding="utf-8")
    text = draft(path).text
    assert "\u202e" not in text
    assert yaml_line(["a\u202eb"]) == '["a\\u202Eb"]'
    assert yaml_line("größe") == "größe"
