"""``homo_dp.train_clients``: clients of any framework (Flower's ``NumPyClient``, or functions)
under DP-FedAvg.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from types import EllipsisType
from typing import Any

import numpy as np

from homo_dp.api.training import configured
from homo_dp.core.errors import ConfigError, error_text, printable
from homo_dp.federation.users.client_fit import unwrapped
from homo_dp.runs.client_simulation import ClientSimulation


@dataclass(frozen=True)
class ClientsResult:
    """The trained weights, in the order in which the clients take them, and what training has
    cost.
    """

    weights: list[np.ndarray]
    privacy: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    failures: Mapping[str, str] = field(default_factory=dict)
    """Each client that failed, with the first round in which it did and the reason."""

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
    """Train the model of some clients by DP-FedAvg: each client's whole update is clipped, noised
    and charged.

    Args:
        clients: ``{name: client}``; a client has ``fit(weights, config)`` (Flower's
            ``NumPyClient``, also after ``to_client()``), or is such a function. It returns weights,
            or ``(weights, count, metrics)``, of which only the weights are used.
        weights: where to start; else what ``get_parameters`` of the first client gives.
        rounds: rounds of the federation.
        clip_norm: L2 norm to which a client's update is cut, over all arrays together.
        epsilon: what the run may tell about one client; or ``noise_multiplier``.
        cohort_size: clients of a round, drawn at random (their mean number); everybody without it.
        name: of the data, under which the ledger adds up runs (``data.name``).
        ledger: the file that keeps what was spent; ``None`` written out means that it is not kept.
        settings: more of docs/config.md, such as ``{"train.learning_rate": 0.1}``.
        on_round: called with the number and the weights of each round, which are noised and
            charged.

    Returns:
        The weights, what training cost, and which clients failed.

    Raises:
        ConfigError: an argument is wrong, or no client returned weights when the first was asked;
            the text says why the first of them failed, and that round is not charged.

    Guarantees:
        - a client moves the sum of a round by at most ``clip_norm``, whatever it returns; one that
          fails moves nothing, and is named with its reason in a warning and in ``failures``;
        - its count of rows and its metrics go nowhere;
        - the aggregator of this process adds the noise and sees updates without it (``noise_at:
          server``).

    >>> import numpy as np
    >>> def fit(weights, config):
    ...     return [weights[0] + 1.0]
    >>> result = train_clients({f"c{n}": fit for n in range(50)}, [np.zeros(3, dtype=np.float32)], rounds=2,
    ...                        clip_norm=0.5, noise_multiplier=2.0, ledger=None)
    >>> result.weights[0].shape, result.epsilon > 0
    ((3,), True)
    """
    _check_arguments(clients, weights, epsilon, noise_multiplier)
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
        try:
            outcome = simulation.run()
        finally:
            if simulation.ledger is not None:
                simulation.ledger.close()
    told = [
        {key: value for key, value in row.items() if value is not None} for row in outcome.rounds
    ]
    arrays = simulation.arrays(outcome.weights)
    return ClientsResult(arrays, outcome.statement, told, simulation.failures)


def _check_arguments(
    clients: Any, weights: Any, epsilon: float | None, noise_multiplier: float | None
) -> None:
    if not isinstance(clients, Mapping):
        raise ConfigError(f"clients: is a {type(clients).__name__}; give {{name: client}}")
    if not clients:
        raise ConfigError("clients: is empty; give {name: client} with at least one")
    if isinstance(weights, Mapping):
        raise ConfigError(
            f"weights: is a {type(weights).__name__}; give a list of arrays, such as "
            "[value.numpy() for value in model.state_dict().values()]"
        )
    if epsilon is not None and noise_multiplier is not None:
        raise ConfigError(
            f"epsilon={epsilon}, noise_multiplier={noise_multiplier}: one follows from the other; "
            "leave one of them out"
        )


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
        **drawn,
    }
    if noise_multiplier is not None:
        privacy["noise_multiplier"] = noise_multiplier
    tree: dict[str, Any] = {f"privacy.{key}": value for key, value in privacy.items()}
    tree |= {"data.test_fraction": 0.0, "data.classes": [0, 1], "data.bounds_source": "public"}
    return tree | {"data.columns": {"none": {"bounds": [0, 1]}}}


def _start(clients: Mapping[str, Any], weights: Sequence[np.ndarray] | None) -> list[np.ndarray]:
    if weights is None:
        name, first = next(iter(clients.items()))
        weights = _weights_of(name, unwrapped(first))
    found = [np.asarray(array) for array in weights or ()]
    if not found:
        raise ConfigError("weights: is empty; give at least one array")
    return found


def _weights_of(name: str, client: Any) -> Sequence[np.ndarray]:
    """What ``get_parameters`` gives, which takes a config in newer versions of Flower only."""
    get_parameters = getattr(client, "get_parameters", None)
    if get_parameters is None:
        raise ConfigError(
            "weights: is not given, and the first client has no get_parameters; give the first "
            "weights"
        )
    takes_config = bool(inspect.signature(get_parameters).parameters)
    try:
        found: Sequence[np.ndarray] = get_parameters({}) if takes_config else get_parameters()
    except Exception as error:  # the client's own code
        raise ConfigError(
            f"client {name}: get_parameters failed with {type(error).__name__}: "
            f"{printable(error_text(error))}; correct it, or give weights"
        ) from error
    return found
