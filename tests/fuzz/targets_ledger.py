"""A ledger as a reader of foreign bytes: a file that is whole, or refused with an error of ours."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from homo_dp.privacy.ledger import Ledger
from tests.privacy.ledger_parts import DELTA, ledger_of


def fuzz_ledger(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        path.write_bytes(data)
        path.chmod(0o600)
        head = path.with_name("ledger.sqlite.head")
        head.write_bytes(_whole()[1])
        head.chmod(0o600)
        with Ledger(path, read_only=True) as ledger:
            ledger.rows()
            ledger.verify()
            ledger.spent("table", DELTA)


@functools.cache
def _whole() -> tuple[bytes, bytes]:
    """A ledger and its head, without which its rows are not even read."""
    with tempfile.TemporaryDirectory() as folder:
        path = ledger_of(Path(folder), 5)
        return path.read_bytes(), path.with_name("ledger.sqlite.head").read_bytes()


SEEDS = {"fuzz_ledger": [_whole()[0]]}
