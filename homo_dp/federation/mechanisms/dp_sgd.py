"""DP-SGD at each party (Abadi et al. 2016): a record is hidden from everybody outside, the aggregator included.

Each party draws Poisson batches of its own rows, clips per record, adds noise to the sum and sends the weights that
follow.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING

from torch import Tensor

from homo_dp.config.privacy import RecordKeys, keys_of
from homo_dp.federation.mechanisms.base import Mechanism, PartyFacts, PartyPlan, Release
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.mechanisms.round_sums import calibrated_noise, text_of
from homo_dp.privacy.accounting.accountants import check_delta
from homo_dp.privacy.sampling.samplers import PoissonSampler

if TYPE_CHECKING:
    from homo_dp.privacy.training.private_training import PrivateTraining

log = logging.getLogger(__name__)


class DpSgd(Mechanism):
    """Per-record DP-SGD with one private training that lives through all rounds.

    Guarantees:
        - one record moves the sum of a step by at most ``max_grad_norm``;
        - the noise on that sum has standard deviation ``noise_multiplier * max_grad_norm``;
        - the event of a round is named by the object that sampled, clipped and noised it.
    """

    name = "dp_sgd"
    relation = PoissonSampler.relation
    asks_metrics = True

    _training: PrivateTraining | None = None

    @classmethod
    def warm_up(cls) -> None:
        import homo_dp.privacy.training.private_training  # noqa: F401 (Opacus only where the fast path does not serve)

    def plan(self, party: PartyFacts) -> PartyPlan:
        privacy = keys_of(self.config.privacy, RecordKeys)
        check_delta(privacy.delta, party.rows)
        sampler = PoissonSampler(party.rows, party.sample_rate)
        multiplier = self._noise_multiplier(party)
        event = sampler.event(multiplier, party.steps_per_round)
        return PartyPlan(
            noise_multiplier=multiplier,
            sigma=multiplier * privacy.max_grad_norm,
            clip_norm=privacy.max_grad_norm,
            relation=sampler.relation,
            delta=privacy.delta,
            rounds=party.rounds,
            events={"aggregator": event, "model_reader": event},
            releases=(f"model weights after {party.steps_per_round} DP-SGD steps, every round",),
            noise_to_signal=multiplier * math.sqrt(self.facts.parameters) / sampler.expected_size,
        )

    def _noise_multiplier(self, party: PartyFacts) -> float:
        privacy = keys_of(self.config.privacy, RecordKeys)
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        if privacy.target_epsilon is None:
            raise ValueError(
                "privacy.target_epsilon and privacy.noise_multiplier are both missing: give one"
            )
        steps = party.rounds * party.steps_per_round
        return calibrated_noise(
            party.sample_rate,
            steps,
            privacy.target_epsilon,
            privacy.delta,
            text_of(self.beside(party)),
        )

    def before_fit(self, fit: LocalFit) -> None:
        if self._training is None:
            from homo_dp.privacy.training.private_training import (
                PrivateTraining,
            )  # an aggregator does not need it

            privacy = keys_of(self.config.privacy, RecordKeys)
            self._training = PrivateTraining(
                fit.model,
                fit.optimizer,
                fit.loss,
                fit.features,
                fit.labels,
                sampler=PoissonSampler(
                    len(fit.features), fit.facts.sample_rate, declared=fit.facts.rows
                ),
                noise_multiplier=self.plan(fit.facts).noise_multiplier,
                max_grad_norm=privacy.max_grad_norm,
                noise=self.noise,
                physical_batch_size=fit.train.physical_batch_size,
                grad_sample_mode=privacy.grad_sample_mode,
                after_noise=fit.after_gradient,
            )
            if privacy.grad_sample_mode == "auto" and self._training.grad_sample_mode != "fast":
                _say_slow(self._training.grad_sample_mode, self._training.mode_reason)
            fit.run_steps = self._training.run

    def local_norms(self) -> tuple[Tensor, float] | None:
        if self._training is None:
            return None
        return self._training.last_norms, self._training.max_grad_norm

    def after_fit(self, fit: LocalFit) -> Release:
        if self._training is None:
            raise ValueError("after_fit was called before before_fit: there is no private training")
        return Release(
            {name: weight.cpu() for name, weight in self._training.weights().items()},
            event=self._training.event(fit.facts.steps_per_round),
            sigma=self._training.applied_sigma,
            relation=self._training.sampler.relation,
        )


@functools.cache
def _say_slow(mode: str, reason: str) -> None:
    """Once, not for each of three hundred parties with the same model."""
    log.warning(
        "grad_sample_mode=%s, which is many times slower than the fast path: %s", mode, reason
    )
