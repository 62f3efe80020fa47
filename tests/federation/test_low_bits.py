"""Low bits of what DP-FedAvg and NbAFL release tell no attack anything; the verdict is that of privacy/low_bits.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from homo_dp.federation.mechanism import Update
from homo_dp.federation.mechanisms.nbafl import Nbafl
from homo_dp.privacy.clipping import clip_vector
from homo_dp.privacy.noise import NoiseSource, OrdinaryNoise, SecureNoise
from tests.federation.nbafl_parts import make
from tests.federation.user_parts import ADAPTIVE, EVERYONE, PARTIES, SERVER, sent_by, user_config, user_mechanism
from tests.privacy.low_bits import MULTIPLIER, check_low_bits, record

SIZES = [300, 1000, 10_000]
SOURCES = {"secure": SecureNoise(), "ordinary": OrdinaryNoise()}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("noise_at", ["server", "parties"])
def test_dp_fedavg(noise_at: str, source: str, size: int) -> None:
    """The update of one party with its share of the noise, and the sum with the aggregator's; clip norm 1."""
    keys = {"privacy.clip_norm": 1.0, "privacy.noise_multiplier": MULTIPLIER, "privacy.population": 2}
    config = user_config(SERVER if noise_at == "server" else PARTIES, EVERYONE, {**keys, "privacy.delta": 1e-3})
    mechanism = user_mechanism(config, noise=SOURCES[source], parameters=size)
    sigma = mechanism.numbers.share_sigma(1.0) if noise_at == "parties" else mechanism.numbers.sum_sigma(1.0)

    def released(row: Tensor) -> Callable[[], Tensor]:
        def once() -> Tensor:
            sent = sent_by(mechanism, row.unsqueeze(0))
            if noise_at == "parties":
                return sent[0].tensors["weight"]
            total = mechanism.open_sum({"weight": torch.zeros(size)})
            total.add(mechanism.received(sent[0], mechanism.layout({"weight": row}), 1.0))
            return mechanism.noisy_sum(total).float()

        return once

    check_low_bits(released(torch.zeros(size)), released(record(size)), sigma)


@pytest.mark.parametrize("noise_at", ["server", "parties"])
def test_clip_bits_lie_on_the_grid_of_their_noise(noise_at: str) -> None:
    config = user_config(SERVER if noise_at == "server" else PARTIES, ADAPTIVE)
    mechanism = user_mechanism(config, noise=SecureNoise())
    updates = sent_by(mechanism, torch.zeros(50, 3))
    if noise_at == "parties":
        bits = [update.info["clip_bit"] for update in updates]
        assert all(bit * 1024 == round(bit * 1024) for bit in bits)
        assert len(set(bits)) > 10
    else:
        share = mechanism.on_receive(updates, {"weight": torch.zeros(3)}, 1).metrics["unclipped_share"]
        noisy = (share - 0.5) * 50 * 1024
        assert noisy == pytest.approx(round(noisy), abs=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", SOURCES)
def test_nbafl_uploads_and_downloads(source: str, size: int) -> None:
    """Both go through the same function; clip norm 1 and noise of 128."""
    mechanism: Nbafl = make()
    noise: NoiseSource = SOURCES[source]
    mechanism.noise = noise

    def released(row: Tensor) -> Callable[[], Tensor]:
        clipped, _ = clip_vector(Update("a", {"weight": row}, 1.0, {}).tensors, 1.0)
        return lambda: mechanism._noised(clipped, MULTIPLIER)["weight"].float()

    check_low_bits(released(torch.zeros(size)), released(record(size)), MULTIPLIER)
