"""Rows alike in all directions: from a noisy moment, with a floor where noise drowns a
direction.
"""

import math

import torch

from homo_dp.solvers.whitening import Whitening, least_squares, towards_zero

ROWS = torch.randn(
    4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
) * torch.tensor([10, 1, 0.1])
MOMENT = ROWS.t() @ ROWS / len(ROWS)


def test_every_direction_has_the_same_mean_square() -> None:
    found = Whitening.of(MOMENT, noise=1e-12)
    turned = ROWS @ found.transform
    torch.testing.assert_close(
        turned.t() @ turned / len(ROWS), torch.eye(3, dtype=torch.float64) / 3, rtol=1e-6, atol=1e-8
    )
    assert math.isclose(found.scale, math.sqrt(3), rel_tol=1e-6)


def test_a_direction_below_the_noise_is_not_blown_up() -> None:
    found = Whitening.of(MOMENT, noise=1.0)
    assert float((ROWS @ found.transform)[:, 2].square().mean()) < 0.01
    # noise can do that
    negative = Whitening.of(MOMENT - 5 * torch.eye(3, dtype=torch.float64), noise=1.0)
    assert torch.isfinite(negative.transform).all()


def test_what_scaled_columns_have_in_common_counts_beyond_its_noise_only() -> None:
    """Twenty columns that have nothing in common, through noise: their directions are seen as
    nearer to alike.
    """
    noise = (
        torch.randn(20, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.2
    )
    noisy = torch.eye(20, dtype=torch.float64) + (noise + noise.t()) / 2
    alike = torch.eye(20, dtype=torch.float64)
    scaled, own = Whitening.of(noisy, 0.2, scaled=alike), Whitening.of(noisy, 0.2)
    spread = [torch.linalg.eigvalsh(found.transform).std() for found in (scaled, own)]
    assert spread[0] < 0.7 * spread[1]
    torch.testing.assert_close(towards_zero(noisy, 0.0), noisy)


def test_a_gradient_step_in_these_coordinates_is_newtons_for_least_squares() -> None:
    weights = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    found = Whitening.of(MOMENT, noise=1e-12)
    # of half the mean square at zero weights, as parties send it
    gradient = -(weights @ MOMENT) @ found.transform
    torch.testing.assert_close(-found.back(gradient), weights, rtol=1e-4, atol=1e-6)


def test_without_a_moment_rows_are_scaled_alike() -> None:
    found = Whitening.none(3, row_norm=2.0)
    torch.testing.assert_close(found.transform, torch.eye(3, dtype=torch.float64) / 2)
    assert found.scale == 1.0


def test_least_squares_with_more_noise_shrinks() -> None:
    target = ROWS @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    rows = torch.cat([ROWS, target], dim=1)
    moment = rows.t() @ rows / len(rows)
    exact, shrunk = least_squares(moment, 1e-12), least_squares(moment, 10.0)
    torch.testing.assert_close(
        exact, torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), rtol=1e-6, atol=1e-6
    )
    assert float(shrunk.norm()) < float(exact.norm())
