"""Levels above a noisy threshold: a value of one row alone stays away, and a broken threshold is
noticed.
"""

import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
import torch

from homo_dp.data.columns import LATER, Categorical, Label
from homo_dp.data.encoding import Encoding
from homo_dp.data.raw_rows import TEXT_BYTES, TEXT_NUMBERS, text_numbers
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.statistics.private_levels import (
    MOST_LEVELS,
    MOST_NAMES,
    TAIL,
    LevelNames,
    LevelsRelease,
    counts_of,
    level_names,
    passing,
    threshold_of,
)

TRIALS = 40_000


def _share_of_unique_values(threshold: float, sigma: float) -> float:
    """How often a value that one row alone has is let through: one count of 1 a trial."""
    counts = {f"v{number}": 1 for number in range(TRIALS)}
    return len(passing(counts, sigma, threshold, SeededNoise(7))) / TRIALS


def _most(delta: float) -> float:
    """What a binomial share with this chance passes with probability below 1e-6: the test's
    false-alarm rate.
    """
    return delta + 4.9 * math.sqrt(delta / TRIALS)


@pytest.mark.parametrize("delta", [0.01, 0.1])
@pytest.mark.parametrize("sigma", [0.5, 4.0])
def test_a_value_of_one_row_passes_no_more_often_than_delta(delta: float, sigma: float) -> None:
    share = _share_of_unique_values(threshold_of(sigma, delta), sigma)
    assert delta / 2 < share <= _most(delta)


@pytest.mark.parametrize(
    "broken", [lambda t: 0.0, lambda t: t - 1.0], ids=["zero", "without the 1"]
)
def test_the_check_notices_a_broken_threshold(broken) -> None:  # type: ignore[no-untyped-def]
    assert _share_of_unique_values(broken(threshold_of(2.0, 0.01)), 2.0) > _most(0.01)


def test_several_columns_share_noise_and_delta() -> None:
    one, four = LevelsRelease(1, 3.0, 1e-9), LevelsRelease(4, 3.0, 1e-9)
    assert four.sigma == 2 * one.sigma
    assert four.threshold == pytest.approx(1 + 6.0 * -NormalDist().inv_cdf(1e-9 / 4))


def test_the_tail_is_below_the_last_digit_of_delta() -> None:
    for delta in (1e-3, 1e-5, 1e-12):
        assert delta + TAIL * delta == delta


def test_names_are_sorted_short_and_printable() -> None:
    counts = {
        "z": 900,
        "a": 900,
        "x" * (TEXT_BYTES + 1): 900,
        "bad\nline": 900,
        "": 900,
        "rare": 1,
        "gone": 0,
    }
    release = LevelsRelease(1, 2.0, 1e-20)
    for seed in range(5):
        assert release.names(counts, SeededNoise(seed)) == ["a", "z"]
    assert release.names({}, SeededNoise(1)) == []


@pytest.mark.parametrize(
    ("sigma", "delta"), [(0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 0.5)]
)
def test_a_threshold_needs_noise_and_delta(sigma: float, delta: float) -> None:
    with pytest.raises(PrivacyError, match="threshold needs noise"):
        threshold_of(sigma, delta)


def _rows(texts: list[str]) -> torch.Tensor:
    """Rows as statistics read them: one number of a column, then the numbers of its text."""
    numbers = text_numbers(pd.Series(texts), ["", "NA"])
    return torch.from_numpy(np.concatenate([np.zeros((len(texts), 1)), numbers], axis=1))


def test_one_row_moves_one_count_by_one() -> None:
    """Also one with a value of its own, or as the first row; a missing, long or unprintable one
    moves none.
    """
    texts = [*["Oslo"] * 9, *["Bergen "] * 8, "Vik", "æøå 漢字", "NA"]
    before = counts_of(_rows(texts)[:, 1:])
    assert before == {"Oslo": 9, "Bergen": 8, "Vik": 1, "æøå 漢字": 1}
    moved = {
        "Aardal": 1,
        "Oslo": 1,
        " Vik": 1,
        "NA": 0,
        "x" * 64: 1,
        "x" * 65: 0,
        "漢" * 22: 0,
        "a\tb": 0,
    }
    for more, by in moved.items():
        for table in ([more, *texts], [*texts, more]):
            after = counts_of(_rows(table)[:, 1:])
            assert sum(abs(after[name] - before[name]) for name in {*after, *before}) == by, more


def test_answers_of_parties_have_one_shape_and_are_read_together() -> None:
    asked = LevelNames(("city",), (1,), LevelsRelease(1, 1.0, 1e-20))
    one, other, none = (
        asked.answer(_rows(texts), SeededNoise(3))
        for texts in (["Oslo"] * 99 + ["Bø"] * 98, ["Oslo"] * 99 + ["hermit"], ["hermit"])
    )
    assert one.shape == other.shape == none.shape == (1, MOST_LEVELS, TEXT_BYTES)
    assert one.shape[2] <= 6 * TEXT_NUMBERS
    assert not none.any()
    assert asked.read([one, other, none])["values"] == {"city": ["Bø", "Oslo"]}


def test_a_party_names_no_more_levels_than_fit_and_the_most_frequent() -> None:
    counts = {f"v{number}": 1000 + 100 * number for number in range(MOST_LEVELS + 3)}
    found = LevelsRelease(1, 1.0, 1e-20).names(counts, SeededNoise(1))
    assert len(found) == MOST_LEVELS
    assert not {"v0", "v1", "v2"} & set(found)


def test_what_a_hostile_party_writes_is_no_level() -> None:
    asked = LevelNames(("city",), (1,), LevelsRelease(1, 1.0, 1e-20))
    answer = torch.zeros(asked.shape, dtype=torch.uint8)
    for place, data in enumerate((b"\xff\xfe", b"a\nb", b" spaced ", b"\x1b[31m", b"good")):
        answer[0, place, : len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    assert asked.read([answer])["values"] == {"city": ["good", "\ufffd\ufffd"]}


def test_a_word_for_a_missing_value_is_no_level() -> None:
    """As a level it was matched before the gaps: at every party the rows without a value had
    one.
    """
    encoding = Encoding(
        (Categorical("city", (LATER,)),), Label("y", (0, 1)), missing_values=("NA", " ? ")
    )
    asked = level_names(encoding, 3.0, 1e-5)
    answer = torch.zeros(asked.shape, dtype=torch.uint8)
    for place, data in enumerate((b"NA", b"?", b"Oslo", b"none")):
        answer[0, place, : len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    assert asked.read([answer])["values"] == {"city": ["Oslo", "none"]}


def test_names_that_one_party_makes_up_crowd_out_nobody_and_leave_rows_narrow_enough() -> None:
    columns = tuple(f"c{number}" for number in range(40))
    asked = LevelNames(
        columns, tuple(range(0, 40 * TEXT_NUMBERS, TEXT_NUMBERS)), LevelsRelease(40, 3.0, 1e-9)
    )

    def answer(names: list[str]) -> torch.Tensor:
        found = torch.zeros(asked.shape, dtype=torch.uint8)
        for at, name in enumerate(names):
            found[:, at, : len(name)] = torch.frombuffer(
                bytearray(name.encode()), dtype=torch.uint8
            )
        return found

    honest, made_up = (
        answer(["north", "south"]),
        answer([f"a{number}" for number in range(MOST_LEVELS)]),
    )
    values = asked.read([honest, made_up, honest])["values"]
    assert all({"north", "south"} <= set(names) for names in values.values())
    assert sum(map(len, values.values())) <= MOST_NAMES
