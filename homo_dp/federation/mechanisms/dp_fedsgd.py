"""DP-FedSGD: each round one gradient of all parties' rows, clipped per record, with noise that
parties can share.

A round: every party draws a Poisson sample of its rows at the common rate -> sums their clipped
gradients -> adds its noise -> the aggregator adds up, divides by the expected size of the whole
sample and takes a step. Because what is noised is itself added up, parties whose updates are masked
share the noise of one pooled table.

``train.solver`` is for linear models. ``gradient`` bounds the gradient of a record by its row, in
axes that are public (``centred_rows.py``). ``second_moment`` asks one noisy second moment of the
rows first, and takes gradients in the coordinates that follow from it (``second_moment_round.py``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
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
from homo_dp.federation.mechanisms.centred_rows import CENTRES, CentredRows
from homo_dp.federation.mechanisms.column_scales import COLUMNS
from homo_dp.federation.mechanisms.local_fit import LocalFit, Training, loader_of, made_private
from homo_dp.federation.mechanisms.round_sums import (
    SUM,
    RoundSum,
    RoundSums,
    calibrated_noise,
    text_of,
)
from homo_dp.federation.mechanisms.second_moment_round import (
    FIRST,
    MOMENT,
    TRANSFORM,
    MomentRound,
    as_table,
    as_weights,
)
from homo_dp.federation.mechanisms.shared_noise import noise_label, shared_figures, shared_note
from homo_dp.federation.protocol.messages import Signature
from homo_dp.privacy.accounting.accountants import check_delta
from homo_dp.privacy.engine.release import named_parts
from homo_dp.privacy.linear_rows import LinearTraining
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.privacy.sampling.samplers import PoissonSampler

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

    name = "dp_fedsgd"
    relation = PoissonSampler.relation
    asks_metrics = True

    _engine: PrivacyEngine | None = None
    _training: Training | None = None
    _linear: LinearTraining | None = None

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        super().__init__(config, facts, noise)
        shared = keys_of(config.privacy, SharedNoiseKeys)
        self._share = None
        if shared.secure_aggregation:
            self._share = NoiseShare(
                len(facts.parties), shared.tolerated_dropouts, shared.tolerated_colluders
            )
        self._clip_norm = keys_of(config.privacy, RecordKeys).max_grad_norm
        self._moment = None
        if config.train.solver == "second_moment":
            self._moment = MomentRound(config, facts, self._share)

    @classmethod
    def needs_rows(cls, config: Config) -> str | None:
        return "privacy.mechanism=dp_fedsgd"

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
    def noise_label(self) -> str:
        return noise_label(self.noise.label, self._share)

    @property
    def noise_share(self) -> NoiseShare | None:
        return self._share

    def other_sums(self, party: PartyFacts) -> RoundSums:
        return {} if self._moment is None else self._moment.sums

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
            self._noise_multiplier(party),
            rows,
            party.sample_rate,
            self._share,
        )

    def _noise_multiplier(self, party: PartyFacts) -> float:
        privacy = self.config.privacy
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        if privacy.target_epsilon is None:
            raise ValueError(
                "privacy.target_epsilon and privacy.noise_multiplier are both missing: give one"
            )
        return calibrated_noise(
            party.sample_rate,
            party.rounds,
            privacy.target_epsilon,
            self.config.delta,
            text_of(self.beside(party)),
            self.filter_order,
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
            self._engine, self._training = self._made_private(fit)
        if self._linear is not None:
            self._linear.set_round(fit.start, self._coordinates(fit.start))
        return self._training

    def _coordinates(self, start: Weights) -> Tensor | None:
        """What came with the weights for rows to be transformed by."""
        if self._moment is not None:
            return start[TRANSFORM]
        return start[CENTRES] if self._centred else None

    def _made_private(self, fit: LocalFit) -> tuple[PrivacyEngine, Training]:
        """The engine on the model and its rows, or on a linear layer and transformed rows."""
        train, facts, private_sum = self.config.train, fit.facts, self._sum(fit.facts)
        model, optimizer, loss, rows = fit.model, fit.optimizer, fit.loss, fit.rows()
        if train.solver not in ("auto", "sgd"):
            row_norm = None if self._moment else train.row_norm
            self._linear = found = LinearTraining(
                fit.model, fit.loss, fit.features, fit.labels, row_norm=row_norm
            )
            model, loss, rows = found.module, found.loss, loader_of(found.features, found.labels)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # it hands out and never steps
        return made_private(
            self.noise,
            module=model,
            optimizer=optimizer,
            criterion=loss,
            data_loader=rows,
            noise_multiplier=private_sum.party_sigma / private_sum.clip_norm,
            max_grad_norm=private_sum.clip_norm,
            sample_rate=facts.sample_rate,
            expected_batch_size=facts.sample_rate * facts.rows,
            steps=facts.steps_per_round,
            physical_batch_size=train.physical_batch_size,
            grad_sample_mode=self.config.privacy.grad_sample_mode,
            release="hand_out" if self._share is None else "hand_out_masked",
            private_sum=private_sum,
        )

    def answer(self, fit: LocalFit, asked: RoundSum) -> Release:
        if self._moment is None or asked.name not in (COLUMNS, MOMENT):
            return super().answer(fit, asked)
        return self._moment.answer(fit, asked, self.noise)

    def broadcast_signature(self, round_number: int) -> Signature:
        if self._centred:
            return CentredRows.signature(self._width)
        return {} if self._moment is None or round_number <= FIRST else self._moment.signature

    def local_norms(self) -> tuple[Tensor, float] | None:
        if self._training is None:
            return None
        return self._training.optimizer.last_norms, self._clip_norm

    def after_fit(self, fit: LocalFit) -> Release:
        if self._training is None or self._engine is None:
            raise ValueError("after_fit was called before a gradient was made")
        optimizer = self._training.optimizer
        released = optimizer.take_released()
        linear = self._linear
        parts = named_parts(fit.model, released) if linear is None else linear.named(released)
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
        if self._moment is None or asked.name not in (COLUMNS, MOMENT):
            return super().on_sum(asked, parts, current, round_number)
        return self._moment.take(asked, parts, current, round_number)

    def _moved(
        self, total: Weights, replied: Sequence[str], current: Weights, round_number: int
    ) -> Combined:
        """A step on the total over the expected rows of who replied; decay is added here, where
        no row has a part.
        """
        train = self.config.train
        rate = train.schedule.rate(
            train.learning_rate, round_number - 1, self.facts.rounds, train.weight_decay
        )
        expected = sum(
            self.facts.parties[name].rows * self.facts.parties[name].sample_rate for name in replied
        )
        if self._calibrates(round_number):
            return self._calibrated(as_table(total)[0] / expected, current)
        if self._moment is not None or self._centred:
            like = {name: weight.double() for name, weight in current.items()}
            back = self._axes.back if self._moment is None else self._moment.found.back
            total = as_weights(back(as_table(total)), like)
        moved = {}
        for name, weight in current.items():
            gradient = total[name] / expected + train.weight_decay * weight.double()
            moved[name] = (weight.double() - rate * gradient).to(weight.dtype)
        return Combined(moved)

    def _calibrates(self, training_round: int) -> bool:
        return training_round > self.facts.rounds - self.config.train.calibration_rounds

    def _calibrates_in(self, round_number: int) -> bool:
        return round_number not in self.sums and self._calibrates(self.training_round(round_number))

    def _calibrated(self, gradient: Tensor, current: Weights) -> Combined:
        """The model with another spread and mean of its scores, by a gradient in coordinates of
        these.
        """
        found = None if self._moment is None else self._moment.calibration(current, self._clip_norm)
        if found is None:
            return Combined(current, whole=True)
        moved = found.moved(gradient, self._noise_of_mean)
        return Combined(as_weights(moved.reshape(1, -1), current), whole=True)

    @property
    def _width(self) -> int:
        return self.facts.parameters // self.facts.outputs

    @property
    def _centred(self) -> bool:
        """Whether gradients are in axes around the middle of columns, which takes a bias to make
        up for it.
        """
        return self.config.train.solver == "gradient" and self.config.model.bias

    @functools.cached_property
    def _axes(self) -> CentredRows:
        """From public numbers: the levels of columns, the noise and the rate."""
        train, rounds = self.config.train, math.sqrt(self.facts.rounds)
        centres = torch.zeros(self._width - 1, dtype=torch.float64)
        for place, share in self.facts.levels.items():
            centres[place] = share
        noise = self._noise_of_mean
        server = train.server_optimizer
        reach = train.learning_rate / (1 - (server.momentum if server.name == "fedavgm" else 0.0))
        kappa = self._clip_norm * rounds / noise
        return CentredRows.of(
            centres, train.row_norm or self._clip_norm, kappa, reach * noise * rounds
        )

    def starts_from_mean(self, round_number: int) -> bool:
        return self._calibrates_in(round_number) or super().starts_from_mean(round_number)

    def broadcast_tensors(self, round_number: int, weights: Weights) -> Weights:
        if self._centred:
            return {CENTRES: self._axes.tensor}
        if self._moment is None or round_number <= FIRST:
            return {}
        found = (
            self._moment.calibration(weights, self._clip_norm)
            if self._calibrates_in(round_number)
            else None
        )
        return (
            self._moment.tensors(round_number)
            if found is None
            else {TRANSFORM: found.transform.float()}
        )

    def state(self) -> Weights:
        return {} if self._moment is None else self._moment.state()

    def restore(self, state: Weights) -> None:
        if self._moment is not None:
            self._moment.restore(state)
