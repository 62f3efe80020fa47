"""All users of a table as one party: a round draws a cohort, trains it, and answers with the sum of what it sends."""

from __future__ import annotations

import torch

from homo_dp.config.schema import TrainConfig
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import Mechanism, PartyFacts, Release, Weights
from homo_dp.federation.mechanisms.cohort_mechanism import CohortMechanism
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.users.cohorts import CohortTraining


class UsersFit(LocalFit):
    """Local training of a party that holds many users; each of them is bounded and noised as a party of its own.

    Guarantees:
        - who is in a cohort is known to this object alone: its answer is one sum and the number of replies.
    """

    def __init__(self, training: CohortTraining, facts: PartyFacts, train: TrainConfig) -> None:
        rows, labels = training.users.features[:0], training.users.labels[:0]  # `training` has them all
        super().__init__(training.model, training.loss, rows, labels, facts, train, torch.Generator())
        self.training = training

    def fit(self, mechanism: Mechanism, weights: Weights, round_number: int, broadcast: dict[str, float]) -> Release:
        """One round of a cohort that is drawn here."""
        if not isinstance(mechanism, CohortMechanism):
            raise ConfigError(f"privacy.mechanism={mechanism.name}: is no sum over users; they cannot be simulated")
        total = self.training.run(mechanism, mechanism.draw(), weights, round_number)
        return mechanism.release(total, mechanism.plan(self.facts))
