"""Ledgers with any bytes changed: they are whole, or refused with an error of ours; nothing else
comes out.
"""

import random
import shutil
import sqlite3
from dataclasses import asdict
from pathlib import Path

import pytest

from homo_dp.privacy.errors import LedgerError, PrivacyError
from homo_dp.privacy.ledger import Ledger, LedgerRow
from homo_dp.privacy.ledger import ledger as ledger_module
from homo_dp.privacy.ledger.rows import row_hash
from tests.privacy.ledger_parts import DELTA, FREE, ledger_of, release

VALUES = [
    "NULL",
    "-1",
    "9e999",
    "x'ff00ff'",
    "''",
    "'[[[['",
    "9223372036854775807",
    "0.5",
    "CAST(x'ff41' AS TEXT)",
]
EVENTS = [
    "",
    "{",
    "[]",
    "null",
    '{"type":"NoOpDpEvent","x":1}',
    "[" * 5000,
    '{"type": "GaussianDpEvent"}',
    "\x00",
]


def use(path: Path) -> None:
    """Everything that reads a ledger."""
    for read_only in (True, False):
        with Ledger(path, read_only=read_only) as ledger:
            for row in ledger.rows():
                row.to_dict()
            ledger.verify()
            ledger.last_rows()
            ledger.runs()
            ledger.extract("run-1")
            ledger.spent("table", DELTA)
            if not read_only:
                ledger.charge(release(77), FREE)


def said(path: Path) -> str:
    """What the ledger was refused with, if it was; any other exception fails the test."""
    try:
        use(path)
    except PrivacyError as error:  # LedgerError is one
        return str(error)
    return ""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    before, ledger_module.ROWS_PER_CHECKPOINT = ledger_module.ROWS_PER_CHECKPOINT, 4
    path = ledger_of(tmp_path_factory.mktemp("whole"), 10)
    ledger_module.ROWS_PER_CHECKPOINT = before
    return path


def copied(whole: Path, folder: Path) -> Path:
    for name in (whole.name, whole.name + ".head"):
        shutil.copy(whole.with_name(name), folder / name)
    return folder / whole.name


@pytest.mark.parametrize("seed", range(60))
def test_changed_bytes(whole: Path, tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    path = copied(whole, tmp_path)
    target = path if seed % 6 else path.with_name(path.name + ".head")
    content = bytearray(target.read_bytes())
    for _ in range(generator.choice((1, 3, 30))):
        at = generator.randrange(
            len(content) if generator.random() < 0.5 else min(len(content), 2500)
        )
        content[at] = generator.randrange(256)
    target.write_bytes(
        bytes(content[: generator.randrange(len(content)) if seed % 10 == 7 else None])
    )
    assert "\n" not in said(path)


@pytest.mark.parametrize(
    "column", [name for name in LedgerRow.__dataclass_fields__ if name != "row"]
)
def test_values_of_other_types(whole: Path, tmp_path: Path, column: str) -> None:
    for value in VALUES:
        path = copied(whole, tmp_path)
        with sqlite3.connect(path) as database:
            try:
                database.execute(f"UPDATE releases SET {column} = {value} WHERE row = 10")
            except sqlite3.IntegrityError:
                continue  # NULL where the schema has none
        database.close()
        assert "row=10" in said(path) or value == "NULL", (column, value)


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_that_is_none_under_a_right_hash(whole: Path, tmp_path: Path, event: str) -> None:
    path = copied(whole, tmp_path)
    with Ledger(path, read_only=True) as ledger:
        row = asdict(ledger.rows()[-1]) | {"event": event}
    row["hash"] = row_hash(row)
    with sqlite3.connect(path) as database:
        database.execute(
            "UPDATE releases SET event = ?, hash = ? WHERE row = 10", (event, row["hash"])
        )
    database.close()
    path.with_name(path.name + ".head").write_text(f'{{"count": 10, "hash": "{row["hash"]}"}}')
    with pytest.raises(LedgerError, match="row=10 was edited: event="):
        use(path)
