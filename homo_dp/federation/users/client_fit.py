"""Local training by a client of another framework: a Flower ``NumPyClient`` or a function
``fit(weights, config)``.

Whatever it does, what leaves is its difference to the global weights, clipped and noised by the
mechanism like that of a party of ours. What it returns beside weights (a count, metrics) is
dropped: it would leave without noise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from homo_dp.config.schema import Config, TrainConfig
from homo_dp.core.errors import ConfigError, error_text, printable
from homo_dp.data.in_memory import keep_in_memory
from homo_dp.federation.mechanisms.base import PartyFacts, Update, Weights
from homo_dp.federation.mechanisms.cohort_mechanism import CohortMechanism, CohortSum
from homo_dp.federation.mechanisms.local_fit import LocalFit, Training
from homo_dp.federation.users.cohorts import CohortTraining
from homo_dp.models.factory import load_function

log = logging.getLogger(__name__)

Arrays = list[np.ndarray]
ClientFunction = Callable[[Arrays, dict[str, Any]], Any]


def arrays_of(weights: Weights) -> Arrays:
    """Weights as the arrays of an ``ArrayModel``, in its order."""
    return [weights[name].detach().cpu().numpy().copy() for name in sorted(weights)]


def unwrapped(client: Any) -> Any:
    """The ``NumPyClient`` inside of what Flower's ``client.to_client()`` gives; others as they
    are.
    """
    return getattr(client, "numpy_client", client)


def client_function(client: object) -> ClientFunction:
    """The function that trains: ``client.fit`` of an object, or the function itself."""
    client = unwrapped(client)
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
    """The config of a party whose rows are its client's own affair: one empty row stands for
    them here.
    """
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


def log_type(client: str, error: Exception) -> None:
    """Log that a client failed. The client is foreign code and the text of its error may quote
    rows, so only its type is logged.
    """
    log.warning("client %s: %s; its update counts as zero", client, type(error).__name__)


class ClientFit(LocalFit):
    """One round of a client's own training.

    Args:
        model: holds the arrays that the client trains.
        facts: the party, or the client of a simulation.
        client: the function that trains.
        train: the settings that the client is told.
        on_failure: called with the client's name and the error where its update counts as zero.

    Guarantees:
        - a client that fails, or whose weights have another shape or are not finite, counts as one
          that changed nothing: its update is zero, and it is clipped, noised and charged all the
          same.
    """

    def __init__(
        self,
        model: nn.Module,
        facts: PartyFacts,
        client: ClientFunction,
        train: TrainConfig,
        on_failure: Callable[[str, Exception], None] = log_type,
    ) -> None:
        empty = torch.zeros(0, 1)
        super().__init__(
            model, lambda outputs, labels: outputs, empty, empty, facts, train, torch.Generator()
        )
        self.client, self._on_failure = client, on_failure

    def train_round(self, training: Training, after_step: Callable[[], None]) -> None:
        """The client's own training, whatever a party's would be."""
        asked: dict[str, Any] = {"round": self.round_number, "server_round": self.round_number}
        asked |= {"local_epochs": self.train.local_epochs, "batch_size": self.train.batch_size}
        asked |= {"learning_rate": self.train.learning_rate, "proximal_mu": self.proximal_mu}
        try:
            found = self._checked(self.client(arrays_of(self.start), asked))
        except Exception as error:
            self._on_failure(self.facts.name, error)
            found = None
        if found is not None:
            self.load(found)
        after_step()

    def _checked(self, returned: Any) -> Weights:
        arrays = returned[0] if isinstance(returned, tuple) else returned
        names = sorted(self.start)
        if not hasattr(arrays, "__len__"):
            raise TypeError(
                f"fit returned {type(arrays).__name__}; a list of {len(names)} arrays is needed, "
                "alone or as (arrays, count, metrics)"
            )
        if len(arrays) != len(names):
            raise ValueError(f"fit returned {len(arrays)} arrays; {len(names)} are needed")
        weights = {}
        for number, (name, array) in enumerate(zip(names, arrays, strict=True)):
            start, tensor = self.start[name], torch.as_tensor(np.asarray(array))
            if tensor.shape != start.shape:
                raise ValueError(
                    f"array {number} that fit returned has shape {tuple(tensor.shape)}; "
                    f"{tuple(start.shape)} is needed"
                )
            if not torch.isfinite(tensor).all():
                raise ValueError(f"array {number} that fit returned has values that are not finite")
            weights[name] = tensor.to(start.dtype)
        return weights


@dataclass(frozen=True)
class ClientsTraining(CohortTraining):
    """A cohort of clients, one after the other.

    Attributes:
        clients: their names and functions.
        failures: why and when each client that failed did so first.
        answered: the clients that have returned weights so far.
    """

    clients: Sequence[tuple[str, ClientFunction]] = ()
    failures: dict[str, str] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)

    def run(
        self, mechanism: CohortMechanism, chosen: Tensor, weights: Weights, round_number: int
    ) -> CohortSum:
        total, layout = mechanism.open_sum(weights), mechanism.layout(weights)
        broadcast = dict(mechanism.broadcast_info())
        failed: dict[str, Exception] = {}
        asked = [self.clients[at] for at in chosen.tolist() if at < len(self.clients)]
        for name, client in asked:
            facts = PartyFacts(name, 1, self.train.rounds, 1, 1.0)
            fit = ClientFit(self.model, facts, client, self.train, failed.__setitem__)
            release = fit.fit(mechanism, weights, round_number, broadcast)
            sent = Update(fit.facts.name, release.tensors, 1.0, release.info)
            total.add(mechanism.received(sent, layout, total.clip_norm))
        self.answered.update(name for name, _ in asked if name not in failed)
        self._note(failed, round_number)
        return total

    def _note(self, failed: dict[str, Exception], round_number: int) -> None:
        """Name the clients that failed for the first time.

        The caller of the simulation owns the clients, so it may see the text of their errors.

        Raises:
            ConfigError: no client has returned weights so far, so that rounds would cost epsilon
                and train nothing; this one is not charged.
        """
        if failed and not self.answered:
            name, error = next(iter(failed.items()))
            raise ConfigError(
                f"clients: all {len(failed)} clients that round {round_number} asked failed; "
                f"{name}: {_reason(error)}; correct its fit(weights, config)"
            ) from error
        for name, error in failed.items():
            if name not in self.failures:
                self.failures[name] = f"round {round_number}: {_reason(error)}"
                log.warning("client %s: %s; it counts as no change", name, self.failures[name])


def _reason(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error_text(error)}")
