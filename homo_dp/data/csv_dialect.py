"""How a CSV file is written, guessed from its first lines: separator, encoding, decimal and thousands signs."""

from __future__ import annotations

import csv
import gzip
import re
from os import PathLike
from pathlib import Path

from homo_dp.data.databases import is_database
from homo_dp.data.readers import CsvForm, checked, is_parquet
from homo_dp.data.values import NumberForm

_SAMPLE = 1 << 18  # bytes
_ROWS = 500
_SIGNS = ",;\t|"
_COMMA_DECIMAL = re.compile(r"[+-]?\d+,\d+|[+-]?\d{1,3}(\.\d{3})+,\d+")
_POINT_DECIMAL = re.compile(r"[+-]?\d*\.\d+|[+-]?\d{1,3}(,\d{3})+\.\d+")
_GROUPED = {".": re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?"), ",": re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")}


def sniff(path: str | PathLike[str]) -> tuple[CsvForm, NumberForm]:
    """The form of a CSV file and of its numbers; the plain forms for Parquet and databases."""
    if is_database(path):
        return CsvForm(), NumberForm()
    file = checked(path)
    if is_parquet(file):
        return CsvForm(), NumberForm()
    raw = _start(file)
    encoding, text = _decoded(raw)
    lines = text.splitlines()
    first = re.sub(r'"[^"]*"', "", lines[0]) if lines else ""
    separator = max(_SIGNS, key=first.count) if first else ","
    cells = [cell.strip() for row in csv.reader(lines[1:_ROWS], delimiter=separator) for cell in row]
    return CsvForm(separator, encoding), _numbers(cells)


def _start(file: Path) -> bytes:
    with file.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            return gzip.GzipFile(fileobj=raw).read(_SAMPLE) if packed else raw.read(_SAMPLE)
        except (OSError, EOFError):
            return b""  # damaged: the reader says so


def _decoded(raw: bytes) -> tuple[str, str]:
    """The encoding and the text up to its last whole line; what is not UTF-8 is taken for Windows' Western one."""
    whole = raw if len(raw) < _SAMPLE else raw[: raw.rfind(b"\n") + 1]
    try:
        return "utf-8", whole.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "cp1252", whole.decode("cp1252", "replace")


def _numbers(cells: list[str]) -> NumberForm:
    """Decimal commas only where no decimal point stands anywhere; `1,234` alone is a thousand if points are there."""
    commas = [cell for cell in cells if _COMMA_DECIMAL.fullmatch(cell)]
    points = [cell for cell in cells if _POINT_DECIMAL.fullmatch(cell)]
    points = [cell for cell in points if not (commas and _GROUPED["."].fullmatch(cell))]
    if commas and not points:
        grouped = any(_GROUPED["."].fullmatch(cell) for cell in cells)
        return NumberForm(",", "." if grouped else None)
    grouped = any(_GROUPED[","].fullmatch(cell) for cell in cells)
    return NumberForm(".", "," if grouped else None)
