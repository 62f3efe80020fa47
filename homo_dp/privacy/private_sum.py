"""A private sum: the sum over parties' rows of bounded contributions, with noise of one party or
shared by many.

The question that training, statistics and counts all ask: sum over rows of f(row), with |f(row)| <=
C. One object samples the rows, bounds them, adds the noise, rounds to the grid and names the event
(docs/secure_aggregation.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from homo_dp.privacy.accounting.dp_event import DpEvent
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipping import check_clip_norm, clip_rows
from homo_dp.privacy.noise.grid import Grid, summed_with_noise
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.sampling.samplers import PoissonSampler

_MOST_ROWS = 2.0**40
_ROW_BITS = 26  # of a contribution in a sum of integers, and half a bit more for each doubling of d
_TAIL = 40.0  # standard deviations: a longer vector of normals has a probability below 1e-300


@dataclass(frozen=True)
class NoiseShare:
    """How the noise of one sum is shared: ``parties`` add some of it, of whom dropouts and
    colluders do not count.

    >>> NoiseShare(10, dropouts=2).sharers
    7
    """

    parties: int
    dropouts: int = 0
    colluders: int = 1

    def __post_init__(self) -> None:
        if min(self.dropouts, self.colluders) < 0 or self.sharers < 1:
            raise PrivacyError(
                f"parties={self.parties} dropouts={self.dropouts} colluders={self.colluders}: "
                "nobody is left to share the noise; add parties or tolerate less"
            )

    @property
    def sharers(self) -> int:
        """N - t: the parties whose noise is there and unknown to everybody else in the worst
        case.
        """
        return self.parties - self.dropouts - self.colluders


@dataclass(frozen=True)
class PrivateSum:
    """Poisson-sampled rows, clipped, summed and noised; alone, or as one summand of a sum over
    parties.

    Guarantees:
        - one row is in with probability ``sample_rate`` and moves the sum by at most ``clip_norm``
          (L2), whatever the other rows are: rows are added up as integers;
        - the noise that is accounted has standard deviation ``noise_multiplier * clip_norm``: each
          party's own where ``share`` is None, else that of any ``share.sharers`` parties together;
        - rounding sees rows only through row + noise, so it is post-processing and no term of the
          sensitivity;
        - shared sums are integers modulo 2^32 or 2^64, of which no sum of ``rows`` contributions
          can wrap;
        - ``event`` is what ``release`` does: both read the same fields.

    >>> shared = PrivateSum(100, clip_norm=1.0, noise_multiplier=3.0, rows=1000, share=NoiseShare(10))
    >>> shared.sigma, shared.party_sigma, shared.bits
    (3.0, 1.0, 32)
    """

    dimension: int
    clip_norm: float
    noise_multiplier: float
    # of all parties together, declared or public; the proof that nothing wraps rests on it
    rows: int
    sample_rate: float = 1.0
    share: NoiseShare | None = None

    def __post_init__(self) -> None:
        check_clip_norm(self.clip_norm)
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise PrivacyError(
                f"noise_multiplier={self.noise_multiplier}: must be above 0; a sum needs noise"
            )
        if self.dimension < 1 or self.rows < 0:
            raise PrivacyError(
                f"dimension={self.dimension} rows={self.rows}: give at least one number, rows "
                "from 0"
            )
        self.sampler(0)  # refuses a bad rate
        _ = self.bits  # refuses sums that could wrap

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise that is accounted."""
        return self.noise_multiplier * self.clip_norm

    @property
    def party_sigma(self) -> float:
        """Standard deviation of the normal noise that each party adds."""
        return self.sigma if self.share is None else self.sigma / math.sqrt(self.share.sharers)

    @property
    def total_sigma(self) -> float:
        """Standard deviation of all noise in the sum of a whole roster, randomised rounding
        included.
        """
        if self.share is None:
            return self.sigma
        return self.grid.share_std(self.party_sigma) * math.sqrt(self.share.parties)

    @property
    def longest(self) -> float:
        """A norm that no party's own released sum reaches: more rows than any table has, and all
        of the noise.
        """
        return self.clip_norm * _MOST_ROWS + self.party_sigma * (math.sqrt(self.dimension) + _TAIL)

    @property
    def grid(self) -> Grid:
        """The same at all parties: it follows from public numbers."""
        return Grid.of(self.party_sigma)

    @property
    def bits(self) -> int:
        """32 or 64: the modulus 2^bits that no sum reaches half of."""
        parties = 1 if self.share is None else self.share.parties
        return self.grid.modulus_bits(self.rows, self.clip_norm, self.party_sigma, parties)

    def sampler(self, population: int, declared: int | None = None) -> PoissonSampler:
        """Draws a party's rows; ``declared`` is the public figure for how many there are."""
        return PoissonSampler(
            population,
            self.sample_rate,
            declared=max(1, population if declared is None else declared),
        )

    def event(self, releases: int = 1) -> DpEvent:
        """The event of some releases of this sum."""
        return self.sampler(1).event(self.noise_multiplier, releases)

    @property
    def relation(self) -> str:
        """The neighbouring relation of the event."""
        return PoissonSampler.relation

    def of_rows(self, contributions: Tensor, noise: NoiseSource) -> Tensor:
        """Sample, bound, add up and release: a party's own part, from one vector a row."""
        drawn = contributions[self.sampler(len(contributions)).draw(noise)]
        return self.release(self._sum_of([drawn]), noise)

    def of_chunks(self, contributions: Iterable[Tensor], noise: NoiseSource) -> Tensor:
        """The same over all rows, of which some come at a time; a sum that samples takes
        ``of_rows``.
        """
        if self.sample_rate != 1:
            raise PrivacyError(
                f"sample_rate={self.sample_rate}: rows that come in pieces are not sampled"
            )
        return self.release(self._sum_of(contributions), noise)

    def _sum_of(self, contributions: Iterable[Tensor]) -> Tensor:
        """The sum of clipped rows, each rounded by itself to integers that are added up exactly.

        Sums of floats round by what was added before, and one row more could turn the rounding of
        all others round: 2e-6 C with two million crafted rows. So no row moves another here, in
        whatever pieces they come. What a row is rounded by, at most 2**-_ROW_BITS C for all of its
        numbers together, is far below what ``clip_rows`` leaves to the clip norm.
        """
        bits = _ROW_BITS + math.ceil(math.log2(self.dimension) / 2)
        unit = math.ldexp(1.0, math.frexp(self.clip_norm)[1] - bits)
        total, rows = torch.zeros(self.dimension, dtype=torch.int64), 0
        for chunk in contributions:
            rows += len(chunk)
            if rows >= 2 ** (62 - bits):
                raise PrivacyError(
                    f"rows={rows}: are more than sums of {self.dimension} numbers hold exactly; "
                    "split the table"
                )
            clipped = clip_rows(chunk.detach().double().cpu(), self.clip_norm)
            total += clipped.mul_(1.0 / unit).round_().to(torch.int64).sum(0)
        return total.double().mul_(unit)

    def release(self, total: Tensor, noise: NoiseSource) -> Tensor:
        """A float64 sum of sampled and clipped contributions with this party's noise on its grid.

        Alone: float64 values that may be seen. Shared: int64 steps of the grid, to be seen only in
        a sum over parties.
        """
        if total.shape != (self.dimension,) or total.dtype is not torch.float64:
            raise PrivacyError(
                f"{tuple(total.shape)} of {total.dtype}: the sum is {self.dimension} of "
                "torch.float64"
            )
        if self.share is None:
            return self.grid.round_(summed_with_noise(total, self.party_sigma, noise))
        drawn = noise.normal((self.dimension,), self.party_sigma, torch.float64)
        return self.grid.share(total, drawn, noise)

    def word(self) -> np.dtype[Any]:
        """The unsigned type of masked vectors."""
        return np.dtype(np.uint32 if self.bits == 32 else np.uint64)

    def to_words(self, steps: Tensor) -> NDArray[Any]:
        """Released steps modulo 2^bits, for masks."""
        return steps.cpu().numpy().astype(np.int64, copy=False).view(np.uint64).astype(self.word())

    def from_words(self, total: NDArray[Any]) -> Tensor:
        """The values behind a sum of words: the one number nearest to zero, as no sum wraps."""
        signed = total.astype(self.word()).view(np.int32 if self.bits == 32 else np.int64)
        return torch.from_numpy(signed.astype(np.float64)).mul_(self.grid.step)
