"""No privacy: plain federated averaging, for comparison; every output of such a run says NOT
PRIVATE.

With ``train.solver: second_moment`` (linear models) parties send gradients instead of weights
(``exact_moment.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

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
from homo_dp.federation.mechanisms.exact_moment import ExactMoment
from homo_dp.federation.mechanisms.local_fit import LocalFit, Training
from homo_dp.federation.mechanisms.round_sums import RoundSum, RoundSums
from homo_dp.federation.protocol.messages import Signature
from homo_dp.privacy.noise.source import NoiseSource


class PlainAveraging(Mechanism):
    """Sends the trained weights, or a mean gradient, as they are. It guarantees nothing."""

    name = "none"
    private = False
    relation = "add_or_remove_one"

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        super().__init__(config, facts, noise)
        by_moment = config.train.solver == "second_moment"
        self._moment = ExactMoment(config, facts, self.party_weights) if by_moment else None

    def plan(self, party: PartyFacts) -> PartyPlan:
        what = "model weights" if self._moment is None else "mean gradient of its rows"
        return PartyPlan(
            noise_multiplier=0.0,
            sigma=0.0,
            clip_norm=0.0,
            relation=self.relation,
            delta=self.config.delta,
            rounds=party.rounds,
            events={},
            releases=(f"{what}, every round, without noise",),
            noise_to_signal=0.0,
            notes=("NOT PRIVATE: privacy.mechanism is none",),
        )

    def other_sums(self, party: PartyFacts) -> RoundSums:
        return {} if self._moment is None else self._moment.sums

    # --- at the party ---

    def training(self, fit: LocalFit) -> Training | None:
        # with a second moment the aggregator takes the steps
        return super().training(fit) if self._moment is None else None

    def after_fit(self, fit: LocalFit) -> Release:
        return self._plain(fit.weights() if self._moment is None else self._moment.gradient(fit))

    def answer(self, fit: LocalFit, asked: RoundSum) -> Release:
        return (
            super().answer(fit, asked)
            if self._moment is None
            else self._plain(self._moment.answer(fit))
        )

    def update_signature(self, weights: Weights) -> Signature:
        return (
            super().update_signature(weights)
            if self._moment is None
            else self._moment.signature(weights)
        )

    def longest_update(self, weights: Weights) -> float | None:
        return None if self._moment is None else self._moment.longest_gradient(weights)

    @staticmethod
    def _plain(tensors: Weights) -> Release:
        return Release(tensors, event=None, sigma=0.0, relation="add_or_remove_one")

    # --- at the aggregator ---

    def on_receive(
        self, updates: Sequence[Update], current: Weights, round_number: int
    ) -> Combined:
        if self._moment is None:
            return super().on_receive(updates, current, round_number)
        return self._moment.moved(updates, current, round_number)

    def on_sum(
        self, asked: RoundSum, parts: Mapping[str, Tensor], current: Weights, round_number: int
    ) -> Combined:
        return Combined(current) if self._moment is None else self._moment.take(parts, current)

    def state(self) -> Weights:
        return {} if self._moment is None else self._moment.state()

    def restore(self, state: Weights) -> None:
        if self._moment is not None:
            self._moment.restore(state)
