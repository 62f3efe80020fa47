"""flower-dp's functions: its own published figures, and what its formula does not allow."""

import pytest

from homo_dp.flower_dp import calculate_c, calculate_sigma_d, calculate_sigma_u


def test_the_noise_grows_and_shrinks_as_theorem_1_says() -> None:
    assert calculate_sigma_u(1.0) == pytest.approx(2 * calculate_sigma_u(2.0))
    assert calculate_sigma_u(1.0, num_exposures=6) == pytest.approx(
        2 * calculate_sigma_u(1.0, num_exposures=3)
    )
    assert calculate_sigma_u(1.0, l2_norm_clip=3.0) == pytest.approx(
        2 * calculate_sigma_u(1.0, l2_norm_clip=1.5)
    )
    assert calculate_c(1e-6) > calculate_c(1e-3)


def test_uploads_that_are_noisy_enough_need_no_noise_at_the_server() -> None:
    assert calculate_sigma_d(1.0, num_exposures=10, num_rounds=10, num_clients=2) == 0
    with pytest.raises(ValueError, match="at least num_exposures"):
        calculate_sigma_d(1.0, num_exposures=5, num_rounds=3)
