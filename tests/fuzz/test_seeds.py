"""Inputs that readers of foreign bytes take, and those that once broke one, are answered in our
own words.
"""

from pathlib import Path
from random import Random

import pytest

from tests.fuzz.run import fuzz, kept, mutated, table, targets, try_input

TARGETS = targets()


@pytest.mark.parametrize("name", TARGETS)
def test_every_kept_input_is_taken_or_refused(name: str) -> None:
    target, seeds = TARGETS[name]
    for data in seeds:
        try_input(target, data)
    for data in (b"", b"\x00", b"\xff" * 64, b"[" * 20_000, b"{" * 20_000):
        try_input(target, data)


@pytest.mark.parametrize("name", TARGETS)
def test_every_reader_takes_its_first_input_and_its_refusals_are_counted(name: str) -> None:
    target, seeds = TARGETS[name]
    assert try_input(target, seeds[0])
    random = Random(0)
    taken = all(try_input(target, mutated(random, seeds)) for _ in range(200))
    # lines that a crash cut short, rows that do not fit and damaged state are left out
    assert taken == (name in ("fuzz_rows", "fuzz_cells", "fuzz_approval", "fuzz_status"))


def test_a_failure_is_found_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.run.FOLDER", tmp_path)

    def breaks(data: bytes) -> None:
        if b"NaN" in data:
            raise ZeroDivisionError

    count = fuzz("fuzz_breaks", breaks, [b"a: 1, b: 2"], 60)
    assert count.failure == "ZeroDivisionError"
    assert "| breaks |" in table([count])
    (failing,) = kept("fuzz_breaks")
    assert b"NaN" in failing
