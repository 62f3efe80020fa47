"""Local training by a client of another framework: a Flower ``NumPyClient`` or a function ``fit(weights, config)``.

Whatever it does, what leaves is its difference to the global weights, clipped and noised by the mechanism like that of
a party of ours. What it returns beside weights (a count, metrics) is dropped: it would leave without noise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from homo_dp.config.schema import Config, TrainConfig
from homo_dp.core.errors import ConfigError
from homo_dp.data.in_memory import keep_in_memory
from homo_dp.federation.mechanisms.base import PartyFacts, Update, Weights
from homo_dp.federation.mechanisms.cohort_mechanism import CohortMechanism, CohortSum
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.users.cohorts import CohortTraining
from homo_dp.models.factory import load_function

log = logging.getLogger(__name__)

Arrays = list[np.ndarray]
ClientFunction = Callable[[Arrays, dict[str, Any]], Any]


def arrays_of(weights: Weights) -> Arrays:
    """Weights as the arrays of an ``ArrayModel``, in its order."""
    return [weights[name].detach().cpu().numpy().copy() for name in sorted(weights)]


def client_function(client: object) -> ClientFunction:
    """The function that trains: ``client.fit`` of an object, or the function itself."""
    fit = getattr(client, "fit", client)
    if not callable(fit):
        raise ConfigError(
            f"client {client!r}: has no fit(weights, config); give a NumPyClient or a function"
        )
    found: ClientFunction = fit
    return found


def load_client(path: str, party: str) -> ClientFunction:
    """The client that ``package.module:make`` gives when it is called with the party's name."""
    make = load_function(path)
    try:
        return client_function(make(party))
    except ConfigError:
        raise
    except Exception as error:  # the party's own code
        raise ConfigError(
            f"party.client={path}: failed with {type(error).__name__}: {error}; correct it"
        ) from error


def with_client_rows(config: Config, party: str) -> Config:
    """The config of a party whose rows are its client's own affair: one empty row stands for them here."""
    if config.party.client is None or config.data.files:
        return config
    import pandas as pd

    columns = {name: [0.0] for name in config.data.columns}
    names = keep_in_memory(
        {party: pd.DataFrame({config.data.id: [0], **columns, config.data.label: [0]})}
    )
    return config.model_copy(
        update={"data": config.data.model_copy(update={"files": names, "test_fraction": 0.0})}
    )


class ClientFit(LocalFit):
    """One round of a client's own training.

    Guarantees:
        - a client that fails, or whose weights have another shape or are not finite, counts as one that changed
          nothing: its update is zero, and it is clipped, noised and charged all the same.
    """

    def __init__(
        self, model: nn.Module, facts: PartyFacts, client: ClientFunction, train: TrainConfig
    ) -> None:
        empty = torch.zeros(0, 1)
        super().__init__(
            model, lambda outputs, labels: outputs, empty, empty, facts, train, torch.Generator()
        )
        self.client = client
        self.run_steps = self._client_steps

    def _client_steps(self, steps: int, after_step: Callable[[], None]) -> None:
        asked: dict[str, Any] = {"round": self.round_number, "server_round": self.round_number}
        asked |= {"local_epochs": self.train.local_epochs, "batch_size": self.train.batch_size}
        asked |= {"learning_rate": self.train.learning_rate, "proximal_mu": self.proximal_mu}
        try:
            found = self._checked(self.client(arrays_of(self.start), asked))
        except Exception as error:  # the client is foreign code: the text of its error may quote rows, so only its type is logged
            log.warning(
                "client %s: %s; its update counts as zero", self.facts.name, type(error).__name__
            )
            found = None
        if found is not None:
            self.load(found)
        after_step()

    def _checked(self, returned: Any) -> Weights:
        arrays = returned[0] if isinstance(returned, tuple) else returned
        names = sorted(self.start)
        if len(arrays) != len(names):
            raise ValueError("number of arrays")
        weights = {
            name: torch.as_tensor(np.asarray(array))
            for name, array in zip(names, arrays, strict=True)
        }
        for name, tensor in weights.items():
            if tensor.shape != self.start[name].shape or not torch.isfinite(tensor).all():
                raise ValueError("shape or number")
        return {name: tensor.to(self.start[name].dtype) for name, tensor in weights.items()}


@dataclass(frozen=True)
class ClientsTraining(CohortTraining):
    """A cohort of clients, one after the other."""

    clients: Sequence[tuple[str, ClientFunction]] = ()

    def run(
        self, mechanism: CohortMechanism, chosen: Tensor, weights: Weights, round_number: int
    ) -> CohortSum:
        total, layout = mechanism.open_sum(weights), mechanism.layout(weights)
        broadcast = dict(mechanism.broadcast_info())
        for number in (at for at in chosen.tolist() if at < len(self.clients)):
            name, client = self.clients[number]
            fit = ClientFit(
                self.model, PartyFacts(name, 1, self.train.rounds, 1, 1.0), client, self.train
            )
            release = fit.fit(mechanism, weights, round_number, broadcast)
            sent = Update(fit.facts.name, release.tensors, 1.0, release.info)
            total.add(mechanism.received(sent, layout, total.clip_norm))
        return total
