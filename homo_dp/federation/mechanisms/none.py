"""No privacy: plain federated averaging, for comparison; every output of such a run says NOT
PRIVATE.

With ``train.solver: second_moment`` (linear models) parties send gradients instead of weights
(``solvers/exact_second_moment.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from homo_dp.config.mechanisms import NONE
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
    party_weights,
    weighted_mean,
)
from homo_dp.federation.mechanisms.local_fit import LocalFit, Training
from homo_dp.federation.protocol.messages import Signature
from homo_dp.federation.protocol.round_sums import SUM, RoundSum, RoundSums
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.solvers.registry import plain_solver_class


class PlainAveraging(Mechanism):
    """Sends the trained weights, or a mean gradient, as they are. It guarantees nothing."""

    capabilities = NONE

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        super().__init__(config, facts, noise)
        solver = plain_solver_class(config.train.solver)
        self._solver = solver(config, facts, party_weights(config, facts))

    def plan(self, party: PartyFacts) -> PartyPlan:
        return PartyPlan(
            noise_multiplier=0.0,
            sigma=0.0,
            clip_norm=0.0,
            relation="add_or_remove_one",
            delta=self.config.delta,
            rounds=party.rounds,
            events={},
            releases=(f"{self._solver.sends}, every round, without noise",),
            noise_to_signal=0.0,
            notes=("NOT PRIVATE: privacy.mechanism is none",),
        )

    def other_sums(self, party: PartyFacts) -> RoundSums:
        return self._solver.sums

    # --- at the party ---

    def training(self, fit: LocalFit) -> Training | None:
        return super().training(fit) if self._solver.parties_step else None

    def after_fit(self, fit: LocalFit) -> Release:
        return self._plain(self._solver.update(fit))

    def answer(self, fit: LocalFit, asked: RoundSum) -> Release:
        return self._plain({SUM: self._solver.row_sum(fit, asked)})

    def signature_of(self, weights: Weights, asked: RoundSum | None) -> Signature:
        if asked is None:
            return self._solver.signature(weights)
        return super().signature_of(weights, asked)

    def longest_update(self, weights: Weights) -> float | None:
        return self._solver.longest(weights)

    @staticmethod
    def _plain(tensors: Weights) -> Release:
        return Release(tensors, event=None, sigma=0.0, relation="add_or_remove_one")

    # --- at the aggregator ---

    def on_receive(
        self, updates: Sequence[Update], current: Weights, round_number: int
    ) -> Combined:
        return Combined(self._solver.moved(weighted_mean(updates), current, round_number))

    def on_sum(
        self, asked: RoundSum, parts: Mapping[str, Tensor], current: Weights, round_number: int
    ) -> Combined:
        found = self._solver.take(parts, current)
        if found is None:
            return Combined(current, metrics={"discarded": 1.0}, discarded=True)
        return Combined(found)

    def state(self) -> Weights:
        return self._solver.state()

    def restore(self, state: Weights) -> None:
        self._solver.restore(state)
