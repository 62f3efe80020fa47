"""DP-FedSGD: each round one gradient of all parties' rows, clipped per record, with noise that
parties can share.

A round: every party draws a Poisson sample of its rows at the common rate -> sums their clipped
gradients -> adds its noise -> the aggregator adds up, divides by the expected size of the whole
sample and takes a step. Because what is noised is itself added up, parties whose updates are masked
share the noise of one pooled table.

What comes before the gradients, which coordinates they are in, and the step that follows from them
are its solver's (``homo_dp/solvers``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from homo_dp.config.mechanisms import DP_FEDSGD
from homo_dp.config.privacy import RecordKeys, SharedNoiseKeys, keys_of
from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.base import (
    Combined,
    FederationFacts,
    Mechanism,
    PartyFacts,
    PartyPlan,
    Release,
    Update,
    Weights,
)
from homo_dp.federation.mechanisms.local_fit import LocalFit, Training, made_private
from homo_dp.federation.mechanisms.shared_noise import shared_figures, shared_note
from homo_dp.federation.protocol.messages import Signature
from homo_dp.federation.protocol.round_sums import SUM, RoundSum, RoundSums
from homo_dp.privacy.accounting.accountants import check_delta
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.privacy.sampling.samplers import PoissonSampler
from homo_dp.solvers.registry import solver_class
from homo_dp.solvers.solver import Gradients

if TYPE_CHECKING:
    from homo_dp.privacy.engine.engine import PrivacyEngine


class DpFedSgd(Mechanism):
    """One noisy gradient a round.

    Guarantees:
        - one record moves the sum of a round by at most ``max_grad_norm``;
        - without secure aggregation every party's own noise has standard deviation z C; with it,
          that of any N - dropouts - colluders parties together does, and a party's part is released
          only under masks;
        - the divisor is the expected size of the whole sample, by declared or public row counts.
    """

    capabilities = DP_FEDSGD

    _engine: PrivacyEngine | None = None
    _training: Training | None = None
    _gradients: Gradients | None = None

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        super().__init__(config, facts, noise)
        shared = keys_of(config.privacy, SharedNoiseKeys)
        self._share = None
        if shared.secure_aggregation:
            self._share = NoiseShare(
                len(facts.parties), shared.tolerated_dropouts, shared.tolerated_colluders
            )
        self._clip_norm = keys_of(config.privacy, RecordKeys).max_grad_norm
        solver = solver_class(config.train.solver)
        self.solver = solver(config, facts, self._share, lambda: self._noise_of_mean)

    @classmethod
    def common_facts(cls, facts: FederationFacts) -> FederationFacts:
        """One step a round at one rate: rows count the same wherever they are, as in one pooled
        table.
        """
        parties = facts.parties.values()
        rates = {party.sample_rate for party in parties}
        expected, rows = (
            sum(party.sample_rate * party.rows for party in parties),
            sum(party.rows for party in parties),
        )
        rate = rates.pop() if len(rates) == 1 else min(1.0, expected / rows)
        common = {
            name: replace(party, sample_rate=rate, steps_per_round=1)
            for name, party in facts.parties.items()
        }
        return replace(facts, parties=common)

    @classmethod
    def warm_up(cls) -> None:
        import homo_dp.privacy.engine.engine  # noqa: F401

    @property
    def masked_sum(self) -> PrivateSum | None:
        return None if self._share is None else self._sum(next(iter(self.facts.parties.values())))

    def longest_update(self, weights: Weights) -> float | None:
        return self._sum(next(iter(self.facts.parties.values()))).longest

    @property
    def noise_share(self) -> NoiseShare | None:
        return self._share

    def other_sums(self, party: PartyFacts) -> RoundSums:
        return self.solver.sums

    def plan(self, party: PartyFacts) -> PartyPlan:
        check_delta(self.config.delta, party.rows)
        found = self._sum(party)
        event = found.event()
        share = self._share
        return PartyPlan(
            noise_multiplier=found.noise_multiplier,
            sigma=found.party_sigma,
            clip_norm=self._clip_norm,
            relation=found.relation,
            delta=self.config.delta,
            rounds=party.rounds,
            events={"aggregator": event, "model_reader": event},
            releases=(
                (
                    "sum of clipped gradients of a sample, every round, with its own noise"
                    if share is None
                    else (
                        "its part, under masks, of the parties' noisy sum of clipped gradients, "
                        "every round"
                    )
                ),
            ),
            noise_to_signal=self._noise_of_total(found)
            * math.sqrt(self.facts.parameters)
            / (self._clip_norm * self._expected),
            notes=(self._note(),),
            extra={
                **shared_figures(found),
                "noise_of_total_sigma": self._noise_of_total(found),
            },
        )

    def _note(self) -> str:
        parties, share = len(self.facts.parties), self._share
        if share is None:
            if parties < 2:
                return "each party adds all of its noise itself"
            alone = (
                f"each of {parties} parties adds all of its noise itself: sqrt({parties}) = "
                f"{math.sqrt(parties):.3g} times the noise of one pooled table in the total"
            )
            # each party has to be hidden from the other, so each must add all of the noise
            if parties == 2:
                return alone
            shared = math.sqrt(parties / (parties - 1))
            return f"{alone}; privacy.secure_aggregation: true shares it, with {shared:.3g} times"
        return shared_note(share)

    def _sum(self, party: PartyFacts) -> PrivateSum:
        rows = sum(facts.rows for facts in self.facts.parties.values())
        return PrivateSum(
            self.facts.parameters,
            self._clip_norm,
            self.run.noise_multiplier(party, party.rounds),
            rows,
            party.sample_rate,
            self._share,
        )

    def _noise_of_total(self, found: PrivateSum) -> float:
        return (
            found.total_sigma if self._share else found.sigma * math.sqrt(len(self.facts.parties))
        )

    @property
    def _noise_of_mean(self) -> float:
        """Standard deviation of the noise in a mean gradient, where all parties answer."""
        return (
            self._noise_of_total(self._sum(next(iter(self.facts.parties.values()))))
            / self._expected
        )

    # --- at the party ---

    def training(self, fit: LocalFit) -> Training:
        if self._training is None:
            self._gradients = self.solver.gradients(fit)
            self._engine, self._training = self._made_private(fit.facts, self._gradients)
        if self._gradients is not None:
            self._gradients.begin(fit.start)
        return self._training

    def _made_private(
        self, facts: PartyFacts, gradients: Gradients
    ) -> tuple[PrivacyEngine, Training]:
        """The engine on what gradients are taken of."""
        private_sum = self._sum(facts)
        return made_private(
            self.noise,
            module=gradients.module,
            optimizer=gradients.optimizer,
            criterion=gradients.criterion,
            data_loader=gradients.loader,
            noise_multiplier=private_sum.party_sigma / private_sum.clip_norm,
            max_grad_norm=private_sum.clip_norm,
            sample_rate=facts.sample_rate,
            expected_batch_size=facts.sample_rate * facts.rows,
            steps=facts.steps_per_round,
            physical_batch_size=self.config.train.physical_batch_size,
            grad_sample_mode=self.config.privacy.grad_sample_mode,
            release="hand_out" if self._share is None else "hand_out_masked",
            private_sum=private_sum,
        )

    def answer(self, fit: LocalFit, asked: RoundSum) -> Release:
        if asked not in self.solver.sums.values():
            return super().answer(fit, asked)
        released = asked.private_sum.release(self.solver.row_sum(fit, asked), self.noise)
        return Release.of_sum(asked, released)

    def broadcast_signature(self, round_number: int) -> Signature:
        return self.solver.signature(round_number)

    def local_norms(self) -> tuple[Tensor, float] | None:
        if self._training is None:
            return None
        return self._training.optimizer.last_norms, self._clip_norm

    def after_fit(self, fit: LocalFit) -> Release:
        if self._training is None or self._engine is None or self._gradients is None:
            raise ValueError("after_fit was called before a gradient was made")
        optimizer = self._training.optimizer
        parts = self._gradients.named(optimizer.take_released())
        if self._share:  # sorted by name, so that the order depends on no file or message
            tensors = {SUM: torch.cat([parts[name].reshape(-1) for name in sorted(parts)])}
        else:
            tensors = {name: part.to(fit.start[name].dtype) for name, part in parts.items()}
        return Release(
            tensors, self._engine.event(1), optimizer.applied_sigma, PoissonSampler.relation
        )

    # --- at the aggregator ---

    @property
    def _expected(self) -> float:
        """The expected rows in the samples of all parties: public, and the same whoever is
        missing.
        """
        return sum(party.rows * party.sample_rate for party in self.facts.parties.values())

    def on_receive(
        self, updates: Sequence[Update], current: Weights, round_number: int
    ) -> Combined:
        weights = self._party_weights([update.party for update in updates])
        total = {
            name: sum(
                (u.tensors[name].double() * weights[u.party] for u in updates), torch.zeros(())
            )
            for name in current
        }
        return self._moved(total, list(weights), current, round_number)

    def _party_weights(self, replied: Sequence[str]) -> dict[str, float]:
        """What each party's own noisy sum counts: 1, or by inverse noise variance as often as it
        has rows.

        The noise of a party's mean gradient has a variance of 1 / n^2 in its rows n, so its sum is
        weighted by n.
        """
        rows = {name: self.facts.parties[name].rows for name in replied}
        if self.config.train.weighting != "noise":
            return dict.fromkeys(rows, 1.0)
        mean = sum(count**2 for count in rows.values()) / sum(rows.values())
        return {name: count / mean for name, count in rows.items()}

    def on_total(
        self, total: Tensor, replied: Sequence[str], current: Weights, round_number: int
    ) -> Combined:
        names = sorted(current)
        pieces = torch.split(total, [current[name].numel() for name in names])
        parts = {
            name: piece.reshape(current[name].shape)
            for name, piece in zip(names, pieces, strict=True)
        }
        return self._moved(parts, replied, current, round_number)

    def on_sum(
        self, asked: RoundSum, parts: Mapping[str, Tensor], current: Weights, round_number: int
    ) -> Combined:
        return Combined(self.solver.take(asked, parts, current, round_number))

    def _moved(
        self, total: Weights, replied: Sequence[str], current: Weights, round_number: int
    ) -> Combined:
        """A step on the total over the expected rows of who replied."""
        expected = sum(
            self.facts.parties[name].rows * self.facts.parties[name].sample_rate for name in replied
        )
        step = self.solver.step(total, expected, current, round_number)
        return Combined(step.weights, whole=step.whole)

    def starts_from_mean(self, round_number: int) -> bool:
        return self.solver.starts_from_mean(round_number)

    def broadcast_tensors(self, round_number: int, weights: Weights) -> Weights:
        return self.solver.tensors(weights, round_number, self.run.trains(round_number))

    def state(self) -> Weights:
        return self.solver.state()

    def restore(self, state: Weights) -> None:
        self.solver.restore(state)
