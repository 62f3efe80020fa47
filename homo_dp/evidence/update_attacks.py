"""Attacks on mechanisms that noise whole updates: a user of DP-FedAvg with its clip bit, and an
upload of NbAFL.

What training could do at worst stands in for training: an update of ten clip norms in a direction
of its own.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from homo_dp.core.errors import InputError
from homo_dp.evidence.attack import Attack, sampled_losses
from homo_dp.evidence.record_attacks import Recipe
from homo_dp.evidence.tradeoff import Profile, claim_of, drawn_profile
from homo_dp.federation.mechanisms.base import FederationFacts, Mechanism, PartyFacts, Update
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.federation.mechanisms.nbafl import Nbafl
from homo_dp.federation.sessions.build import build_mechanism, federation_facts, noise_source
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.gradients.adaptive_clipping import HALF
from homo_dp.privacy.sampling.samplers import REPLACE_ONE

Floats = NDArray[np.float64]
SIZE = 4  # weights of the made-up model
FAR = 10.0  # clip norms
USERS = "users"


class CanaryUser(Attack):
    """A user whose update is clipped, seen in every published model and, where clipping adapts, in
    the clip norm.

    Where the claim is about one user replaced (cohorts of a fixed size), the other world has a user
    in its place whose update points the other way. With ``bits_only`` nothing but the noisy share
    of unclipped updates is looked at; there the user in its place is one that is not clipped.
    """

    name = "canary_user"

    def __init__(self, recipe: Recipe, *, bits_only: bool = False) -> None:
        config = recipe.config
        population = int(getattr(config.privacy, "population", None) or sum(recipe.rows.values()))
        keys = config.privacy.model_copy(update={"population": population})
        facts = PartyFacts(USERS, population, config.train.rounds, 1, 1.0)
        federation = FederationFacts({USERS: facts}, config.train.rounds, SIZE)
        made = build_mechanism(
            config.model_copy(update={"privacy": keys}), federation, noise_source(config)
        )
        if not isinstance(made, DpFedAvg):
            raise InputError(
                f"privacy.mechanism={made.name}: canary_user and clip_bits attack dp_fedavg"
            )
        if bits_only and not made.adaptive:
            raise InputError(
                "privacy.clipping=fixed: sends no clip bits; attack privacy.clipping: adaptive"
            )
        self.mechanism, self.bits_only = made, bits_only
        self.observer = "model_reader"
        plan = made.plan(facts)
        self.claim = claim_of(compose(*[plan.events["model_reader"]] * plan.rounds), plan.delta)
        self.rounds, self.rate = plan.rounds, made.numbers.sampler.sample_rate
        self.replaced = made.numbers.sampler.relation == REPLACE_ONE
        self.scores_are_losses = not made.noise_at_parties

    def law(self) -> Profile | None:
        if self.claim.steps is None:
            return self._drawn_law
        if not self.bits_only:
            return self.claim.profile()
        bits = self.mechanism.numbers.sampler.event(
            (self.mechanism.numbers.bit_noise or math.nan) / HALF, self.rounds
        )
        return claim_of(bits, self.claim.delta).profile()

    def scores(self, present: bool, runs: int) -> Floats:
        return np.array([self._run(present) for _ in range(runs)])

    def _run(self, present: bool) -> float:
        made, numbers = self.mechanism, self.mechanism.numbers
        made.clip_norm, score = made.first_clip_norm, 0.0
        current = {"weight": torch.zeros(SIZE, dtype=torch.float64)}
        for number in range(1, self.rounds + 1):
            total, clip_norm = made.open_sum(current), made.clip_norm
            drawn = made.draw()
            if (present or self.replaced) and bool((drawn == 0).any()):
                row = torch.zeros(1, SIZE, dtype=torch.float64)
                row[0, 0] = self._update(present) * clip_norm
                total.add(made.contributions(row, clip_norm, torch.tensor([True])))
            # everybody else who is drawn sends zeros and a share of the noise
            if made.noise_at_parties:
                quiet = torch.zeros(max(0, len(drawn) - total.replies), SIZE, dtype=torch.float64)
                total.add(
                    made.contributions(quiet, clip_norm, torch.ones(len(quiet), dtype=torch.bool))
                )
            combined = made.combine(total, current, number)
            seen = float(combined.weights["weight"][0]) * numbers.cohort_size / clip_norm
            bits = (
                (combined.metrics["unclipped_share"] - 0.5) * numbers.cohort_size
                if made.adaptive
                else 0.0
            )
            score += float(self._loss(np.array(seen), np.array(bits)))
        return score

    def _update(self, present: bool) -> float:
        """The user's update in clip norms; in the other world that of the user in its place."""
        if present:
            return FAR
        return 0.0 if self.bits_only else -FAR

    def _loss(self, seen: Floats, bits: Floats) -> Floats:
        """Log likelihood ratio of one round's noisy sum of updates, in clip norms, and of bits."""
        numbers, rate = self.mechanism.numbers, self.rate

        def world(update: float, bit: float) -> Floats:
            plain = np.zeros_like(seen)
            if not self.bits_only:
                plain = plain + (seen * update - update**2 / 2) / numbers.update_multiplier**2
            if self.mechanism.adaptive and numbers.bit_noise is not None:
                plain = plain + (bits * bit - bit**2 / 2) / numbers.bit_noise**2
            return plain if rate == 1 else np.logaddexp(np.log1p(-rate), np.log(rate) + plain)

        with_it = world(1.0, -HALF)
        if not self.replaced:
            return with_it
        return with_it - (world(0.0, HALF) if self.bits_only else world(-1.0, -HALF))

    @functools.cached_property
    def _drawn_law(self) -> Profile:
        """Of scores that are drawn as the claim has it: no closed form is known for cohorts of a
        fixed size.
        """
        numbers, generator = self.mechanism.numbers, np.random.default_rng(0)
        runs = max(10_000, min(200_000, 20_000_000 // self.rounds))

        def drawn(update: float, bit: float) -> Floats:
            found = np.zeros(runs)
            for _ in range(self.rounds):
                there = generator.random(runs) < self.rate
                seen = update * there + numbers.update_multiplier * generator.standard_normal(runs)
                bits = bit * there + (numbers.bit_noise or 0.0) * generator.standard_normal(runs)
                found += self._loss(seen, bits)
            return found

        other = (0.0, HALF) if self.bits_only else (-1.0, -HALF)
        return drawn_profile(drawn(1.0, -HALF), drawn(*other))


class ClipBits(CanaryUser):
    """The clip norm alone, as it moves from round to round."""

    name = "clip_bits"

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, bits_only=True)


class CanaryUpload(Attack):
    """NbAFL's noisy weights, at one end of the ball that they are clipped to or at the other."""

    name = "canary_upload"

    def __init__(self, recipe: Recipe, observer: str) -> None:
        noise = noise_source(recipe.config)
        facts = federation_facts(recipe.config, recipe.rows, SIZE)
        made: Mechanism = build_mechanism(recipe.config, facts, noise)
        if not isinstance(made, Nbafl):
            raise InputError(f"privacy.mechanism={made.name}: canary_upload attacks nbafl")
        self.mechanism, self.party, self.observer = made, recipe.party, observer
        self.parties = list(recipe.rows)
        plan = made.plan(facts.parties[recipe.party])
        events: Any = plan.events
        if observer not in events:
            raise InputError(
                f"--observer {observer}: nbafl.noise_at_upload=false promises nothing against it"
            )
        self.times = made.exposures if observer == "aggregator" else plan.rounds
        self.claim = claim_of(compose(*[events[observer]] * self.times), plan.delta)
        self.noise_multiplier = float(events[observer].noise_multiplier)
        everybody = made.exposures == plan.rounds and recipe.config.train.weighting == "uniform"
        self.scores_are_losses = observer == "aggregator" or everybody

    def scores(self, present: bool, runs: int) -> Floats:
        seen = np.array([self._seen(present, 1 + n % self.times) for n in range(runs * self.times)])
        losses = sampled_losses(seen, self.noise_multiplier, 1.0)
        scores: Floats = losses.reshape(runs, -1).sum(axis=1)
        return scores

    def _seen(self, present: bool, number: int) -> float:
        """Where the upload (or the published mean) lies between the two ends: 0 or 1, and noise."""
        made, clip_norm = self.mechanism, self.mechanism.clip_norm
        own = made.after_fit(_Weights(FAR * clip_norm * (1 if present else -1))).tensors  # type: ignore[arg-type]
        if self.observer == "aggregator":
            return (float(own["weight"][0]) / clip_norm + 1) / 2
        cohort = made.cohort(self.parties, number)
        if self.party not in cohort:
            return 0.5
        updates = [
            Update(name, own if name == self.party else made.after_fit(_Weights(0.0)).tensors, 1.0)  # type: ignore[arg-type]
            for name in cohort
        ]
        mean = made.on_receive(updates, own, number).weights
        return (float(mean["weight"][0]) * len(cohort) / clip_norm + 1) / 2


class _Weights:
    """Stands in for a fit that has ended at these weights."""

    def __init__(self, value: float) -> None:
        self.value = value

    def weights(self) -> dict[str, torch.Tensor]:
        made = torch.zeros(SIZE, dtype=torch.float64)
        made[0] = self.value
        return {"weight": made}
