"""Private sums: bounds, noise alone and shared, the grid, and that nothing wraps."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipping import clip_rows
from homo_dp.privacy.noise.source import NoiseSource, OrdinaryNoise, SecureNoise, SeededNoise
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from tests.privacy.broken_noise import four_fold_float32
from tests.privacy.low_bits import MULTIPLIER, check_low_bits, record

SHARE = NoiseShare(5, dropouts=1, colluders=1)


def test_the_event_is_that_of_the_whole_noise_alone_and_shared() -> None:
    expected = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 7)
    for share in (None, SHARE):
        assert PrivateSum(3, 1.0, 2.0, 100, 0.1, share).event(7) == expected


def test_one_row_moves_the_sum_by_at_most_the_clip_norm() -> None:
    found = PrivateSum(2, 1.0, 1e-6, 100)
    rows = torch.tensor([[30.0, 40.0], [float("nan"), 1.0]])
    released = found.of_rows(rows, SeededNoise(1))
    assert float(released.norm()) <= 1.0 + 1e-4


@pytest.mark.parametrize(("wrong", "passes"), [(1.0, True), (1 / math.sqrt(3), False)])
def test_the_honest_survivors_noise_is_the_noise_of_the_event(wrong: float, passes: bool) -> None:
    """20,000 numbers: the variance is within 5 % but for a chance below 1e-6; shares of z C / (N
    - t) give a third.
    """
    found = PrivateSum(20_000, 1.0, 8.0, 10, share=SHARE)
    noise = SeededNoise(2)
    parts = [
        found.release(torch.zeros(20_000, dtype=torch.float64), noise) * wrong
        for _ in range(SHARE.sharers)
    ]
    variance = float(torch.stack(parts).sum(0).double().mul(found.grid.step).var())
    assert (variance >= 0.95 * found.sigma**2) is passes


class _Told(SeededNoise):
    """Noise that the test says; words as of a seed."""

    def __init__(self, normals: torch.Tensor) -> None:
        super().__init__(5)
        self._normals = normals

    def normal(
        self, shape: Sequence[int], std: float, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        return self._normals.clone()


@pytest.mark.parametrize("share", [None, SHARE], ids=["alone", "shared"])
def test_a_release_is_a_function_of_the_sum_of_data_and_noise(share: NoiseShare | None) -> None:
    """Data that were rounded first, to whatever grid, would move by more than the clip norm that
    the noise is for.
    """
    found = PrivateSum(4096, 1.0, 8.0, 100, share=share)
    eighth = found.grid.step / 8
    source = np.random.default_rng(3)
    total, noise, moved = (
        torch.from_numpy(source.integers(-(10**6), 10**6, 4096) * eighth) for _ in range(3)
    )
    expected = found.release(total, _Told(noise))
    for part in (moved, torch.full_like(moved, eighth), moved.round()):
        assert torch.equal(found.release(total + part, _Told(noise - part)), expected)
    assert not torch.equal(found.release(total + moved, _Told(noise)), expected)


@pytest.mark.parametrize("rows", [100, 10**10])
def test_words_add_up_modulo_and_come_back(rows: int) -> None:
    found = PrivateSum(4, 1.0, 2.0, rows, share=SHARE)
    assert found.bits == (32 if rows == 100 else 64)
    parts = [
        found.release(torch.full((4,), -7.0, dtype=torch.float64), SeededNoise(n)) for n in range(5)
    ]
    with np.errstate(over="ignore"):
        total = np.sum([found.to_words(part) for part in parts], axis=0, dtype=found.word())
    assert torch.equal(
        found.from_words(total), torch.stack(parts).sum(0).double() * found.grid.step
    )


def test_sums_that_could_wrap_are_refused() -> None:
    with pytest.raises(PrivacyError, match="steps of their grid"):
        PrivateSum(4, 1.0, 1e-9, 10**10, share=SHARE)


@pytest.mark.parametrize("share", [(2, 1, 1), (1, 0, 1)])
def test_somebody_must_be_left_to_share(share: tuple[int, int, int]) -> None:
    with pytest.raises(PrivacyError):
        NoiseShare(*share)


@pytest.mark.parametrize("share", [None, SHARE])
def test_no_table_makes_a_sum_as_long_as_the_longest(share: NoiseShare | None) -> None:
    found = PrivateSum(1000, 2.0, 3.0, 100, share=share)
    released = found.release(
        torch.full((1000,), 2.0**20 / math.sqrt(1000), dtype=torch.float64), SeededNoise(1)
    )
    assert (
        float(released.double().norm()) * (1.0 if share is None else found.grid.step)
        < found.longest
        < 1e13
    )


@pytest.mark.parametrize("size", [300, 1000, 10_000])
@pytest.mark.parametrize("noise", [SecureNoise(), OrdinaryNoise()], ids=["secure", "ordinary"])
def test_low_bits_of_a_sum_over_rows_tell_nothing(noise: NoiseSource, size: int) -> None:
    """As statistics and metrics are released: 60 guesses of each attack, false alarms with
    probability 1e-7.
    """
    found = PrivateSum(size, 1.0, MULTIPLIER, 2)
    rows = torch.stack([torch.zeros(size), record(size)])
    check_low_bits(
        lambda: found.of_chunks([rows[:1]], noise),
        lambda: found.of_chunks([rows], noise),
        found.sigma,
    )


def test_a_float32_lattice_under_a_sum_over_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PrivateSum,
        "release",
        lambda self, total, noise: four_fold_float32(total, self.sigma, noise),
    )
    with pytest.raises(AssertionError, match="guesses are right"):
        test_low_bits_of_a_sum_over_rows_tell_nothing(SecureNoise(), 300)


def test_one_row_turns_the_rounding_of_no_other() -> None:
    """A sum of floats just below a power of two rounds finely, just above it coarsely: with one row
    more 30,000 tiny ones were lost, and the sum moved by more than the clip norm.
    """
    asked = PrivateSum(1, clip_norm=1.0, noise_multiplier=1e-6, rows=1000)
    halves = torch.full((2**21 - 1, 1), 0.5, dtype=torch.float64)
    tiny = torch.full((1, 1), -0.75 * 2.0**-33, dtype=torch.float64)
    chunks = [halves, *[tiny] * 30_000]
    one, other = (
        asked.of_chunks(rows, SeededNoise(1))
        for rows in (chunks, [torch.ones(1, 1, dtype=torch.float64), *chunks])
    )
    assert float((other - one).abs()) <= 1.0 + asked.grid.step


@pytest.mark.parametrize("dimension", [1, 3, 1000])
@pytest.mark.parametrize("clip_norm", [1e-6, 0.7, 1.0, 1e6])
def test_a_sum_is_the_same_in_whatever_pieces_rows_come(dimension: int, clip_norm: float) -> None:
    asked = PrivateSum(dimension, clip_norm, noise_multiplier=0.01, rows=1000)
    rows = torch.randn(200, dimension, generator=torch.Generator().manual_seed(1)) * clip_norm
    found = [
        asked.of_chunks(pieces, SeededNoise(1))
        for pieces in ([rows], torch.split(rows, 7), torch.split(rows.flip(0), 1))
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    exact = clip_rows(rows.double(), clip_norm).sum(0)
    off = found[0] - asked.of_chunks([], SeededNoise(1)) - exact
    assert float(off.norm()) <= clip_norm * 200 * 2.0**-26 + asked.grid.step * dimension**0.5


@pytest.mark.parametrize("moved", [1, 2**20, 2**40])
def test_a_share_keeps_its_fraction_however_large_the_sum_is(moved: int) -> None:
    """Given the total, fractions of t + x must tell nothing of t (docs/secure_aggregation.md). A
    float64 of t + x keeps fewer bits of its fraction the larger t is, and a few in a million
    integers then lay elsewhere.
    """
    asked = PrivateSum(1_000_000, 1.0, noise_multiplier=1.0, rows=2**30, share=NoiseShare(3))
    total = torch.full((1_000_000,), 0.3, dtype=torch.float64) * asked.grid.step
    more = torch.full_like(total, float(moved)) * asked.grid.step
    # 0.3 + 2**40 steps is no float64: the part that is lost is taken off both
    total = (total + more) - more
    one, other = (asked.release(each, SeededNoise(5)) for each in (total, total + more))
    assert torch.equal(other - one, torch.full_like(one, moved))
