"""Attacks on mechanisms that noise whole updates: a user of DP-FedAvg with its clip bit, and an upload of NbAFL.

What training could do at worst stands in for training: an update of ten clip norms in a direction of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from homo_dp.core.errors import InputError
from homo_dp.evidence.attack import Attack, sampled_losses
from homo_dp.evidence.profile import claim_of
from homo_dp.evidence.record_attacks import Recipe
from homo_dp.federation.mechanisms.base import FederationFacts, Mechanism, PartyFacts, Update
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.federation.mechanisms.nbafl import Nbafl
from homo_dp.federation.sessions.build import build_mechanism, federation_facts, noise_source
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.sampling.samplers import REPLACE_ONE

Floats = NDArray[np.float64]
SIZE = 4  # weights of the made-up model
FAR = 10.0  # clip norms
USERS = "users"


class CanaryUser(Attack):
    """A user whose update is clipped, seen in every published model and, where clipping adapts, in the clip norm.

    With ``bits_only`` nothing but the noisy share of unclipped updates is looked at.
    """

    name = "canary_user"

    def __init__(self, recipe: Recipe, *, bits_only: bool = False) -> None:
        config = recipe.config
        population = int(getattr(config.privacy, "population", None) or sum(recipe.rows.values()))
        keys = config.privacy.model_copy(update={"population": population})
        facts = PartyFacts(USERS, population, config.train.rounds, 1, 1.0)
        federation = FederationFacts({USERS: facts}, config.train.rounds, SIZE)
        made = build_mechanism(config.model_copy(update={"privacy": keys}), federation, noise_source(config))
        if not isinstance(made, DpFedAvg):
            raise InputError(f"privacy.mechanism={made.name}: canary_user and clip_bits attack dp_fedavg")
        if bits_only and not made.adaptive:
            raise InputError("privacy.clipping=fixed: sends no clip bits; attack privacy.clipping: adaptive")
        if made.numbers.sampler.relation == REPLACE_ONE:
            raise InputError("privacy.sampling=fixed: no attack on cohorts of a fixed size is written; audit poisson")
        self.mechanism, self.bits_only = made, bits_only
        self.observer = "model_reader"
        plan = made.plan(facts)
        self.claim = claim_of(compose(*[plan.events["model_reader"]] * plan.rounds), plan.delta)
        self.rounds = plan.rounds
        self.scores_are_losses = not bits_only and not made.noise_at_parties

    def scores(self, present: bool, runs: int) -> Floats:
        return np.array([self._run(present) for _ in range(runs)])

    def _run(self, present: bool) -> float:
        made, numbers = self.mechanism, self.mechanism.numbers
        made.clip_norm, score = made.first_clip_norm, 0.0
        rate = numbers.sampler.sample_rate
        current = {"weight": torch.zeros(SIZE, dtype=torch.float64)}
        for number in range(1, self.rounds + 1):
            total, clip_norm = made.open_sum(current), made.clip_norm
            drawn = made.draw()
            if present and bool((drawn == 0).any()):
                row = torch.zeros(1, SIZE, dtype=torch.float64)
                row[0, 0] = FAR * clip_norm
                total.add(made.contributions(row, clip_norm, torch.tensor([True])))
            if made.noise_at_parties:  # everybody else who is drawn sends zeros and a share of the noise
                quiet = torch.zeros(max(0, len(drawn) - total.replies), SIZE, dtype=torch.float64)
                total.add(made.contributions(quiet, clip_norm, torch.ones(len(quiet), dtype=torch.bool)))
            combined = made.combine(total, current, number)
            seen = float(combined.weights["weight"][0]) * numbers.cohort_size / clip_norm
            plain = 0.0 if self.bits_only else (seen - 0.5) / numbers.update_multiplier**2
            if made.adaptive and numbers.bit_noise is not None:
                bits = (combined.metrics["unclipped_share"] - 0.5) * numbers.cohort_size
                plain += (-0.5 * bits - 0.125) / numbers.bit_noise**2
            score += plain if rate == 1 else float(np.logaddexp(np.log1p(-rate), np.log(rate) + plain))
        return score


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
            raise InputError(f"--observer {observer}: nbafl.noise_at_upload=false promises nothing against it")
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
