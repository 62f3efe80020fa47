"""What docs/flower.md says about Flower's own privacy is so in the version that is installed."""

import pytest

from pipelines import flower_dp_facts

pytestmark = pytest.mark.flower


def test_adaptive_clipping_runs_away_from_its_target() -> None:
    assert flower_dp_facts.adaptive_clipping() < 0.05
    assert 0.8 < flower_dp_facts.adaptive_clipping(inverted=False) < 1.1
    clipped_with, made_for = flower_dp_facts.noise_after_the_update()
    assert made_for != clipped_with


def test_a_weighted_mean_moves_further_than_its_noise_is_made_for() -> None:
    moved, assumed = flower_dp_facts.weighted_mean()
    assert moved == pytest.approx(0.9)
    assert assumed == pytest.approx(0.1)


def test_masks_come_from_32_bits_and_accountants_are_left_to_the_user() -> None:
    assert flower_dp_facts.mask_seeds()
    assert sorted(flower_dp_facts.accountants().values()) == [False, False, True, True]
