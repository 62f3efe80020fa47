"""Federations: who gets which rows, from files, one table, images and embedded sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from homo_dp.config.load import dump_yaml, load_config
from homo_dp.core.errors import DataError
from homo_dp.data.encoding import Encoding
from homo_dp.data.parties import Federation, iter_tables, load_federation
from tests.data.parts import COLUMNS, config, people, save


def sizes(federation: Federation) -> dict[str, tuple[int, int]]:
    return {name: (len(one.train), len(one.test or ())) for name, one in federation.parties.items()}


def test_default_is_breast_cancer_over_three_parties() -> None:
    federation = load_federation(config())
    assert sizes(federation) == {"party_1": (152, 38), "party_2": (152, 38), "party_3": (151, 38)}
    assert federation.classes == (0, 1)
    assert federation.input_shape == (30,)
    tables = [one.train for one in federation.parties.values()]
    assert len({table.features.untyped_storage().data_ptr() for table in tables}) == 1, (
        "parties share one tensor"
    )
    tests = [one.test for one in federation.parties.values() if one.test is not None]
    ids = {int(i) for test in tests if test.frame is not None for i in test.frame["id"]}
    assert len(ids) == 114
    for test in tests:
        assert test.frame is not None
        assert torch.equal(federation.encoding.encode(test.frame), test.features), (
            "raw rows and tensors agree"
        )


def test_the_seed_moves_rows_and_nothing_else() -> None:
    first, again, other = (load_federation(config(), seed) for seed in (1, 1, 2))
    one, two, three = (each.parties["party_1"].train.features for each in (first, again, other))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert first.encoding == other.encoding


def test_one_file_per_party_with_a_test_file_each(tmp_path: Path) -> None:
    a, b = people(30, 1), people(20, 2)
    shuffled = b[["y", "sex", "id", "age"]]
    files = {"a": save(tmp_path, "a.csv", a), "b": save(tmp_path, "b.csv", shuffled)}
    tests = {
        "a": save(tmp_path, "at.csv", people(5, 3)),
        "b": save(tmp_path, "bt.csv", people(4, 4)),
    }
    federation = load_federation(config(files=files, test_file=tests, columns=COLUMNS))
    assert sizes(federation) == {"a": (30, 5), "b": (20, 4)}
    assert federation.parties["b"].train.labels is not None
    assert federation.parties["b"].train.labels.tolist() == b["y"].tolist()
    assert torch.equal(federation.parties["b"].train.features, federation.encoding.encode(b)), (
        "matched by name"
    )
    frame = federation.parties["b"].test
    assert frame is not None
    assert frame.frame is not None
    assert list(frame.frame.columns) == ["id", "age", "sex", "y"]


def test_a_test_file_for_all_is_dealt_out_once_and_in_order(tmp_path: Path) -> None:
    files = {
        name: save(tmp_path, f"{name}.csv", people(10, seed)) for seed, name in enumerate("abc")
    }
    test = save(tmp_path, "test.csv", people(8, 9))
    federation = load_federation(
        config(files=files, test_file=test, columns=COLUMNS, public_test=True)
    )
    assert [counts[1] for counts in sizes(federation).values()] == [3, 3, 2]
    assert federation.public_test is not None
    assert federation.public_test.frame is not None
    assert federation.public_test.frame["id"].tolist() == [str(9000 + i) for i in range(8)]


@pytest.mark.parametrize("trained_on", ["files", "one table", "a bundled set"])
def test_one_test_row_more_moves_no_other_to_another_party(tmp_path: Path, trained_on: str) -> None:
    """The released figures of a party count its own test rows."""
    rows = people(60, 9)
    data: dict[str, Any] = {"partition": {"kind": "iid", "parties": 3}}
    if trained_on == "a bundled set":
        bundled = Path(__file__).parents[2] / "data" / "breast_cancer_party_1_test.csv"
        rows = pd.read_csv(bundled, dtype=str)
        data |= {"embedded": "breast_cancer"}
    else:
        names = "abc" if trained_on == "files" else "a"
        tables = {name: save(tmp_path, f"{name}.csv", people(30)) for name in names}
        data |= {"files": tables if trained_on == "files" else tables["a"], "columns": COLUMNS}
        data["partition"] = None if trained_on == "files" else data["partition"]

    def owners(table: pd.DataFrame) -> dict[str, str]:
        path = save(tmp_path, "test.csv", table)
        parties = load_federation(config(test_file=path, **data)).parties
        return {
            str(row): name
            for name, party in parties.items()
            if party.test is not None and party.test.frame is not None
            for row in party.test.frame["id"]
        }

    whole = owners(rows)
    assert len(whole) == len(rows)
    assert len(set(whole.values())) == 3
    first = str(rows["id"].iloc[0])
    assert owners(rows.iloc[1:]) == {row: name for row, name in whole.items() if row != first}


def test_a_party_alone_sees_what_it_would_see_in_the_simulation(tmp_path: Path) -> None:
    files = {
        name: save(tmp_path, f"{name}.csv", people(25, seed)) for seed, name in enumerate("ab")
    }
    together = load_federation(config(files=files, columns=COLUMNS))
    Path(files["a"]).unlink()
    alone = load_federation(config(files=files, columns=COLUMNS), only="b")
    assert list(alone.parties) == ["b"]
    assert torch.equal(alone.parties["b"].train.features, together.parties["b"].train.features)
    part = load_federation(config(), only="party_2").parties
    assert torch.equal(
        part["party_2"].train.features, load_federation(config()).parties["party_2"].train.features
    )
    with pytest.raises(
        DataError, match="party 'z' has no rows; the parties are party_1, party_2, party_3"
    ):
        load_federation(config(), only="z")


def test_party_and_split_columns(tmp_path: Path) -> None:
    hospital = ["north", "south ward"] * 10
    frame = people(20, hospital=hospital, split=["train"] * 14 + ["Test"] * 6)
    path = save(tmp_path, "all.csv", frame)
    federation = load_federation(
        config(
            files=path,
            party_column="hospital",
            split_column="split",
            columns=COLUMNS,
            rows={"north": 7},
        )
    )
    assert sizes(federation) == {"north": (7, 3), "south_ward": (7, 3)}
    assert federation.parties["north"].declared_rows == 7
    assert federation.parties["south_ward"].declared_rows is None


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by_label"])
def test_one_table_partitioned(tmp_path: Path, kind: str) -> None:
    path = save(tmp_path, "all.csv", people(200))
    test = save(tmp_path, "test.csv", people(50, 1))
    federation = load_federation(
        config(files=path, test_file=test, columns=COLUMNS, partition=kind)
    )
    assert sum(train for train, _ in sizes(federation).values()) == 200
    assert sum(held for _, held in sizes(federation).values()) == 50
    if kind == "by_label":
        labels = [
            set(one.train.labels.tolist())
            for one in federation.parties.values()
            if one.train.labels is not None
        ]
        assert labels[0] == {0}
        assert labels[-1] == {1}


def test_users_are_numbered_and_never_torn_apart(tmp_path: Path) -> None:
    frame = people(240, person=[f"u{i % 48}" for i in range(240)])
    path = save(tmp_path, "all.csv", frame)
    federation = load_federation(
        config(
            files=path,
            user_column="person",
            columns=COLUMNS,
            partition={"parties": 2},
            test_fraction=0.34,
        )
    )
    assert federation.users is not None
    assert 24 <= federation.users <= 40, "about two thirds of 48"
    seen: list[int] = []
    for one in federation.parties.values():
        assert one.train.users is not None
        assert one.test is not None
        assert one.test.users is not None
        assert one.train.users.dtype == torch.int64
        assert not set(one.train.users.tolist()) & set(one.test.users.tolist()), (
            "whole users are held out"
        )
        seen += sorted(set(one.train.users.tolist()))
    assert sorted(seen) == list(range(federation.users)), (
        "training users come first and belong to one party each"
    )
    with pytest.raises(DataError, match="would tear users apart"):
        load_federation(
            config(files=path, user_column="person", columns=COLUMNS, partition="by_label")
        )


def test_a_user_is_one_user_whether_a_table_writes_7_or_7_point_0(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f,user,y\n1,7,0\n2,8,1\n")
    (tmp_path / "b.csv").write_text("f,user,y\n3,7.0,0\n4,9.0,1\n")
    files = {"data.files.a": str(tmp_path / "a.csv"), "data.files.b": str(tmp_path / "b.csv")}
    keys = {
        "data.user_column": "user",
        "data.columns.f.bounds": [0, 5],
        "data.test_fraction": 0.0001,
    }
    names = load_federation(load_config(None, {**files, **keys})).user_names
    assert names is not None
    assert sorted(names) == ["7", "8", "9"]


def test_embedded_users() -> None:
    federation = load_federation(config(embedded="users"))
    assert federation.users == 400
    assert list(federation.parties) == ["all"]


def test_digits_are_flat_or_images_as_the_model_wants() -> None:
    assert load_federation(config(embedded="digits")).input_shape == (64,)
    federation = load_federation(config({"name": "cnn"}, embedded="digits"))
    assert federation.input_shape == (1, 8, 8)
    assert federation.classes == tuple(range(10))
    assert federation.parties["party_1"].train.features.shape[1:] == (1, 8, 8)


def test_arrays_named_test_are_not_trained_on_unseen(tmp_path: Path) -> None:
    x, y = np.zeros((6, 3, 3)), np.array([0, 1] * 3)
    np.savez(tmp_path / "keras.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data: dict[str, Any] = {"files": str(tmp_path / "keras.npz"), "classes": [0, 1]}
    with pytest.raises(
        DataError, match=r"x_test would be trained on; say data\.split_column=split"
    ):
        load_federation(config(**data))
    split = load_federation(
        config(split_column="split", partition={"kind": "iid", "parties": 2}, **data)
    )
    assert sizes(split) == {"party_1": (3, 3), "party_2": (3, 3)}


def test_npz_with_side_arrays(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    pixels = np.arange(12 * 9, dtype=np.uint8).reshape(12, 3, 3)
    party = np.array(["a", "b"] * 6)
    np.savez(
        path,
        x=pixels,
        y=np.arange(12) % 3,
        party=party,
        split=np.array(["train"] * 8 + ["test"] * 4),
    )
    data: dict[str, Any] = {
        "files": str(path),
        "party_column": "party",
        "split_column": "split",
        "classes": [0, 1, 2],
    }
    flat = load_federation(config(**data))
    images = load_federation(config({"name": "cnn"}, image={"shape": [1, 3, 3]}, **data))
    assert sizes(flat) == sizes(images) == {"a": (4, 2), "b": (4, 2)}
    assert flat.input_shape == (9,)
    assert images.input_shape == (1, 3, 3)
    assert torch.equal(
        images.parties["a"].train.features.flatten(1), flat.parties["a"].train.features
    )
    assert sum(len(table) for table in iter_tables(path, flat.encoding, 5)) == 12


def test_regression_labels(tmp_path: Path) -> None:
    path = save(tmp_path, "t.csv", people(10, y=np.linspace(0, 50, 10)))
    data: dict[str, Any] = {"files": {"a": path}, "columns": COLUMNS, "test_fraction": 0}
    federation = load_federation(
        config({"name": "linear_regression"}, target_bounds=[0, 25], **data)
    )
    labels = federation.parties["a"].train.labels
    assert labels is not None
    assert labels.dtype == torch.float32
    assert (labels.min().item(), labels.max().item()) == (-1, 1)
    assert federation.classes is None
    with pytest.raises(DataError, match=r"data.target_bounds is not given"):
        load_federation(config({"name": "linear_regression"}, **data))
    with pytest.raises(DataError, match="for a regression"):
        load_federation(config(target_bounds=[0, 25], **data))
    with pytest.raises(DataError, match="needs classes"):
        load_federation(
            config(
                {"name": "linear_regression"},
                target_bounds=[0, 1],
                **(data | {"files": path}),
                partition="by_label",
            )
        )


@pytest.mark.parametrize("held_out", ["test_fraction", "split_column", "test_file"])
def test_targets_are_clipped_in_training_rows_alone_wherever_the_test_rows_come_from(
    tmp_path: Path, held_out: str
) -> None:
    table = people(10, y=[*np.linspace(0, 50, 9), 1e300], split=["test", "train"] * 5)
    path = save(tmp_path, "t.csv", table)
    how = {"test_fraction": 0.5, "split_column": "split", "test_file": path}[held_out]
    drop = [] if held_out == "split_column" else ["split"]
    data: dict[str, Any] = {"files": {"a": path}, "columns": COLUMNS, "drop": drop, held_out: how}
    party = load_federation(
        config({"name": "linear_regression"}, target_bounds=[10, 20], **data)
    ).parties["a"]
    assert party.test is not None
    assert party.test.frame is not None
    assert party.test.labels is not None
    assert party.train.labels is not None
    true = torch.tensor(party.test.frame["y"].astype(float).to_numpy(), dtype=torch.float32)
    assert party.test.labels.isfinite().all()
    ordinary = true.isfinite()
    torch.testing.assert_close(party.test.labels[ordinary], (true[ordinary] - 15) / 5)
    assert party.train.labels.abs().max() == 1


def test_training_on_the_party_files_is_training_on_the_embedded_set() -> None:
    folder = Path(__file__).parents[2] / "data"
    names = ["party_1", "party_2", "party_3"]
    files = {name: str(folder / f"breast_cancer_{name}_train.csv") for name in names}
    tests = {name: str(folder / f"breast_cancer_{name}_test.csv") for name in names}
    shipped = load_federation(config(files=files, test_file=tests, columns_from="breast_cancer"))
    embedded = load_federation(config(), seed=0)
    for name in names:
        assert torch.equal(
            shipped.parties[name].train.features, embedded.parties[name].train.features
        )
        one, two = shipped.parties[name].test, embedded.parties[name].test
        assert one is not None
        assert two is not None
        assert torch.equal(one.features, two.features)


def wrong(tmp_path: Path, frame: pd.DataFrame, **more: Any) -> str:
    path = save(tmp_path, "t.csv", frame)
    with pytest.raises(DataError) as caught:
        load_federation(config(files={"a": path}, **({"columns": COLUMNS} | more)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_wrong_tables_get_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    good = people(10)
    assert "python -m homo_dp.data describe" in wrong(tmp_path, good.assign(height=1))
    assert "column 'height' has no bounds or levels" in wrong(tmp_path, good.assign(height=1))
    assert "label column 'y' is not there" in wrong(tmp_path, good.drop(columns="y"))
    assert "column 'age' is missing" in wrong(tmp_path, good.drop(columns="age"))
    assert "did you mean 'Age'?" in wrong(
        tmp_path, good.rename(columns={"age": "Age"}), drop=["Age"]
    )
    other_case = {"columns": {"AGE": COLUMNS["age"], "sex": COLUMNS["sex"]}}
    assert "the config has 'AGE': did you mean 'age'?" in wrong(tmp_path, good, **other_case)
    assert "the config has" not in wrong(tmp_path, good.assign(height=1))
    assert "column 'AGE' is missing (did you mean 'age'?)" in wrong(
        tmp_path, good, **other_case, drop=["age"]
    )
    assert "row 3: 2 is not" in wrong(tmp_path, good.assign(y=[0, 1, 2] + [0] * 7)).replace(
        "'2'", "2"
    )
    assert "row 1: 'old' is not a number" in wrong(tmp_path, good.assign(age="old"))
    assert "data.split_column='fold' is not a column" in wrong(tmp_path, good, split_column="fold")
    assert "row 1: 'valid' is neither 'train' nor 'test'" in wrong(
        tmp_path, good.assign(fold="valid"), split_column="fold"
    )
    assert "has no training rows" in wrong(tmp_path, good.assign(fold="test"), split_column="fold")
    assert "id column 'key' is not there" in wrong(tmp_path, good, id="key")
    assert "column 'sex' is missing" in wrong(
        tmp_path, good.drop(columns="sex"), use=["age", "sex"]
    )
    assert "no feature column is left" in wrong(tmp_path, good, drop=["age", "sex"])


def test_what_a_later_party_did_not_describe_is_refused_too(tmp_path: Path) -> None:
    files = {
        "a": save(tmp_path, "a.csv", people(10)),
        "b": save(tmp_path, "b.csv", people(10).assign(height=1)),
    }
    with pytest.raises(DataError, match=r"b.csv: column 'height' has no bounds or levels"):
        load_federation(config(files=files, columns=COLUMNS))
    assert set(load_federation(config(files=files, columns=COLUMNS, drop=["height"])).parties) == {
        "a",
        "b",
    }


def test_a_shipped_description_of_another_table_makes_way(tmp_path: Path) -> None:
    files = {"a": save(tmp_path, "a.csv", people(10))}
    own = load_federation(config(files=files, columns=COLUMNS, columns_from="breast_cancer"))
    assert own.encoding.names == list(COLUMNS)
    files = {"a": save(tmp_path, "b.csv", people(10).rename(columns={"age": "mean radius"}))}
    with pytest.raises(DataError, match="29 columns are missing"):
        load_federation(
            config(files=files, columns={"sex": COLUMNS["sex"]}, columns_from="breast_cancer")
        )


def test_use_and_drop(tmp_path: Path) -> None:
    path = save(tmp_path, "t.csv", people(10, note="free text"))
    used = load_federation(config(files={"a": path}, columns=COLUMNS, use=["sex"]))
    dropped = load_federation(config(files={"a": path}, columns=COLUMNS, drop=["note", "sex"]))
    assert used.encoding.names == ["sex"]
    assert dropped.encoding.names == ["age"]
    test = used.parties["a"].test
    assert test is not None
    assert test.frame is not None
    assert "note" in test.frame.columns, "predictions repeat every input column"


def test_declared_rows_must_name_a_party() -> None:
    with pytest.raises(DataError, match=r"data.rows.nobody names no party"):
        load_federation(config(embedded="breast_cancer", rows={"nobody": 5}))


def test_scoring_in_pieces(tmp_path: Path) -> None:
    frame = people(25)
    federation = load_federation(
        config(files={"a": save(tmp_path, "t.csv", frame)}, columns=COLUMNS)
    )
    encoding = Encoding.from_json(federation.encoding.to_json())
    reordered = save(tmp_path, "r.csv", frame[["sex", "y", "age", "id"]].assign(extra=1))
    pieces = list(iter_tables(reordered, encoding, 10))
    assert [len(piece) for piece in pieces] == [10, 10, 5]
    assert torch.equal(torch.cat([piece.features for piece in pieces]), encoding.encode(frame))
    unlabelled = save(tmp_path, "u.csv", frame.drop(columns="y"))
    assert all(piece.labels is None for piece in iter_tables(unlabelled, encoding))
    for column, bad in {"age": "tall", "y": "7"}.items():
        mistaken = save(
            tmp_path,
            "b.csv",
            frame.astype({column: str}).assign(**{column: [*frame[column][:-1], bad]}),
        )
        with pytest.raises(DataError, match=f"'{column}' row 25: '{bad}'"):
            list(iter_tables(mistaken, encoding, 10))
    with pytest.raises(DataError, match="column 'age' is missing"):
        list(iter_tables(save(tmp_path, "m.csv", frame.drop(columns="age")), encoding))
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3, 3)))
    with pytest.raises(DataError, match="not images"):
        list(iter_tables(tmp_path / "x.npz", encoding))


def test_a_dumped_config_describes_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,c,y\n" + "1,red,0\n2,,1\n" * 10)
    columns = {"x": {"bounds": [0, 3]}, "c": {"levels": ["red", "blue"]}}
    config = load_config(None, {"data.files.a": str(tmp_path / "a.csv"), "data.columns": columns})
    (tmp_path / "again.yaml").write_text(dump_yaml(config))
    again = load_config(tmp_path / "again.yaml")
    assert load_federation(again).encoding == load_federation(config).encoding
