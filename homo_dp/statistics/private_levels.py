"""Levels of a categorical column that nobody declared: values whose noisy count passes a threshold,
and no others.

A value text is not a sum over a known list of numbers. Which values occur is itself private, so a
value that is there because of one row alone must stay away: that is what the threshold is for. And
it cannot be masked: each party adds noise of its own and names what passes, and the levels are what
any of them names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from homo_dp.core.errors import ConfigError
from homo_dp.data.encoding import Encoding
from homo_dp.data.raw_rows import TEXT_BYTES, TEXT_NUMBERS, may_be_level, number_text, unlisted_of
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import NoiseSource

LEVEL_NAMES: Final = "level_names"
MOST_LEVELS = 256  # that a party names of a column: those with the largest noisy counts
# of all columns of a plan: half of what a party takes by default (party.caps.columns)
MOST_NAMES = 5000
TAIL = 2.0**-60  # delta' as a share of delta: their float64 sum is delta itself


def threshold_of(sigma: float, delta: float) -> float:
    """The count with noise that a value needs: ``1 + sigma * Phi^-1(1 - delta)``.

    A value that one row alone has counts 1, so it passes with probability ``P(1 + N(0, sigma^2) >=
    t) = delta`` (Korolova et al. 2009, "Releasing search queries and clicks privately"; Google's
    "Delta for thresholding", 2020, with Gaussian noise).

    >>> round(threshold_of(2.0, 1e-5), 3)
    9.53
    """
    if not (sigma > 0 and math.isfinite(sigma) and 0 < delta < 0.5):
        raise PrivacyError(
            f"sigma={sigma} delta={delta}: a threshold needs noise, and a delta above 0 and "
            "below 0.5"
        )
    return 1.0 - sigma * NormalDist().inv_cdf(delta)


@dataclass(frozen=True)
class LevelsRelease:
    """The noisy histograms of some columns of one table, of which only names above a threshold
    leave.

    Guarantees:
        - a row has one value a column, so it moves one count a column by 1: over all columns by
          sqrt(columns) (L2), and the noise of each count is ``noise_multiplier`` times that:
          together one Gaussian event;
        - where a row is the only one with its values, any of them leaves with probability at most
          ``delta``, which is shared by the columns and comes on top of the Gaussian event;
        - names leave sorted, without counts, at most ``MOST_LEVELS``; none that is longer than
          ``TEXT_BYTES`` leaves, and none that cannot be printed.
    """

    columns: int
    noise_multiplier: float
    delta: float

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise of one count."""
        return self.noise_multiplier * self.clip_norm

    @property
    def clip_norm(self) -> float:
        """By how much a row moves all counts together (L2)."""
        return math.sqrt(self.columns)

    @property
    def threshold(self) -> float:
        """What a noisy count has to reach."""
        return threshold_of(self.sigma, self.delta / self.columns)

    def names(self, counts: Mapping[str, int], noise: NoiseSource) -> list[str]:
        """The values of one column that may be known, by how many rows of one table have each
        value.
        """
        return sorted(passing(counts, self.sigma, self.threshold, noise)[:MOST_LEVELS])


def passing(
    counts: Mapping[str, int], sigma: float, threshold: float, noise: NoiseSource
) -> list[str]:
    """The values whose noisy count reaches a threshold, the largest first; private only with
    ``threshold_of``.
    """
    present = [(text, count) for text, count in counts.items() if count > 0]
    noisy = torch.tensor([count for _, count in present], dtype=torch.float64)
    if present:
        noisy += noise.normal((len(present),), sigma, torch.float64)
    found = [
        (count, text)
        for (text, _), count in zip(present, noisy.tolist(), strict=True)
        if count >= threshold
    ]
    return [text for _, text in sorted(found, reverse=True) if may_be_level(text)]


@dataclass(frozen=True)
class LevelNames:
    """The question for the levels of columns that nobody listed: what a party answers, and what the
    answers say.

    Guarantees:
        - an answer has the same shape whatever the rows are: ``MOST_LEVELS`` places of
          ``TEXT_BYTES`` a column.
    """

    columns: tuple[str, ...]
    places: tuple[int, ...]  # of the first number of their texts in a row
    release: LevelsRelease
    # texts that stand for a missing value, with which no party comes honestly
    missing: frozenset[str] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an answer."""
        return len(self.columns), MOST_LEVELS, TEXT_BYTES

    def answer(self, rows: Tensor, noise: NoiseSource) -> Tensor:
        """The names of one party's rows that pass, as bytes."""
        found = torch.zeros(self.shape, dtype=torch.uint8)
        for number, place in enumerate(self.places):
            names = self.release.names(counts_of(rows[:, place : place + TEXT_NUMBERS]), noise)
            for at, name in enumerate(names):
                data = name.encode()
                found[number, at, : len(data)] = torch.frombuffer(
                    bytearray(data), dtype=torch.uint8
                )
        return found

    def read(self, answers: Iterable[Tensor]) -> dict[str, Any]:
        """What parties named, in all; a place that holds no level is left out, whoever wrote it.

        A level that is a word for a missing value would be taken for one at every party, past
        ``missing: error``. Of more names than a plan may have, those are kept that most parties
        gave: names that one party makes up must not make rows so wide that the others refuse them.
        """
        found: dict[str, Counter[str]] = {name: Counter() for name in self.columns}
        for answer in answers:
            for name, places in zip(self.columns, answer, strict=True):
                texts = (
                    bytes(place.tolist()).rstrip(b"\0").decode("utf-8", "replace")
                    for place in places
                )
                found[name].update({text for text in texts if self._is_level(text)})
        most = max(1, min(MOST_LEVELS, MOST_NAMES // len(self.columns)))
        kept = {
            name: sorted(names, key=lambda text: (-names[text], text))[:most]
            for name, names in found.items()
        }
        return {
            "values": {name: sorted(names) for name, names in kept.items()},
            "standard_errors": dict.fromkeys(self.columns),
            "threshold": self.release.threshold,
            "delta": self.release.delta,
        }

    def _is_level(self, text: str) -> bool:
        return may_be_level(text) and text == text.strip() and text not in self.missing


def counts_of(texts: Tensor) -> Counter[str]:
    """How many rows have each text, by the numbers of their texts; rows without one are left
    out.
    """
    there = texts[~texts.isnan().any(1)].cpu().numpy()
    found, counts = np.unique(there, axis=0, return_counts=True)
    return Counter(
        {number_text(text) or "": count for text, count in zip(found, counts.tolist(), strict=True)}
    )


def level_names(encoding: Encoding, noise_multiplier: float, delta: float) -> LevelNames:
    """The question about all columns whose levels are to be estimated; ``delta`` is the smallest
    that a ledger goes by.
    """
    columns = unlisted_of(encoding)
    if not columns:
        raise ConfigError(
            f"statistics.ask={LEVEL_NAMES}: no column has levels: private; leave the question out"
        )
    places = tuple(len(encoding.columns) + number * TEXT_NUMBERS for number in range(len(columns)))
    missing = frozenset(text.strip() for text in encoding.missing_values)
    return LevelNames(
        columns, places, LevelsRelease(len(columns), noise_multiplier, TAIL * delta), missing
    )
