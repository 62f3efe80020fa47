"""One run with many canaries: networks without noise are caught and sound ones are not."""

import pytest
import torch
from torch import Tensor

from homo_dp.evidence.audit import judge_one_run
from homo_dp.evidence.many_canaries import OneRun, many_canaries
from homo_dp.privacy.engine.drawn_ahead import NoiseVectors
from tests.evidence.parts import SURE, cohort_recipe

CANARIES = 100


NETWORKS = {
    "mlp": {"model.name": "mlp", "model.layers": [8]},
    "cnn": {"model.name": "cnn", "model.channels": [4], "model.layers": []},
    "deep cnn": {
        "model.name": "cnn",
        "model.channels": [4, 4],
        "model.layers": [8],
        "model.activation": "relu",
    },
}


ONE_STEP = {"train.rounds": 1, "train.local_steps": 1, "train.sample_rate": 1.0}


def run_of(network: str, epsilon: float) -> OneRun:
    keys = {
        "privacy.mechanism": "dp_sgd",
        **NETWORKS[network],
        **ONE_STEP,
        "privacy.target_epsilon": epsilon,
    }
    return many_canaries(cohort_recipe((64,) if network == "mlp" else (1, 8, 8), keys), CANARIES)


def zeros(vectors: NoiseVectors) -> Tensor:
    return torch.zeros(vectors._size, dtype=torch.float64)


def is_refuted(found: OneRun) -> bool:
    return judge_one_run(
        found.scores, found.present, found.claim, "many_canaries", "aggregator", SURE
    ).refuted


@pytest.mark.parametrize("network", NETWORKS)
def test_canaries_are_told_apart_by_their_gradients(network: str) -> None:
    """At epsilon 300 the two worlds are 18 standard deviations apart or more, behind
    convolutions too.
    """
    found = run_of(network, 300.0)
    assert not is_refuted(found)
    assert found.scores[found.present].min() > 0 > found.scores[~found.present].max()


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_without_noise_is_caught_and_a_sound_one_is_not(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_refuted(run_of(network, 0.2))
    monkeypatch.setattr(NoiseVectors, "next", zeros)
    assert is_refuted(run_of(network, 0.2))
