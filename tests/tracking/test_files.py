"""Text files that appear whole."""

import gzip
import os
from pathlib import Path

import pytest

from homo_dp.tracking.files import compressed_write, json_text, write_json


def test_json_is_strict_and_readable_by_people() -> None:
    assert (
        json_text({"name": "Zürich", "loss": float("-inf")})
        == '{\n  "name": "Zürich",\n  "loss": null\n}\n'
    )


def test_gzip_goes_by_the_name_and_gives_the_same_bytes_again(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.CSV.GZ", "c.csv"):
        with compressed_write(tmp_path / name) as file:
            file.write(b"one,two\n")
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.CSV.GZ").read_bytes()
    assert (
        gzip.decompress((tmp_path / "a.csv.gz").read_bytes())
        == b"one,two\n"
        == (tmp_path / "c.csv").read_bytes()
    )


def test_what_json_cannot_hold_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": {1, 2}})
    assert os.listdir(tmp_path) == []
