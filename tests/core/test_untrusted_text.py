"""What used to hang, take all memory or show a secret is refused or masked, in one line."""

import struct
from pathlib import Path

import pytest

from homo_dp.compare import main as compare
from homo_dp.compat.params import parse_params
from homo_dp.config.load import dump_yaml, flatten, load_config
from homo_dp.config.model import ModelConfig
from homo_dp.config.yaml_text import parse_yaml
from homo_dp.console.screen import show
from homo_dp.core.errors import ConfigError, DataError
from homo_dp.data.images import read_images
from homo_dp.data.readers import MOST_COLUMNS, header
from homo_dp.models.registry import build_model


def test_aliases_that_multiply_and_files_that_repeat_themselves() -> None:
    many = "a0: &a0 [x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
    )
    for text, said in (
        (many, "once aliases are written out"),
        ("&a [*a]", "inside of what it repeats"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_yaml(text)
    assert parse_yaml("{x: &x {a: 1}, y: {<<: *x, b: 2}}")["y"] == {"a": 1, "b": 2}


def test_pairs_of_quotes_are_read_in_one_pass() -> None:
    assert parse_params(["a=" + "''" * 5000 + "x"]).items == (("a", "''" * 5000 + "x"),)
    with pytest.raises(ConfigError, match="nested deeper"):
        parse_params(["[" * 50_000])


def test_sizes_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 0, 1))
    with pytest.raises(DataError, match="no images"):
        read_images(path)
    with pytest.raises(
        ConfigError, match=r"model\.layers=\[9000000, 9000000\]: not enough memory: it needs"
    ):
        build_model(ModelConfig(name="mlp", layers=(9_000_000, 9_000_000)), (30,), [0, 1])
    table = tmp_path / "wide.csv"
    table.write_text(",".join(f"c{number}" for number in range(MOST_COLUMNS + 1)) + "\n")
    with pytest.raises(DataError, match="at most"):
        header(table)
    with pytest.raises(ConfigError, match="at most 10000"):
        compare(["--vary", "train.rounds=1,2", "--repeats", "100000000", "--out", str(tmp_path)])


def test_a_password_is_in_no_copy_of_the_config() -> None:
    config = load_config(None, {"tracking.uri": "postgresql://ann:hush@db/mlflow"})
    assert config.tracking.uri == "postgresql://ann:hush@db/mlflow"
    assert "hush" not in dump_yaml(config) + str(flatten(config))
    with pytest.raises(ConfigError, match="its password was masked"):
        load_config(None, parse_yaml(dump_yaml(config)))


def test_escapes_of_a_terminal_are_written_out() -> None:
    assert show("age\x1b[31m") == "age\\x1b[31m"
