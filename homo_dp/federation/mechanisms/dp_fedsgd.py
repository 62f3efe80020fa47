"""DP-FedSGD: each round one gradient of all parties' rows, clipped per record, with noise that parties can share.

A round: every party draws a Poisson sample of its rows at the common rate -> sums their clipped gradients -> adds its
noise -> the aggregator adds up, divides by the expected size of the whole sample and takes a step. Because what is
noised is itself added up, parties whose updates are masked share the noise of one pooled table.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.privacy.accounting.accountants import calibrate, check_delta, epsilon
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.privacy.sampling.samplers import PoissonSampler

if TYPE_CHECKING:
    from homo_dp.privacy.training.private_gradient import PrivateGradient

SUM = "sum"  # the name of the vector of a masked update


class DpFedSgd(Mechanism):
    """One noisy gradient a round.

    Guarantees:
        - one record moves the sum of a round by at most ``max_grad_norm``;
        - without secure aggregation every party's own noise has standard deviation z C; with it, that of any
          N - dropouts - colluders parties together does, and a party's part is released only under masks;
        - the divisor is the expected size of the whole sample, by declared or public row counts.
    """

    name = "dp_fedsgd"
    relation = PoissonSampler.relation

    _gradient: PrivateGradient | None = None

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        super().__init__(config, facts, noise)
        shared = keys_of(config.privacy, SharedNoiseKeys)
        self._share = None
        if shared.secure_aggregation:
            self._share = NoiseShare(len(facts.parties), shared.tolerated_dropouts, shared.tolerated_colluders)
        self._clip_norm = keys_of(config.privacy, RecordKeys).max_grad_norm

    @classmethod
    def needs_rows(cls, config: Config) -> str | None:
        return "privacy.mechanism=dp_fedsgd"

    @classmethod
    def common_facts(cls, facts: FederationFacts) -> FederationFacts:
        """One step a round at one rate: rows count the same wherever they are, as in one pooled table."""
        parties = facts.parties.values()
        rates = {party.sample_rate for party in parties}
        expected, rows = sum(party.sample_rate * party.rows for party in parties), sum(party.rows for party in parties)
        rate = rates.pop() if len(rates) == 1 else min(1.0, expected / rows)
        common = {name: replace(party, sample_rate=rate, steps_per_round=1) for name, party in facts.parties.items()}
        return replace(facts, parties=common)

    @classmethod
    def warm_up(cls) -> None:
        import homo_dp.privacy.training.private_gradient  # noqa: F401 (Opacus)

    @property
    def masked_sum(self) -> PrivateSum | None:
        return None if self._share is None else self._sum(next(iter(self.facts.parties.values())))

    @property
    def noise_label(self) -> str:
        if self._share is None:
            return self.noise.label
        share = self._share
        return (
            f"{self.noise.label}; 1/sqrt({share.sharers}) of it, shared by {share.parties} parties, "
            f"{share.dropouts} dropouts and {share.colluders} colluders assumed"
        )

    def plan(self, party: PartyFacts) -> PartyPlan:
        privacy = self.config.privacy
        check_delta(privacy.delta, party.rows)
        found = self._sum(party)
        event = found.event()
        spent = epsilon(found.event(party.rounds), privacy.delta).quoted
        neglected = found.neglected_delta(party.rounds, spent)
        share = self._share
        return PartyPlan(
            noise_multiplier=found.noise_multiplier,
            sigma=found.party_sigma,
            clip_norm=self._clip_norm,
            relation=found.relation,
            delta=privacy.delta,
            rounds=party.rounds,
            events={"aggregator": event, "model_reader": event},
            releases=(
                "sum of clipped gradients of a sample, every round, with its own noise"
                if share is None
                else "its part, under masks, of the parties' noisy sum of clipped gradients, every round",
            ),
            noise_to_signal=self._noise_of_total(found)
            * math.sqrt(self.facts.parameters)
            / (self._clip_norm * self._expected),
            notes=(self._note(),),
            extra={
                "secure_aggregation": "on" if share else "off",
                "noise_shared_by": share.parties if share else None,
                "tolerated_dropouts": share.dropouts if share else None,
                "tolerated_colluders": share.colluders if share else None,
                "noise_share_sigma": found.party_sigma,
                "noise_of_total_sigma": self._noise_of_total(found),
                "neglected_delta": neglected,
                "delta_with_neglected": privacy.delta + neglected,
            },
        )

    def _note(self) -> str:
        parties, share = len(self.facts.parties), self._share
        if share is None:
            if parties < 2:
                return "each party adds all of its noise itself"
            return (
                f"each of {parties} parties adds all of its noise itself: sqrt({parties}) = {math.sqrt(parties):.3g} "
                "times the noise of one pooled table in the total; privacy.secure_aggregation: true shares it, with "
                f"{math.sqrt(parties / max(1, parties - 1)):.3g} times"
            )
        return (
            f"{share.parties} parties share the noise of each total: epsilon holds against the aggregator together "
            f"with up to {share.colluders} of the parties, and with up to {share.dropouts} missing"
        )

    def _sum(self, party: PartyFacts) -> PrivateSum:
        rows = sum(facts.rows for facts in self.facts.parties.values())
        return PrivateSum(
            self.facts.parameters, self._clip_norm, self._noise_multiplier(party), rows, party.sample_rate, self._share
        )

    def _noise_multiplier(self, party: PartyFacts) -> float:
        privacy = self.config.privacy
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        if privacy.target_epsilon is None:
            raise ValueError("privacy.target_epsilon and privacy.noise_multiplier are both missing: give one")
        return _calibrated(party.sample_rate, party.rounds, privacy.target_epsilon, privacy.delta)

    def _noise_of_total(self, found: PrivateSum) -> float:
        return found.total_sigma if self._share else found.sigma * math.sqrt(len(self.facts.parties))

    # --- at the party ---

    def before_fit(self, fit: LocalFit) -> None:
        if self._gradient is None:
            from homo_dp.privacy.training.private_gradient import PrivateGradient  # imports Opacus

            self._gradient = PrivateGradient(
                fit.model,
                fit.optimizer,
                fit.loss,
                fit.features,
                fit.labels,
                private_sum=self._sum(fit.facts),
                declared=fit.facts.rows,
                noise=self.noise,
                physical_batch_size=fit.train.physical_batch_size,
                grad_sample_mode=self.config.privacy.grad_sample_mode,
            )
            fit.run_steps = self._gradient.run
        self._gradient.load_weights(fit.start)

    def local_norms(self) -> tuple[Tensor, float] | None:
        return None if self._gradient is None else (self._gradient.last_norms, self._clip_norm)

    def after_fit(self, fit: LocalFit) -> Release:
        gradient = self._gradient
        if gradient is None or gradient.released is None:
            raise ValueError("after_fit was called before a gradient was made")
        released, gradient.released = gradient.released, None
        parts = gradient.parts(released)
        if self._share:  # in the order of the names, which no file or message changes
            tensors = {SUM: torch.cat([parts[name].reshape(-1) for name in sorted(parts)])}
        else:
            tensors = {name: part.to(fit.start[name].dtype) for name, part in parts.items()}
        return Release(tensors, gradient.event(1), gradient.applied_sigma, gradient.private_sum.relation)

    # --- at the aggregator ---

    @property
    def _expected(self) -> float:
        """The expected rows in the samples of all parties: public, and the same whoever is missing."""
        return sum(party.rows * party.sample_rate for party in self.facts.parties.values())

    def on_receive(self, updates: Sequence[Update], current: Weights, round_number: int) -> Combined:
        total = {name: sum((u.tensors[name].double() for u in updates), torch.zeros(())) for name in current}
        replied = [update.party for update in updates]
        return self._moved(total, replied, current, round_number)

    def on_total(self, total: Tensor, replied: Sequence[str], current: Weights, round_number: int) -> Combined:
        names = sorted(current)
        pieces = torch.split(total, [current[name].numel() for name in names])
        parts = {name: piece.reshape(current[name].shape) for name, piece in zip(names, pieces, strict=True)}
        return self._moved(parts, replied, current, round_number)

    def _moved(self, total: Weights, replied: Sequence[str], current: Weights, round_number: int) -> Combined:
        """A step on the total over the expected rows of who replied; decay is added here, where no row has a part."""
        train = self.config.train
        rate = train.schedule.rate(train.learning_rate, round_number - 1, self.facts.rounds, train.weight_decay)
        expected = sum(self.facts.parties[name].rows * self.facts.parties[name].sample_rate for name in replied)
        moved = {}
        for name, weight in current.items():
            gradient = total[name] / expected + train.weight_decay * weight.double()
            moved[name] = (weight.double() - rate * gradient).to(weight.dtype)
        return Combined(moved)


@functools.lru_cache(maxsize=4096)
def _calibrated(sample_rate: float, rounds: int, target_epsilon: float, delta: float) -> float:
    sampler = PoissonSampler(1, sample_rate)
    return calibrate(lambda z: sampler.event(z, rounds), target_epsilon, delta)
