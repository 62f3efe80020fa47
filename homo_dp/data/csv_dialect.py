"""How a CSV file is written: separator and encoding, decimal and thousands signs, and guessing
them from its start.
"""

from __future__ import annotations

import codecs
import csv
import re
from dataclasses import dataclass

from homo_dp.data.values import NumberForm

SAMPLE = 1 << 18  # bytes
_ROWS = 500
_SIGNS = ",;\t|"
_WORDS = {";": "semicolon", "\t": "tab"}
_COMMA_DECIMAL = re.compile(r"[+-]?\d+,\d+|[+-]?\d{1,3}(\.\d{3})+,\d+")
_POINT_DECIMAL = re.compile(r"[+-]?\d*\.\d+|[+-]?\d{1,3}(,\d{3})+\.\d+")
_GROUPED = {
    ".": re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?"),
    ",": re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?"),
}


@dataclass(frozen=True)
class CsvForm:
    """How a CSV file is written: what separates its columns, and the encoding of its text."""

    separator: str = ","
    encoding: str = "utf-8"

    @property
    def codec(self) -> str:
        """The encoding by which the header is read; a byte-order mark of UTF-8 is skipped."""
        return "utf-8-sig" if self.is_utf8 else self.encoding

    @property
    def is_utf8(self) -> bool:
        return self.encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")


COMMAS = CsvForm()


def guess_form(raw: bytes) -> tuple[CsvForm, NumberForm]:
    """The form of a CSV file that starts with these bytes (at most SAMPLE), and of its numbers.

    >>> guess_form("Größe;Preis\\n1;2,5".encode("latin1"))
    (CsvForm(separator=';', encoding='cp1252'), NumberForm(decimal=',', thousands=None))
    """
    encoding, text = _decoded(raw)
    lines = text.splitlines()
    separator = likely_separator(lines[0] if lines else "") or ","
    cells = [
        cell.strip() for row in csv.reader(lines[1:_ROWS], delimiter=separator) for cell in row
    ]
    return CsvForm(separator, encoding), _numbers(cells)


def likely_separator(header: str) -> str | None:
    """The sign that comes most often in a header, quoted names aside; None where none of them
    comes.

    >>> likely_separator('"Name, first";age'), likely_separator("age")
    (';', None)
    """
    bare = re.sub(r'"[^"]*"', "", header)
    best = max(_SIGNS, key=bare.count)
    return best if best in bare else None


def form_keys(form: CsvForm, numbers: NumberForm) -> dict[str, str]:
    """The keys of `data` that say this form, where it is not the plain one.

    >>> form_keys(CsvForm(";"), NumberForm(","))
    {'separator': 'semicolon', 'decimal': ','}
    """
    plain = {"separator": ",", "encoding": "utf-8", "decimal": ".", "thousands": None}
    found = {"separator": form.separator, "encoding": form.encoding}
    found |= {"decimal": numbers.decimal, "thousands": numbers.thousands or ""}
    return {
        key: _WORDS.get(value, value)
        for key, value in found.items()
        if value and value != plain[key]
    }


def _decoded(raw: bytes) -> tuple[str, str]:
    """The encoding and the text up to its last whole line; what is not UTF-8 is taken for
    Windows' Western one.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = raw.decode("utf-16", "replace")
        return "utf-16", text if len(raw) < SAMPLE else text[: text.rfind("\n") + 1]
    whole = raw if len(raw) < SAMPLE else raw[: raw.rfind(b"\n") + 1]
    try:
        return "utf-8", whole.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "cp1252", whole.decode("cp1252", "replace")


def _numbers(cells: list[str]) -> NumberForm:
    """Decimal commas only where no decimal point stands anywhere; `1,234` alone is a thousand if
    points are there.
    """
    commas = [cell for cell in cells if _COMMA_DECIMAL.fullmatch(cell)]
    points = [cell for cell in cells if _POINT_DECIMAL.fullmatch(cell)]
    points = [cell for cell in points if not (commas and _GROUPED["."].fullmatch(cell))]
    if commas and not points:
        grouped = any(_GROUPED["."].fullmatch(cell) for cell in cells)
        return NumberForm(",", "." if grouped else None)
    grouped = any(_GROUPED[","].fullmatch(cell) for cell in cells)
    return NumberForm(".", "," if grouped else None)
