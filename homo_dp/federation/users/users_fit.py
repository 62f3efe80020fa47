"""All users of a table as one party: a round draws a cohort, trains it, and answers with the sum
of what it sends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray

from homo_dp.config.schema import Config, TrainConfig
from homo_dp.core.errors import ConfigError, DataError
from homo_dp.data.rows import Table
from homo_dp.federation.mechanisms.base import Mechanism, PartyFacts, Release, Weights
from homo_dp.federation.mechanisms.cohort_mechanism import CohortMechanism
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.users.cohorts import CohortTraining, cohort_training
from homo_dp.federation.users.user_rows import Users
from homo_dp.models.registry import BuiltModel


class UsersFit(LocalFit):
    """Local training of a party that holds many users; each of them is bounded and noised as a
    party of its own.

    Guarantees:
        - who is in a cohort is known to this object alone: its answer is one sum and the number of
          replies.
    """

    def __init__(self, training: CohortTraining, facts: PartyFacts, train: TrainConfig) -> None:
        # `training` has them all
        rows, labels = training.users.features[:0], training.users.labels[:0]
        super().__init__(
            training.model, training.loss, rows, labels, facts, train, torch.Generator()
        )
        self.training = training

    def fit(
        self,
        mechanism: Mechanism,
        weights: Weights,
        round_number: int,
        broadcast: dict[str, float],
    ) -> Release:
        """One round of a cohort that is drawn here."""
        if not isinstance(mechanism, CohortMechanism):
            raise ConfigError(
                f"privacy.mechanism={mechanism.name}: is not a sum over users; they cannot be "
                "simulated"
            )
        mechanism.open_round(broadcast)
        users = len(self.training.users)
        drawn, trained = mechanism.draw_of(users)
        total = self.training.run(mechanism, drawn, weights, round_number)
        idle = torch.ones(users, dtype=torch.bool)
        idle[drawn[drawn < users]] = False
        decoys = idle.nonzero().flatten()[: max(0, trained - len(drawn))]
        self.training.run(
            mechanism, decoys, weights, round_number
        )  # so that the time of a round does not depend on who was drawn; the result is dropped
        return mechanism.release(total, mechanism.plan(self.facts))


def users_fit(
    config: Config,
    model: BuiltModel,
    table: Table,
    name: str,
    facts: PartyFacts,
    names: NDArray[Any] | None = None,
    *,
    apart: bool = False,
) -> UsersFit:
    """The training of a party that holds the users of its table; without a user column the party is
    one user.

    ``names`` are those of the users by their numbers in the table, of which a party may hold some.
    ``apart`` is for settings that somebody else chose: no number of one user depends on another,
    whatever they are.
    """
    if table.labels is None:
        raise DataError(f"party {name}: has no labels; set data.label to the label column")
    if table.users is None or names is None:
        users = Users.of_tables([replace(table, users=None)], [name])
    else:
        held, numbers = torch.unique(table.users, return_inverse=True)
        users = Users.of_tables([replace(table, users=numbers)], names[held.numpy()])
    training = cohort_training(model.module, model.task.loss, users, config.train, apart=apart)
    return UsersFit(training, facts, config.train)
