"""A cohort's sum as one vector: what one user moves, one noise for updates and bits, and the way
back.
"""

import math

import pytest
import torch

from homo_dp.config.privacy import UserKeys, keys_of
from homo_dp.federation.mechanisms.cohort_mechanism import CohortSum
from homo_dp.federation.mechanisms.masked_cohorts import MaskedCohorts
from homo_dp.federation.mechanisms.user_noise import user_noise
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.private_sum import NoiseShare
from tests.federation.user_parts import ADAPTIVE, user_config

MASKED = {
    "privacy.secure_aggregation": True,
    "privacy.noise_at": "parties",
    "privacy.trust_aggregator": False,
}
SHARE = NoiseShare(8)


def cohorts(*parts: dict[str, object], weights: int = 6) -> MaskedCohorts:
    config = user_config(MASKED, {"privacy.cohort_size": 500}, *parts)
    return MaskedCohorts(user_noise(keys_of(config.privacy, UserKeys), 10, 8), SHARE, weights)


@pytest.mark.parametrize("bit", [0.5, -0.5])
def test_one_user_with_its_bit_moves_the_vector_by_the_clip_norm(bit: float) -> None:
    found = cohorts(ADAPTIVE)
    one = CohortSum(3.0, torch.full((6,), 3.0 / math.sqrt(6)), bit, 1)  # an update of norm C
    assert float(found._vector(one).norm()) == pytest.approx(found.private_sum.clip_norm)
    assert found.private_sum.dimension == 7
    half_the_bit = CohortSum(3.0, one.updates, bit / 2, 1)
    assert float(found._vector(half_the_bit).norm()) < found.private_sum.clip_norm


def test_without_bits_the_clip_norm_is_one() -> None:
    assert cohorts().private_sum.clip_norm == 1.0
    assert cohorts().private_sum.dimension == 6


@pytest.mark.parametrize("clip_norm", [0.01, 3.0, 40.0])
def test_the_vector_gives_the_sum_back_whatever_the_clip_norm_is(clip_norm: float) -> None:
    found = cohorts(ADAPTIVE)
    total = CohortSum(clip_norm, torch.arange(6.0) * clip_norm, 17.0, 1)
    back = found.opened(found._vector(total), clip_norm, 8)
    torch.testing.assert_close(back.updates, total.updates.double())
    assert back.bits == pytest.approx(17.0)
    assert back.clip_norm == clip_norm


def test_noise_of_a_holder_is_its_share_and_grows_with_the_clip_norm() -> None:
    found = cohorts(weights=4000)
    empty = torch.zeros(4000)
    steps = found.released(CohortSum(3.0, empty, 0.0, 0), SeededNoise(1))
    values = steps.double() * found.private_sum.grid.step
    expected = found.private_sum.party_sigma
    assert float(values.std()) == pytest.approx(expected, rel=0.1)  # 9 standard errors
    for clip_norm in (3.0, 6.0):
        whole = found.released_by_all(CohortSum(clip_norm, empty, 0.0, 0), SeededNoise(1))
        assert float(whole.updates.std()) == pytest.approx(
            expected * math.sqrt(8) * clip_norm, rel=0.1
        )


def test_as_many_are_trained_as_are_usually_drawn_at_most() -> None:
    found = cohorts()
    assert found.usual_draw(1) == 1
    usual = found.usual_draw(100)
    drawn = [len(found.draw(100, SeededNoise(seed))) for seed in range(20)]
    assert max(drawn) <= usual <= 100
