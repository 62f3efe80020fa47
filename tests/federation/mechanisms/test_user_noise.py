"""Noise on sums over users: events cost what the numbers say, and the target holds against the
right observer.
"""

import math
from typing import Any

import pytest

from homo_dp.config.privacy import UserKeys, keys_of
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.user_noise import UserNoise, user_noise
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.errors import PrivacyError
from tests.federation.user_parts import ADAPTIVE, EVERYONE, FIXED, PARTIES, user_config

ROUNDS = 10
TARGET = {"privacy.noise_multiplier": None, "privacy.target_epsilon": 2.0}
MASKED = {
    "privacy.secure_aggregation": True,
    "privacy.noise_at": "parties",
    "privacy.trust_aggregator": False,
}


def numbers(*parts: dict[str, Any], holders: int = 1) -> UserNoise:
    return user_noise(keys_of(user_config(*parts).privacy, UserKeys), ROUNDS, holders)


def spent(noise: UserNoise, observer: str) -> float:
    event = {str(name): found for name, found in noise.events.items()}[observer]
    return epsilon(compose(*[event] * ROUNDS), 1e-5).quoted


def test_noise_at_the_server_protects_against_readers_alone() -> None:
    found = numbers(TARGET)
    assert set(found.events) == {"model_reader"}
    assert 1.9 < spent(found, "model_reader") <= 2.0
    with pytest.raises(PrivacyError, match="parties add no noise"):
        found.share_sigma(1.0)


def test_noise_at_parties_keeps_the_target_against_the_aggregator() -> None:
    found = numbers(PARTIES, FIXED, {"privacy.trust_aggregator": False}, TARGET)
    assert 1.9 < spent(found, "aggregator") <= 2.0
    assert spent(found, "model_reader") < spent(found, "aggregator")
    assert found.share_sigma(3.0) == pytest.approx(found.sum_sigma(3.0) / math.sqrt(50))


def test_a_missing_party_makes_the_others_add_more() -> None:
    whole = numbers(PARTIES, FIXED)
    fewer = numbers(PARTIES, FIXED, {"privacy.tolerated_dropouts": 14})
    assert fewer.shares == 36
    assert fewer.share_sigma(1.0) == pytest.approx(whole.share_sigma(1.0) * math.sqrt(50 / 36))


def test_under_masks_the_aggregator_is_one_more_reader() -> None:
    found = numbers(MASKED, TARGET, holders=8)
    assert found.masked is not None
    assert (found.shares, found.masked.parties) == (7, 8)
    assert spent(found, "aggregator") == spent(found, "model_reader") <= 2.0


def test_update_and_bit_together_cost_the_noise_multiplier() -> None:
    found = numbers(ADAPTIVE, {"privacy.cohort_size": 500})
    assert found.bit_noise == 25.0
    pair = (found.update_multiplier**-2 + (2 * found.bit_noise) ** -2) ** -0.5
    assert pair == pytest.approx(found.noise_multiplier)
    assert numbers().update_multiplier == numbers().noise_multiplier  # without bits


def test_a_cohort_too_small_for_its_bits_says_which_is_not() -> None:
    with pytest.raises(
        PrivacyError, match=r"the smallest privacy\.cohort_size that works is 2[01]"
    ):
        numbers(ADAPTIVE, {"privacy.cohort_size": 10})
    with pytest.raises(
        PrivacyError, match=r"no cohort of privacy\.population=1000 is large enough"
    ):
        numbers(ADAPTIVE, {"privacy.cohort_size": 10, "privacy.noise_multiplier": 200.0})


def test_what_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.population: is not declared"):
        numbers({"privacy.population": None})
    assert numbers(EVERYONE).cohort_size == 1000
