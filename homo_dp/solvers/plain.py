"""Solver ``sgd`` without privacy: parties take their own steps and send their weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from homo_dp.config.schema import Config
from homo_dp.federation.protocol.messages import Signature, signature
from homo_dp.federation.protocol.party_plan import FederationFacts
from homo_dp.federation.protocol.round_sums import RoundSum, RoundSums
from homo_dp.federation.protocol.tensors import Weights
from homo_dp.privacy.errors import PrivacyError
from homo_dp.solvers.solver import PartyRows


class TrainedWeights:
    """What parties send without privacy, and what follows from it. It guarantees nothing."""

    sends = "model weights"
    parties_step = True  # False: the aggregator takes the steps

    def __init__(
        self, config: Config, facts: FederationFacts, party_weights: Mapping[str, float]
    ) -> None:
        self._config, self._facts, self._weights = config, facts, party_weights

    @property
    def sums(self) -> RoundSums:
        """What is asked before the training, by round."""
        return {}

    # --- at the party ---

    def row_sum(self, fit: PartyRows, asked: RoundSum) -> Tensor:
        """What this party's rows give to one of the sums."""
        raise PrivacyError(f"train.solver={self._config.train.solver}: asks no {asked.name}")

    def update(self, fit: PartyRows) -> Weights:
        """What a party sends of a round."""
        return fit.weights()

    def signature(self, weights: Weights) -> Signature:
        """Names, shapes and dtypes of what a party sends."""
        return signature(weights)

    # --- at the aggregator ---

    def longest(self, weights: Weights) -> float | None:
        """The norm that nothing sent at these weights can pass; None where it is weights."""
        return None

    def take(self, parts: Mapping[str, Tensor], current: Weights) -> Weights | None:
        """The weights that follow from one of the sums; None where it is of no use."""
        return current

    def moved(self, mean: Weights, current: Weights, round_number: int) -> Weights:
        """The weights that follow from the mean of what parties sent."""
        return mean

    def state(self) -> Weights:
        """What a restart needs."""
        return {}

    def restore(self, state: Weights) -> None:
        """Go on from what ``state`` gave."""
