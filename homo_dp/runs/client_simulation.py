"""A run in this process whose users are clients of another framework: the same sessions, noise
and ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.base import Weights
from homo_dp.federation.sessions.aggregator import RoundReport
from homo_dp.federation.sessions.crash_state import Row
from homo_dp.federation.users.client_fit import ClientsTraining, arrays_of, client_function
from homo_dp.federation.users.cohorts import CohortTraining
from homo_dp.models.arrays import ArrayModel
from homo_dp.models.registry import BuiltModel
from homo_dp.runs.user_simulation import UserSimulation


class ClientSimulation(UserSimulation):
    """Users that train themselves.

    Guarantees:
        - those of ``UserSimulation``; the rows of a client are nowhere in this object.
    """

    def __init__(
        self,
        config: Config,
        clients: Mapping[str, Any],
        start: Sequence[np.ndarray],
        told: Callable[[int, list[np.ndarray]], None] | None = None,
    ) -> None:
        self._clients = [(name, client_function(client)) for name, client in clients.items()]
        self._start, self._told = list(start), told
        self.failures: dict[str, str] = {}  # of each client that failed, when first and why
        super().__init__(config, lambda row, parties: None)

    def arrays(self, weights: Weights) -> list[np.ndarray]:
        """Weights as the clients know them: order and types of the first ones."""
        return [
            array.astype(first.dtype)
            for array, first in zip(arrays_of(weights), self._start, strict=True)
        ]

    def _build(self) -> BuiltModel:
        built = super()._build()  # of the stand-in table: task and description
        return BuiltModel(ArrayModel(self._start), built.task, built.architecture)

    def _training(self) -> CohortTraining:
        return ClientsTraining(
            self._build().module,
            self.model.task.loss,
            self.users,
            self.config.train,
            clients=self._clients,
            failures=self.failures,
        )

    def _report(self, report: RoundReport, kept: Row) -> Row:
        found = super()._report(report, kept)
        if self._told is not None:
            self._told(report.round, self.arrays(report.weights))
        return found
