"""Every reader of foreign bytes refuses mutated input with our own errors, and nothing else."""

from __future__ import annotations

import os
import warnings

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.run import try_input
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
SEEDS = seeds()
# Pieces that break parsers: wrong kinds of value, tags, aliases, numbers that do not fit, control
# characters, halves.
PIECES = (
    *(
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"-1",
        b"1e999",
        b"NaN",
        b"9" * 400,
        b'""',
        b'"x"',
        b"[[[[",
        b"{" * 100,
        b"\0",
    ),
    *(
        b"!!bool x",
        b"!!timestamp x",
        b"&a [*a]",
        b"*all",
        b"<<: *all",
        b"'",
        b'"',
        b"\\ud800",
        b"\xff",
        b"\x1b[31m",
    ),
    *(
        b"\n",
        b",",
        b"=",
        b":",
        b"'' ''",
        b"a.b.",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"[" * 3000,
        b"\r",
        b"<",
        b"#",
    ),
)


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """The data with one to four places cut out, doubled, or replaced by a piece that breaks
    parsers.
    """
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=4) | st.just(data[at : at + 40]))
        data = data[:at] + piece + data[at + length :]
    return data


def test_every_target_has_a_seed() -> None:
    assert set(SEEDS) == set(TARGETS)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_only_our_errors(name: str) -> None:
    target = TARGETS[name]
    assert try_input(target, SEEDS[name]), (
        "the seed itself is refused: mutations of it reach little of the reader"
    )

    @seed(22)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(mutated(SEEDS[name]) | st.binary(max_size=60))
    def check(data: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try_input(target, data)

    check()
