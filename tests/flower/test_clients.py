"""Flower's own clients under ``homo_dp.train_clients``."""

import numpy as np
import pytest
from flwr.client import NumPyClient

import homo_dp

pytestmark = pytest.mark.flower


class Up(NumPyClient):  # type: ignore[misc]
    def get_parameters(self, config: dict[str, object]) -> list[np.ndarray]:
        return [np.zeros((2, 2))]

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, object]
    ) -> tuple[list[np.ndarray], int, dict[str, float]]:
        return [array + 1 for array in parameters], 5, {}


def test_what_to_client_returns_trains_as_the_client_inside() -> None:
    clients = {f"c{number}": Up().to_client() for number in range(3)}
    result = homo_dp.train_clients(
        clients, rounds=1, clip_norm=10.0, noise_multiplier=1e-3, ledger=None
    )
    assert result.weights[0] == pytest.approx(np.ones((2, 2)), abs=0.3)
    assert not result.failures
