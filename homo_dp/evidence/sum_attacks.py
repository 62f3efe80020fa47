"""Attacks on sums that leave a party: DP-FedSGD's, alone or under masks, and what two parties or
many rows give away.

A masked sum is attacked from where the design puts the aggregator at its best: it knows the noise
of as many parties as the plan tolerates as colluders, as many as it tolerates are missing, and it
sees the total of the rest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from homo_dp.core.errors import InputError
from homo_dp.data.rows import Table
from homo_dp.evidence.attack import Attack, sampled_losses
from homo_dp.evidence.record_attacks import (
    LENGTH,
    MECHANISM,
    OTHERS,
    CanaryGradient,
    PartyOfAttack,
    Recipe,
    along_canary,
    first_weight,
    made_up_rows,
)
from homo_dp.evidence.tradeoff import Profile
from homo_dp.federation.protocol.round_sums import SUM, RoundSum
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.private_sum import PrivateSum

Floats = NDArray[np.float64]


class CanarySum(CanaryGradient):
    """DP-FedSGD: one party's noisy sum, the total of the parties that an aggregator does not
    know, or of all.
    """

    name = "canary_sum"

    def __init__(
        self, recipe: Recipe, mechanism: MECHANISM | None = None, observer: str = "aggregator"
    ) -> None:
        super().__init__(recipe, mechanism)
        self.observer = observer
        if not self.attacked(False).mechanism.capabilities.one_sum:
            raise InputError(
                f"privacy.mechanism={recipe.config.privacy.mechanism}: canary_sum attacks dp_fedsgd"
            )
        self._sum: PrivateSum | None = self.attacked(False).mechanism.masked_sum
        others = [self.party(name) for name in recipe.rows if name != recipe.party]
        if observer == "aggregator":
            share = None if self._sum is None else self._sum.share
            others = [] if share is None else others[: share.sharers - 1]
        self._others = others

    def values(self, party: PartyOfAttack, runs: int) -> Floats:
        seen = [
            along_canary(self._seen(party, number))
            for number in range(1, runs * self.facts.rounds + 1)
        ]
        values: Floats = np.array(seen).reshape(runs, -1) / self.plan.clip_norm
        return values

    def _seen(self, party: PartyOfAttack, number: int) -> Tensor:
        """The sum of a round as far as it is known, of the weights of the linear layer."""
        name, released = (
            first_weight(party.fit.model),
            [each.round(number) for each in (party, *self._others)],
        )
        if self._sum is None:
            return torch.stack([each[name].double() for each in released]).sum(0)
        total = total_seen(self._sum, [each[SUM] for each in released])
        sizes = [party.start[each].numel() for each in party.names]
        pieces = dict(zip(party.names, torch.split(total, sizes), strict=True))
        return pieces[name].reshape(party.start[name].shape)

    def scores(self, present: bool, runs: int) -> Floats:
        """From the rounds that train, and from those that ask another sum: a second moment,
        metrics.
        """
        found, party = super().scores(present, runs), self.attacked(present)
        for number, asked in self.plan.sums.items():
            without, canary = self._known(number, asked)
            along = AlongCanary(asked.private_sum, without, canary, 1 + len(self._others))
            for run in range(runs):
                answers = [_answer(each, asked) for each in (party, *self._others)]
                found[run] += along.loss(total_seen(asked.private_sum, answers))
        return found

    @functools.cache  # noqa: B019 (an attack lives as long as its audit)
    def _known(self, number: int, asked: RoundSum) -> tuple[Tensor, Tensor]:
        """The sum without the canary, which the attacker knows, and what the canary adds:
        answers without noise.
        """
        sums = []
        for present in (False, True):
            parties = [
                self.party(self.recipe.party, canary=present),
                *(self.party(o.facts.name) for o in self._others),
            ]
            for each in parties:
                each.mechanism.noise = _Silence()
            sums.append(total_seen(asked.private_sum, [_answer(each, asked) for each in parties]))
        return sums[0], sums[1] - sums[0]

    def _losses(self, values: Floats) -> Floats:
        noise = math.sqrt(1 + len(self._others)) * self._party_noise()
        scores: Floats = sampled_losses(values, noise, self.facts.sample_rate).sum(axis=1)
        return scores

    def _party_noise(self) -> float:
        return self.plan.noise_multiplier if self._sum is None else party_noise(self._sum)


@dataclass(frozen=True)
class AlongCanary:
    """One sum of a few parties, looked at along what the canary adds to it."""

    private_sum: PrivateSum
    without: Tensor
    canary: Tensor
    parties: int

    def loss(self, seen: Tensor) -> float:
        """Log likelihood ratio of what was seen."""
        length, unit = float(self.canary.norm()), self.private_sum.clip_norm
        if length < 1e-6 * unit:
            return 0.0
        along = float((seen - self.without) @ self.canary) / length / unit
        noise = party_noise(self.private_sum) * math.sqrt(self.parties)
        return float(sampled_losses(np.array([along]), noise, 1.0, length / unit)[0])


def total_seen(private_sum: PrivateSum, released: Sequence[Tensor]) -> Tensor:
    """The sum of what parties released: of values, or of integers modulo 2^bits, as masks leave
    it.
    """
    if private_sum.share is None:
        return torch.stack([each.double() for each in released]).sum(0)
    words = np.stack([private_sum.to_words(each) for each in released])
    return private_sum.from_words(np.sum(words, axis=0, dtype=private_sum.word()))


def party_noise(private_sum: PrivateSum) -> float:
    """The noise of one party, in clip norms."""
    if private_sum.share is None:
        return private_sum.noise_multiplier
    return private_sum.grid.share_std(private_sum.party_sigma) / private_sum.clip_norm


def _answer(party: PartyOfAttack, asked: RoundSum) -> Tensor:
    party.fit.begin(party.start)
    return party.mechanism.run.answer(party.fit, asked).tensors[SUM]


class _Silence(SeededNoise):
    """No noise: for what an attacker works out beforehand, on rows that it made up itself."""

    def __init__(self) -> None:
        super().__init__(0)

    def normal(
        self, shape: Sequence[int], std: float, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)


class CanaryDifference(Attack):
    """Two parties' views side by side: what they have in common, noise of one seed, falls out of
    the difference.
    """

    name = "canary_difference"

    def __init__(self, recipe: Recipe, mechanism: MECHANISM | None = None) -> None:
        others = [name for name in recipe.rows if name != recipe.party]
        if not others:
            raise InputError(
                "data: canary_difference compares two parties, and there is one; use "
                "canary_gradient"
            )
        self.view = view_of(recipe, mechanism)
        if self.view.masked:
            raise InputError(
                "privacy.secure_aggregation=true: no two parties' sums are seen; use canary_sum"
            )
        self.observer, self.claim = self.view.observer, self.view.claim
        self._second = self.view.party(others[0])

    def law(self) -> Profile | None:
        own, other = (
            party.plan.noise_multiplier for party in (self.view.attacked(False), self._second)
        )
        return self.claim.with_noise(math.hypot(own, other) / own)

    def scores(self, present: bool, runs: int) -> Floats:
        first, second = self.view.attacked(present), self._second
        values = self.view.values(first, runs) - self.view.values(second, runs)
        noise = math.hypot(first.plan.noise_multiplier, second.plan.noise_multiplier)
        scores: Floats = sampled_losses(values, noise, self.view.facts.sample_rate).sum(axis=1)
        return scores


class CanaryCount(CanaryGradient):
    """Every other row pulls against the canary: a mean over the secret row count moves twice as
    far.
    """

    name = "canary_count"
    scores_are_losses = False

    def __init__(self, recipe: Recipe, mechanism: MECHANISM | None = None) -> None:
        super().__init__(recipe, mechanism)
        if self.facts.sample_rate < 1 or len(recipe.classes or ()) != 2:
            raise InputError(
                "train.sample_rate: canary_count needs rate 1, so that it knows the others, and "
                "two classes"
            )

    def rows(self, clip_norm: float, *, canary: bool) -> Table:
        made = made_up_rows(self.recipe, clip_norm, canary=canary)
        features = made.features.reshape(len(made.features), -1)
        features[:OTHERS] = 0.0
        features[:OTHERS, 0] = LENGTH * max(1.0, clip_norm)
        features[:OTHERS, 1] = -1.0  # the model is certain of class 1, and their label is 0
        return made

    def _losses(self, values: Floats) -> Floats:
        return super()._losses(values + OTHERS)


def view_of(recipe: Recipe, mechanism: MECHANISM | None = None) -> CanaryGradient:
    """What an aggregator sees of one party, whichever record-level mechanism it runs."""
    return (CanarySum if recipe.config.privacy.capabilities.one_sum else CanaryGradient)(
        recipe, mechanism
    )
