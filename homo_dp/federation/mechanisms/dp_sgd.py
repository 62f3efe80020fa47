"""DP-SGD at each party (Abadi et al. 2016): a record is hidden from everybody outside, the
aggregator included.

Each party draws Poisson batches of its own rows, clips per record, adds noise to the sum and sends
the weights that follow.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING

from torch import Tensor

from homo_dp.config.mechanisms import DP_SGD
from homo_dp.config.privacy import RecordKeys, keys_of
from homo_dp.federation.mechanisms.base import Mechanism, PartyFacts, PartyPlan, Release
from homo_dp.federation.mechanisms.local_fit import LocalFit, Training, made_private
from homo_dp.privacy.accounting.accountants import check_delta
from homo_dp.privacy.sampling.samplers import PoissonSampler

if TYPE_CHECKING:
    from homo_dp.privacy.engine.engine import PrivacyEngine

log = logging.getLogger(__name__)


class DpSgd(Mechanism):
    """Per-record DP-SGD by the privacy engine; what it wraps lives through all rounds.

    Guarantees:
        - one record moves the sum of a step by at most ``max_grad_norm``;
        - the noise on that sum has standard deviation ``noise_multiplier * max_grad_norm``;
        - the event of a round is named by the engine that sampled, clipped and noised it.
    """

    capabilities = DP_SGD

    _engine: PrivacyEngine | None = None
    _training: Training | None = None

    @classmethod
    def warm_up(cls) -> None:
        import homo_dp.privacy.engine.engine  # noqa: F401

    def plan(self, party: PartyFacts) -> PartyPlan:
        privacy = keys_of(self.config.privacy, RecordKeys)
        check_delta(self.config.delta, party.rows)
        sampler = PoissonSampler(party.rows, party.sample_rate)
        multiplier = self.run.noise_multiplier(party, party.rounds * party.steps_per_round)
        event = sampler.event(multiplier, party.steps_per_round)
        return PartyPlan(
            noise_multiplier=multiplier,
            sigma=multiplier * privacy.max_grad_norm,
            clip_norm=privacy.max_grad_norm,
            relation=sampler.relation,
            delta=self.config.delta,
            rounds=party.rounds,
            events={"aggregator": event, "model_reader": event},
            releases=(f"model weights after {party.steps_per_round} DP-SGD steps, every round",),
            noise_to_signal=multiplier * math.sqrt(self.facts.parameters) / sampler.expected_size,
        )

    def training(self, fit: LocalFit) -> Training:
        if self._training is None:
            privacy, facts = keys_of(self.config.privacy, RecordKeys), fit.facts
            self._engine, self._training = made_private(
                self.noise,
                module=fit.model,
                optimizer=fit.optimizer,
                criterion=fit.loss,
                data_loader=fit.rows(),
                noise_multiplier=self.plan(facts).noise_multiplier,
                max_grad_norm=privacy.max_grad_norm,
                sample_rate=facts.sample_rate,
                expected_batch_size=facts.sample_rate * facts.rows,
                steps=facts.steps_per_round,
                physical_batch_size=fit.train.physical_batch_size,
                grad_sample_mode=privacy.grad_sample_mode,
            )
            if privacy.grad_sample_mode == "auto" and self._engine.grad_sample_mode != "fast":
                _say_slow(self._engine.grad_sample_mode, self._engine.mode_reason)
        return self._training

    def local_norms(self) -> tuple[Tensor, float] | None:
        if self._training is None:
            return None
        optimizer = self._training.optimizer
        return optimizer.last_norms, optimizer.max_grad_norm

    def after_fit(self, fit: LocalFit) -> Release:
        if self._training is None or self._engine is None:
            raise ValueError("after_fit was called before a training was made")
        return Release(
            {name: weight.detach().cpu().clone() for name, weight in fit.model.named_parameters()},
            event=self._engine.event(fit.facts.steps_per_round),
            sigma=self._training.optimizer.applied_sigma,
            relation=PoissonSampler.relation,
        )


@functools.cache
def _say_slow(mode: str, reason: str) -> None:
    """Once, not for each of three hundred parties with the same model."""
    log.warning(
        "grad_sample_mode=%s, which is many times slower than the fast path: %s", mode, reason
    )
