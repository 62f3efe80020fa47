"""Low bits of what each mechanism releases tell no attack anything, by real fits;
tests/privacy/low_bits.py judges.

Every test tries three attacks with 60 guesses each; a false alarm of one attack has probability
1e-7 at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from homo_dp.config.load import load_config
from homo_dp.data.rows import Table
from homo_dp.federation.mechanisms.base import Mechanism, Release, Update, Weights
from homo_dp.federation.mechanisms.nbafl import Nbafl
from homo_dp.federation.protocol.round_sums import SUM
from homo_dp.federation.sessions.build import (
    build_fit,
    build_mechanism,
    federation_facts,
    noise_source,
)
from homo_dp.models.registry import build_model
from homo_dp.privacy.noise.source import NoiseSource, OrdinaryNoise, SecureNoise
from tests.federation.user_parts import (
    ADAPTIVE,
    EVERYONE,
    PARTIES,
    SERVER,
    sent_by,
    user_config,
    user_mechanism,
)
from tests.privacy.broken_noise import four_fold_float32
from tests.privacy.low_bits import MULTIPLIER, check_low_bits, record

SIZES = [300, 1000, 10_000]
SOURCES: dict[str, NoiseSource] = {"secure": SecureNoise(), "ordinary": OrdinaryNoise()}
ROWS = 2
ONE_STEP: dict[str, Any] = {
    "train.rounds": 1,
    "train.sample_rate": 1.0,
    # times the mean gradient: a step subtracts the noisy sum itself
    "train.learning_rate": float(ROWS),
    "privacy.noise_multiplier": MULTIPLIER,
    "privacy.max_grad_norm": 1.0,
}


def made(size: int, source: str, parties: int, keys: dict[str, Any]) -> Mechanism:
    """A mechanism of a config, for models of this many weights; `privacy.secure_mode` picks the
    noise.
    """
    config = load_config(None, keys | {"privacy.secure_mode": source == "secure"})
    rows = dict.fromkeys("abcd"[:parties], ROWS)
    mechanism = build_mechanism(config, federation_facts(config, rows, size), noise_source(config))
    assert mechanism.noise.secure is (source == "secure")
    return mechanism


def fits(mechanism: Mechanism, size: int, present: bool, party: str = "a") -> Callable[[], Release]:
    """Rounds of a party from zero weights, over and over; `present` says whether its second row
    is there.
    """
    features = torch.stack([torch.zeros(size - 1), record(size - 1, 4.0)])[: 2 if present else 1]
    model = build_model(mechanism.config.model, (size - 1,), (0, 1))
    table = Table(features, torch.tensor([0, 1])[: len(features)])
    fit = build_fit(mechanism.config, model, table, mechanism.facts.parties[party])
    start = {name: torch.zeros_like(tensor) for name, tensor in model.module.state_dict().items()}
    return lambda: fit.fit(mechanism, start, 1, {})


def flat(tensors: Weights) -> Tensor:
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", SOURCES)
def test_dp_sgd(source: str, size: int) -> None:
    """A round of one step from zero weights: what is sent is the noisy sum. The modes are in
    noise/test_grid.py.
    """

    def sent(present: bool) -> Callable[[], Tensor]:
        mechanism = made(
            size, source, 1, ONE_STEP | {"privacy.mechanism": "dp_sgd", "train.local_steps": 1}
        )
        once = fits(mechanism, size, present)
        return lambda: flat(once().tensors)

    check_low_bits(sent(False), sent(True), MULTIPLIER)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("mode", "size"),
    [
        ("fast", 300),
        ("fast", 1000),
        ("fast", 10_000),
        ("hooks", 300),
        ("functorch", 300),
        ("ghost", 300),
    ],
)
def test_dp_fedsgd(mode: str, size: int, source: str) -> None:
    keys = {"privacy.mechanism": "dp_fedsgd", "privacy.grad_sample_mode": mode}

    def sent(present: bool) -> Callable[[], Tensor]:
        once = fits(made(size, source, 1, ONE_STEP | keys), size, present)
        return lambda: flat(once().tensors)

    check_low_bits(sent(False), sent(True), MULTIPLIER)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("seen", "size"), [("total", 300), ("total", 1000), ("total", 10_000), ("share", 300)]
)
def test_dp_fedsgd_under_masks(seen: str, size: int, source: str) -> None:
    """The total that an aggregator unmasks, and a party's own share, as if all of its peers had
    opened the masks.
    """
    keys = {"privacy.mechanism": "dp_fedsgd", "privacy.secure_aggregation": True}

    def shown(present: bool) -> Callable[[], Tensor]:
        mechanisms = {name: made(size, source, 3, ONE_STEP | keys) for name in "abc"}
        asked = mechanisms["a"].masked_sum
        assert asked is not None
        parties = [
            fits(found, size, present and name == "a", name) for name, found in mechanisms.items()
        ]

        def total() -> Tensor:
            words = [
                asked.to_words(once().tensors[SUM])
                for once in (parties if seen == "total" else parties[:1])
            ]
            return asked.from_words(np.add.reduce(words)).float()

        return total

    check_low_bits(shown(False), shown(True), MULTIPLIER)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("noise_at", ["server", "parties"])
def test_dp_fedavg(noise_at: str, source: str, size: int) -> None:
    """The update of one party with its share of the noise, and the sum with the aggregator's;
    clip norm 1.
    """
    keys = {
        "privacy.clip_norm": 1.0,
        "privacy.noise_multiplier": MULTIPLIER,
        "privacy.population": 2,
    }
    config = user_config(
        SERVER if noise_at == "server" else PARTIES, EVERYONE, {**keys, "privacy.delta": 1e-3}
    )
    mechanism = user_mechanism(config, noise=SOURCES[source], parameters=size)
    sigma = (
        mechanism.numbers.share_sigma(1.0)
        if noise_at == "parties"
        else mechanism.numbers.sum_sigma(1.0)
    )

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
        share = mechanism.on_receive(updates, {"weight": torch.zeros(3)}, 1).metrics[
            "unclipped_share"
        ]
        noisy = (share - 0.5) * 50 * 1024
        assert noisy == pytest.approx(round(noisy), abs=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", SOURCES)
def test_clip_bits_of_parties(source: str, size: int) -> None:
    """The bits of one user in so many rounds, all within the clip norm or all beyond it."""
    # all bits together move by sqrt(size) / 2
    noise = {"privacy.adaptive.bit_noise": MULTIPLIER * size**0.5 / 2}
    mechanism = user_mechanism(
        user_config(PARTIES, EVERYONE, ADAPTIVE, noise), noise=SOURCES[source]
    )
    sigma = mechanism.numbers.share_of_bit_noise

    def sent(norm: float) -> Callable[[], Tensor]:
        rows = torch.full((size, 1), norm)
        within = torch.ones(size, dtype=torch.bool)
        return lambda: mechanism.contributions(rows, mechanism.clip_norm, within).bits.float()

    check_low_bits(sent(0.0), sent(2 * mechanism.clip_norm), sigma)


@pytest.mark.parametrize("source", SOURCES)
def test_clip_bits_of_the_aggregator(source: str) -> None:
    """The published share of unclipped updates in 30 rounds, with and without a user who is
    always clipped.
    """
    rounds = 30
    noise = {"privacy.adaptive.bit_noise": MULTIPLIER * rounds**0.5 / 2}
    mechanism = user_mechanism(
        user_config(SERVER, EVERYONE, ADAPTIVE, noise), noise=SOURCES[source]
    )
    size = mechanism.numbers.cohort_size

    def shares(*bits: float) -> Callable[[], Tensor]:
        updates = [
            Update(f"u{n}", {"weight": torch.zeros(1)}, 1.0, {"clip_bit": bit})
            for n, bit in enumerate(bits)
        ]

        def once() -> float:
            mechanism.clip_norm = 1.0
            share = mechanism.on_receive(updates, {"weight": torch.zeros(1)}, 1).metrics[
                "unclipped_share"
            ]
            return (share - 0.5) * size

        return lambda: torch.tensor([once() for _ in range(rounds)])

    check_low_bits(shares(0.5), shares(0.5, -0.5), mechanism.numbers.bit_noise or 0.0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("direction", ["up", "down"])
def test_nbafl(direction: str, source: str, size: int) -> None:
    """Uploads of a party, and the mean that an aggregator publishes whose parties leave the
    noise to it.
    """
    keys = {
        "privacy.mechanism": "nbafl",
        "nbafl.epsilon": 0.01,
        "nbafl.clip_norm": 1.0,
        "train.rounds": 8,
        "nbafl.exposures": 2,
        "train.local_steps": 1,
        "train.sample_rate": 1.0,
        "train.learning_rate": 2.0,
    }
    if direction == "down":
        keys |= {"nbafl.noise_at_upload": False, "privacy.trust_aggregator": True}
    mechanism = made(size, source, 4, keys)
    assert isinstance(mechanism, Nbafl)
    sigma = mechanism.upload_sigma if direction == "up" else mechanism.download_sigma
    assert sigma > MULTIPLIER

    def released(present: bool) -> Callable[[], Tensor]:
        once = fits(mechanism, size, present)
        if direction == "up":
            return lambda: flat(once().tensors)
        start = {name: torch.zeros_like(tensor) for name, tensor in once().tensors.items()}
        cohort = mechanism.cohort("abcd", 1)

        def mean() -> Tensor:
            updates = [
                Update(name, once().tensors if name == cohort[0] else start, 1.0) for name in cohort
            ]
            return flat(mechanism.on_receive(updates, start, 1).weights)

        return mean

    check_low_bits(released(False), released(True), sigma)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_float32_noise_in_a_mechanism_is_caught(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homo_dp.federation.mechanisms.nbafl.noised_share", four_fold_float32)
    with pytest.raises(AssertionError, match="guesses are right"):
        test_nbafl(direction, "secure", 300)
    monkeypatch.setattr("homo_dp.federation.mechanisms.dp_fedavg.noised_share", four_fold_float32)
    monkeypatch.setattr("homo_dp.federation.mechanisms.dp_fedavg.noised", four_fold_float32)
    with pytest.raises(AssertionError, match="guesses are right"):
        test_dp_fedavg("server" if direction == "down" else "parties", "secure", 300)
