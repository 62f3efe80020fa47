"""The round that releases metrics with noise: counts of test rows, in the training's budget."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from homo_dp.config.schema import Config
from homo_dp.data.declared import label_of
from homo_dp.federation.protocol.party_plan import FederationFacts
from homo_dp.federation.protocol.round_sums import METRICS, RoundSum, noise_of_share, releases_of
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.statistics.released_metrics import ReleasedMetrics


@dataclass(frozen=True)
class ReadMetrics:
    """Released metrics by name, with half the widths of their intervals; curves, and figures of
    each party where those were seen.
    """

    figures: Mapping[str, float]
    curves: Mapping[str, object]
    by_party: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class MetricsRound:
    """What a release of metrics asks, and what follows from the answers.

    Attributes:
        config: That of the run.
        facts: Its public facts.
        share: How parties share the noise; None where each adds its own.
    """

    config: Config
    facts: FederationFacts
    share: NoiseShare | None

    @functools.cached_property
    def metrics(self) -> ReleasedMetrics:
        """What is asked of test rows."""
        classes = label_of(self.config).classes or ()
        kind = "regression" if not classes else "binary" if len(classes) == 2 else "multiclass"
        return ReleasedMetrics(
            kind, len(classes), self.config.predict.threshold, self.config.metrics.bins
        )

    @functools.cached_property
    def asked(self) -> RoundSum:
        """One release, with its part of the share of all of them."""
        privacy, metrics = self.config.privacy, self.config.metrics
        if privacy.target_epsilon is None:
            raise PrivacyError("metrics.release=noised: needs privacy.target_epsilon")
        share = metrics.share / releases_of(self.facts.rounds, metrics.every)
        noise = noise_of_share(share, privacy.target_epsilon, self.config.delta)
        rows = sum(facts.rows for facts in self.facts.parties.values())
        found = PrivateSum(self.metrics.dimension, 1.0, noise, rows, share=self.share)
        return RoundSum(METRICS, found, "counts of test rows by score or error, with noise")

    def read(self, asked: RoundSum, parts: Mapping[str, Tensor]) -> ReadMetrics:
        """The figures of a release, by the values of each party or, under masks, of all."""
        total = torch.stack(list(parts.values())).sum(0).double()
        sigma = asked.private_sum.total_sigma * (1.0 if self.share else math.sqrt(len(parts)))
        by_party = {}
        # each part has the full noise of its party
        if self.config.metrics.per_party and not self.share:
            by_party = {
                name: self._figures(part.double(), asked.private_sum.sigma)
                for name, part in parts.items()
            }
        return ReadMetrics(self._figures(total, sigma), self.metrics.curves(total, sigma), by_party)

    def _figures(self, total: Tensor, sigma: float) -> dict[str, float]:
        """Figures of a noisy total and half the widths of their intervals, by the names of rows."""
        values, errors = self.metrics.read(total, sigma)
        named = {f"released_{name}": value for name, value in values.items()}
        return named | {f"released_{name}_error": value for name, value in errors.items()}
