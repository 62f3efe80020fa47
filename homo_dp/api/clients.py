"""``homo_dp.train_clients``: clients of any framework (Flower's ``NumPyClient``, or functions) under DP-FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from types import EllipsisType
from typing import Any

import numpy as np

from homo_dp.api.training import configured
from homo_dp.core.errors import ConfigError
from homo_dp.runs.client_simulation import ClientSimulation


@dataclass(frozen=True)
class ClientsResult:
    """The trained weights, in the order in which the clients take them, and what training has cost."""

    weights: list[np.ndarray]
    privacy: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]

    @property
    def epsilon(self) -> float | None:
        """What the whole run tells about one client; None where it is not private."""
        found = self.privacy.get("epsilon")
        return None if found is None else float(found)


def train_clients(
    clients: Mapping[str, Any],
    weights: Sequence[np.ndarray] | None = None,
    *,
    rounds: int,
    clip_norm: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    cohort_size: int | None = None,
    name: str = "clients",
    ledger: str | PathLike[str] | EllipsisType | None = ...,
    settings: Mapping[str, Any] | None = None,
    on_round: Callable[[int, list[np.ndarray]], None] | None = None,
) -> ClientsResult:
    """Train the model of some clients by DP-FedAvg: each client's whole update is clipped, noised and charged.

    Args:
        clients: ``{name: client}``; a client has ``fit(weights, config)`` (Flower's ``NumPyClient``), or is such a
            function. It returns weights, or ``(weights, count, metrics)``, of which only the weights are used.
        weights: where to start; else what ``get_parameters({})`` of the first client gives.
        rounds: rounds of the federation.
        clip_norm: L2 norm to which a client's update is cut, over all arrays together.
        epsilon: what the run may tell about one client; or ``noise_multiplier``.
        cohort_size: clients of a round, drawn at random (their mean number); everybody without it.
        name: of the data, under which the ledger adds up runs (``data.name``).
        ledger: the file that keeps what was spent; ``None`` written out means that it is not kept.
        settings: more of docs/config.md, such as ``{"train.learning_rate": 0.1}``.
        on_round: called with the number and the weights of each round, which are noised and charged.

    Guarantees:
        - a client moves the sum of a round by at most ``clip_norm``, whatever it returns; one that fails moves nothing;
        - its count of rows and its metrics go nowhere;
        - the aggregator of this process adds the noise and sees updates without it (``noise_at: server``).

    >>> import numpy as np
    >>> def fit(weights, config):
    ...     return [weights[0] + 1.0]
    >>> result = train_clients({f"c{n}": fit for n in range(50)}, [np.zeros(3, dtype=np.float32)], rounds=2,
    ...                        clip_norm=0.5, noise_multiplier=2.0, ledger=None)
    >>> result.weights[0].shape, result.epsilon > 0
    ((3,), True)
    """
    if not clients:
        raise ConfigError("clients: is empty; give {name: client} with at least one")
    start = _start(clients, weights)
    tree = _settings(clip_norm, noise_multiplier, len(clients), cohort_size) | {
        "train.rounds": rounds,
        "data.name": name,
    }
    import pandas as pd

    # Stand-ins: the rows are the clients' own.
    tables = {party: pd.DataFrame({"id": [0], "none": [0.0], "y": [0]}) for party in clients}
    with ExitStack() as stack:
        config = stack.enter_context(
            configured(tables, epsilon=epsilon, settings=tree | dict(settings or {}), ledger=ledger)
        )
        simulation = ClientSimulation(config, clients, start, on_round)
        outcome = simulation.run()
        if simulation.ledger is not None:
            simulation.ledger.close()
    told = [
        {key: value for key, value in row.items() if value is not None} for row in outcome.rounds
    ]
    return ClientsResult(simulation.arrays(outcome.weights), outcome.statement, told)


def _settings(
    clip_norm: float, noise_multiplier: float | None, clients: int, cohort_size: int | None
) -> dict[str, Any]:
    """DP-FedAvg with the noise at the server, over a stand-in table with one column."""
    drawn = (
        {"sampling": "everyone"}
        if cohort_size is None
        else {"sampling": "poisson", "cohort_size": cohort_size}
    )
    privacy: dict[str, Any] = {
        "unit": "user",
        "mechanism": "dp_fedavg",
        "clip_norm": clip_norm,
        "population": clients,
        "noise_at": "server",
        "trust_aggregator": True,
        "delta": min(1e-5, 0.1 / clients),
        **drawn,
    }
    if noise_multiplier is not None:
        privacy["noise_multiplier"] = noise_multiplier
    tree: dict[str, Any] = {f"privacy.{key}": value for key, value in privacy.items()}
    tree |= {"data.test_fraction": 0.0, "data.classes": [0, 1], "data.bounds_source": "public"}
    return tree | {"data.columns": {"none": {"bounds": [0, 1]}}}


def _start(clients: Mapping[str, Any], weights: Sequence[np.ndarray] | None) -> list[np.ndarray]:
    if weights is None:
        first = next(iter(clients.values()))
        if not hasattr(first, "get_parameters"):
            raise ConfigError(
                "weights: is not given, and the first client has no get_parameters; give the first weights"
            )
        weights = first.get_parameters({})
    found = [np.asarray(array) for array in weights or ()]
    if not found:
        raise ConfigError("weights: is empty; give at least one array")
    return found
