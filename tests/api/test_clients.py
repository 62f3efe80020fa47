"""Clients of other frameworks under DP-FedAvg: whatever one returns, it moves a round by at most
the clip norm.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import homo_dp
from homo_dp.core.errors import ConfigError
from homo_dp.privacy.ledger import Ledger

START: list[np.ndarray] = [np.zeros((2, 2), dtype=np.float32), np.zeros(2, dtype=np.float64)]
ROWS = 1_234_567_890_123_456_789  # so long that no figure holds it by chance
LOUD = 1e-3  # a noise multiplier at which the clip can be seen


def still(weights: list[np.ndarray], config: dict[str, Any]) -> list[np.ndarray]:
    return weights


def up(weights: list[np.ndarray], config: dict[str, Any]) -> list[np.ndarray]:
    return [array + 1.0 for array in weights]


class NumPyClient:
    """As Flower's: parameters in and out, with a count and metrics."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def get_parameters(self, config: dict[str, Any]) -> list[np.ndarray]:
        return [array.copy() for array in START]

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, Any]
    ) -> tuple[list[np.ndarray], int, dict[str, float]]:
        self.asked.append(config)
        return up(parameters, config), ROWS, {"loss": 0.5}


def others(count: int = 20, client: Any = still) -> dict[str, Any]:
    return {f"c{number}": client for number in range(count)}


def moved(result: Any) -> float:
    return float(np.sqrt(sum((array**2).sum() for array in result.weights)))


@pytest.mark.parametrize("factor", [1.0, 1e6, -1e30])
def test_one_client_moves_the_mean_by_at_most_the_clip_norm_over_all(factor: float) -> None:
    def loud(weights: list[np.ndarray], config: dict[str, Any]) -> list[np.ndarray]:
        return [array + factor for array in weights]

    result = homo_dp.train_clients(
        {"a": loud, **others(19)},
        START,
        rounds=1,
        clip_norm=0.5,
        noise_multiplier=LOUD,
        ledger=None,
    )
    assert moved(result) == pytest.approx(0.5 / 20, abs=5 * LOUD * 0.5 / 20 * math.sqrt(6))


def test_a_flower_client_and_a_function_train_together_and_its_count_is_not_used() -> None:
    client = NumPyClient()
    result = homo_dp.train_clients(
        {"a": client, "b": up},
        rounds=3,
        clip_norm=10.0,
        noise_multiplier=LOUD,
        ledger=None,
        settings={"privacy.delta": 1e-6},
    )
    assert result.weights[0] == pytest.approx(np.full((2, 2), 3.0), abs=0.3)
    assert [array.dtype for array in result.weights] == [np.float32, np.float64]
    assert [asked["round"] for asked in client.asked] == [1, 2, 3]
    assert str(ROWS) not in str(result.privacy)
    assert "loss" not in str(result.rounds)


def fails(weights: list[np.ndarray], config: dict[str, Any]) -> list[np.ndarray]:
    raise RuntimeError("disk of the ward is full")


BROKEN = [
    pytest.param(fails, "RuntimeError: disk of the ward is full", id="raises"),
    pytest.param(
        lambda weights, config: [array * math.nan for array in weights],
        "array 0 that fit returned has values that are not finite",
        id="not finite",
    ),
    pytest.param(
        lambda weights, config: [array.reshape(-1) for array in weights],
        r"array 0 that fit returned has shape \(4,\); \(2, 2\) is needed",
        id="wrong shape",
    ),
    pytest.param(
        lambda weights, config: weights[:1],
        "fit returned 1 arrays; 2 are needed",
        id="too few arrays",
    ),
    pytest.param(
        lambda weights, config: None, "fit returned NoneType; a list of 2 arrays", id="nothing"
    ),
]


