"""How a CSV file is written, guessed from its first lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from homo_dp.data.readers import read_table, sniff


@pytest.mark.parametrize(
    ("text", "separator", "decimal", "thousands"),
    [
        ("a,b\n1.5,2\n", ",", ".", None),
        ("a;b\n1,5;2\n", ";", ",", None),
        ("a;b\n1.234,5;2\n", ";", ",", "."),
        ("a\tb\n1,234.5\t2\n", "\t", ".", ","),
        ("a|b\nx|y\n", "|", ".", None),
        ('"a,b";c\n1;2\n', ";", ".", None),
    ],
)
def test_signs(
    text: str, separator: str, decimal: str, thousands: str | None, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)
    form, numbers = sniff(tmp_path / "t.csv")
    assert (form.separator, numbers.decimal, numbers.thousands) == (separator, decimal, thousands)


def test_encodings_and_gzip(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("größe,b\n1,2\n".encode("cp1252"))
    assert sniff(tmp_path / "latin.csv")[0].encoding == "cp1252"
    (tmp_path / "excel.csv").write_bytes("größe\tb\n1\t2\n".encode("utf-16"))
    form, _ = sniff(tmp_path / "excel.csv")
    assert (form.separator, form.encoding) == ("\t", "utf-16")
    assert read_table(tmp_path / "excel.csv", form).columns.tolist() == ["größe", "b"]
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("größe;b\n1;2\n".encode()))
    form, _ = sniff(tmp_path / "t.csv.gz")
    assert (form.separator, form.encoding) == (";", "utf-8")


def test_a_character_cut_at_the_end_of_the_sample_does_not_change_the_encoding(
    tmp_path: Path,
) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "ö,1\n" * 100_000, encoding="utf-8")
    assert sniff(tmp_path / "t.csv")[0].encoding == "utf-8"
