"""PrimiHub's registry of data sets: every model has its address, and what is missing is named."""

from pathlib import Path

import pytest
import yaml

from homo_dp.compat.primihub.registry import read_registry
from homo_dp.core.errors import ConfigError


def registry(folder: Path, *entries: dict[str, object]) -> str:
    path = folder / "node.yaml"
    path.write_text(yaml.safe_dump({"datasets": list(entries), "node": "x"}))
    return str(path)


def test_addresses_by_model(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n")
    found = read_registry(
        [
            registry(
                tmp_path,
                {"description": "train", "source": "a.csv"},
                {"description": "bank", "model": "sqlite", "source": "b.db", "table_name": "t"},
                {
                    "description": "shop",
                    "model": "mysql",
                    "host": "h",
                    "port": 3306,
                    "username": "a@b",
                    "password": "p/w",
                    "dbName": "d",
                    "tableName": "t",
                },
            )
        ]
    )
    assert found == {
        "train": str(tmp_path / "a.csv"),
        "bank": "sqlite:///b.db#t",
        "shop": "mysql+pymysql://a%40b:p%2Fw@h:3306/d#t",
    }


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"description": "a"}, "has no source"),
        ({"description": "a", "model": "image"}, "image_dir"),
        ({"description": "a", "model": "sqlite", "source": "b"}, "table_name"),
        ({"description": "a", "model": "mysql", "host": "h"}, "dbName"),
        ({"model": "csv"}, "description"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, entry: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_registry([registry(tmp_path, entry)])
    with pytest.raises(ConfigError, match="no such file"):
        read_registry([str(tmp_path / "none.yaml")])


@pytest.mark.parametrize("name", ["a" * 5000])
def test_a_name_that_is_no_path_is_refused_in_our_words(tmp_path: Path, name: str) -> None:
    """A long one ended in an OSError."""
    path = registry(tmp_path, {"description": "d", "source": name})
    with pytest.raises(ConfigError, match="is no path"):
        read_registry([path])