@pytest.mark.parametrize(("client", "reason"), BROKEN)
def test_a_client_that_fails_is_named_with_its_reason_counts_as_no_change_and_is_charged(
    client: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = homo_dp.train_clients(
        {**others(9), "ward": client},
        START,
        rounds=2,
        clip_norm=1.0,
        noise_multiplier=LOUD,
        ledger=tmp_path / "l.sqlite",
    )
    assert moved(result) < 0.01
    assert list(result.failures) == ["ward"]
    assert re.search(f"round 1: .*{reason}", result.failures["ward"])
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([text for text in warnings if text.startswith("client ward: round 1:")]) == 1
    with Ledger(tmp_path / "l.sqlite", read_only=True) as ledger:
        assert ledger.verify().count == 2


@pytest.mark.parametrize(("client", "reason"), BROKEN)
def test_where_no_client_answers_in_round_1_the_run_ends_with_the_reason_uncharged(
    client: Any, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"all 10 clients that round 1 asked failed; .*{reason}"):
        homo_dp.train_clients(
            others(10, client),
            START,
            rounds=2,
            clip_norm=1.0,
            noise_multiplier=LOUD,
            ledger=tmp_path / "l.sqlite",
        )
    with Ledger(tmp_path / "l.sqlite", read_only=True) as ledger:
        assert ledger.verify().count == 0


def test_clients_that_all_fail_later_end_no_run() -> None:
    def once(weights: list[np.ndarray], config: dict[str, Any]) -> list[np.ndarray]:
        return up(weights, config) if config["round"] == 1 else fails(weights, config)

    result = homo_dp.train_clients(
        others(4, once), START, rounds=3, clip_norm=1.0, noise_multiplier=LOUD, ledger=None
    )
    assert set(result.failures) == {"c0", "c1", "c2", "c3"}
    assert all(text.startswith("round 2: RuntimeError") for text in result.failures.values())


class ToClient:
    """As what ``NumPyClient.to_client()`` of Flower returns: ``fit`` takes one message."""

    def __init__(self, numpy_client: NumPyClient) -> None:
        self.numpy_client = numpy_client

    def get_parameters(self, message: Any) -> Any:
        raise AssertionError("takes Flower's message")

    def fit(self, message: Any) -> Any:
        raise AssertionError("takes Flower's message")


def test_what_flowers_to_client_returns_trains_as_the_client_inside() -> None:
    clients = {f"c{number}": ToClient(NumPyClient()) for number in range(3)}
    result = homo_dp.train_clients(
        clients, rounds=1, clip_norm=10.0, noise_multiplier=LOUD, ledger=None
    )
    assert result.weights[0] == pytest.approx(np.ones((2, 2)), abs=0.3)
    assert not result.failures


def test_get_parameters_may_take_no_config() -> None:
    class Older(NumPyClient):
        def get_parameters(self) -> list[np.ndarray]:  # type: ignore[override]
            return [array.copy() for array in START]

    result = homo_dp.train_clients(
        {"a": Older(), "b": up}, rounds=1, clip_norm=10.0, noise_multiplier=LOUD, ledger=None
    )
    assert result.weights[0].shape == (2, 2)


def test_first_weights_that_cannot_be_had_are_an_error_with_the_reason() -> None:
    class Unfinished(NumPyClient):
        def get_parameters(self, config: dict[str, Any]) -> list[np.ndarray]:
            raise KeyError("layer1")

    with pytest.raises(
        ConfigError, match="client a: get_parameters failed with KeyError: 'layer1'"
    ):
        homo_dp.train_clients(
            {"a": Unfinished()}, rounds=1, clip_norm=1.0, noise_multiplier=1.0, ledger=None
        )


def test_noise_is_added_and_accounted() -> None:
    quiet = homo_dp.train_clients(
        others(50), START, rounds=4, clip_norm=1.0, epsilon=2.0, cohort_size=25, ledger=None
    )
    assert quiet.epsilon is not None
    assert 1.9 < quiet.epsilon <= 2.0
    assert moved(quiet) > 0.01  # nobody moved: all of it is noise
    assert quiet.privacy["unit"] == "user"


def test_a_second_run_adds_up_on_the_ledger(tmp_path: Path) -> None:
    for _ in range(2):
        homo_dp.train_clients(
            others(30),
            START,
            rounds=2,
            clip_norm=1.0,
            noise_multiplier=3.0,
            ledger=tmp_path / "l.sqlite",
            name="phones",
        )
    with Ledger(tmp_path / "l.sqlite", read_only=True) as ledger:
        assert len(ledger.runs()) == 2


@pytest.mark.parametrize(
    ("clients", "weights", "words"),
    [
        ({}, START, "clients: is empty"),
        ({"a": up}, None, "has no get_parameters"),
        ({"a": 3}, START, "has no fit"),
        ({"a": up}, [np.zeros(2, dtype=np.int64)], "not floats"),
    ],
)
def test_what_cannot_be_trained_is_refused(clients: Any, weights: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        homo_dp.train_clients(
            clients, weights, rounds=1, clip_norm=1.0, noise_multiplier=1.0, ledger=None
        )
