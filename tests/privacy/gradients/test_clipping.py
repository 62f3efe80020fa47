"""Clipping: factors and vectors, and per-sample clipping against one row at a time in every
grad-sample mode.
"""

import math

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipping import (
    check_clip_norm,
    clip_factors,
    clip_rows,
    clip_vector,
    vector_norm,
)
from homo_dp.privacy.gradients.losses import Loss, binary_logistic, softmax_cross_entropy
from tests.privacy.training_parts import middle_norm, reference_sum, step_sum, training

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")

MODES = ("fast", "hooks", "functorch", "ew", "ghost")


def test_rows_above_the_bound_are_scaled_to_it_and_others_kept() -> None:
    rows = torch.randn(50, 3, 4, generator=torch.Generator().manual_seed(0))
    clipped = clip_rows(rows, 2.0)
    norms, after = rows.flatten(1).norm(dim=1), clipped.flatten(1).norm(dim=1)
    assert bool((after <= 2.0).all())
    assert torch.equal(clipped[norms < 1.99], rows[norms < 1.99])
    torch.testing.assert_close(after[norms > 2.0], torch.full_like(after[norms > 2.0], 2.0))


def test_rows_that_are_not_finite_become_zeros_and_zero_rows_stay() -> None:
    rows = torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [0.0, 0.0], [-math.inf, math.nan]])
    assert torch.equal(clip_rows(rows, 1.0), torch.zeros(4, 2))
    assert clip_factors(torch.tensor([0.0, math.nan, math.inf]), 1.0).tolist() == [1.0, 0.0, 0.0]


def test_huge_rows_are_clipped_and_not_lost_to_overflow() -> None:
    clipped = clip_rows(torch.tensor([[3e30, 4e30]]), 1.0)
    torch.testing.assert_close(clipped, torch.tensor([[0.6, 0.8]]))


def test_rows_at_the_end_of_float32_are_not_rounded_above_the_bound() -> None:
    """A factor below the smallest normal float32 has few bits left: rounded up, it let a row
    through at 1.3 C.
    """
    rows = torch.full((1, 1000), 3e38)
    for number in range(1, 200):
        clip_norm = 1e-5 * number**1.5
        assert vector_norm({"rows": clip_rows(rows, clip_norm)}) <= clip_norm
        assert vector_norm(clip_vector({"rows": rows}, clip_norm)[0]) <= clip_norm


def test_a_vector_is_clipped_over_all_tensors_together() -> None:
    tensors = {
        "weight": torch.full((2, 2), 3.0),
        "bias": torch.full((3,), -2.0),
        "scale": torch.tensor(5.0),
    }
    clipped, norm = clip_vector(tensors, 1.0)
    assert norm == pytest.approx(math.sqrt(36 + 12 + 25))
    assert vector_norm(clipped) <= 1.0
    torch.testing.assert_close(clipped["scale"], torch.tensor(5.0 / norm))


def test_a_vector_with_nan_becomes_zeros_and_a_zero_vector_stays() -> None:
    clipped, norm = clip_vector({"a": torch.tensor([math.nan]), "b": torch.ones(2)}, 1.0)
    assert math.isnan(norm)
    assert clipped["b"].tolist() == [0.0, 0.0]
    assert clip_vector({"a": torch.zeros(3)}, 1.0)[0]["a"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("value", [0, -1.0, 1e-13, 1e13, math.nan, math.inf, True, "1"])
def test_a_clip_norm_that_bounds_nothing_is_refused(value: float) -> None:
    with pytest.raises(PrivacyError, match="clip_norm="):
        check_clip_norm(value)


def test_integer_tensors_are_refused() -> None:
    with pytest.raises(PrivacyError, match="int64"):
        clip_rows(torch.ones(2, 2, dtype=torch.int64), 1.0)
    with pytest.raises(PrivacyError, match="steps: dtype="):
        clip_vector({"steps": torch.tensor(3)}, 1.0)


def _case(name: str) -> tuple[nn.Module, Loss, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    if name == "linear":
        return (
            nn.Linear(5, 1),
            binary_logistic,
            torch.randn(24, 5, generator=generator) * 3,
            (torch.arange(24) % 2).float(),
        )
    labels = torch.arange(24) % 3
    if name == "conv":
        module = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 3),
        )
        return (
            module,
            softmax_cross_entropy,
            torch.randn(24, 1, 8, 8, generator=generator) * 2,
            labels,
        )
    if name == "embedding":
        module = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, 3))
        return (
            module,
            softmax_cross_entropy,
            torch.randint(0, 7, (24, 5), generator=generator),
            labels,
        )
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    return module, softmax_cross_entropy, torch.randn(24, 6, generator=generator) * 3, labels


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["linear", "conv", "embedding", "mlp"])
@pytest.mark.parametrize("physical_batch_size", [None, 7])
def test_a_step_sums_what_one_row_at_a_time_sums(
    name: str, mode: str, physical_batch_size: int | None
) -> None:
    module, loss, features, labels = _case(name)
    clip_norm = middle_norm(module, loss, features, labels)
    expected = reference_sum(module, loss, features, labels, clip_norm)
    private = training(
        module,
        loss,
        features,
        labels,
        clip_norm=clip_norm,
        grad_sample_mode=mode,
        physical_batch_size=physical_batch_size,
    )
    assert private.grad_sample_mode == mode
    # ghost clipping raises norms by the bound on their rounding
    slack = 2e-4 if mode == "ghost" else 2e-5
    for found, wanted in zip(step_sum(private), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-4, atol=slack)
    assert 0 < private.last_fraction_clipped < 1, (
        "the case must have rows on both sides of the bound"
    )
    assert len(private.last_norms) == 24
