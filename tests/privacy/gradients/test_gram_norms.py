"""Norms of sequences by Gram matrices: where large terms cancel, rounding must count against the
record.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.gram_norms import lookup_squares, outer_squares
from homo_dp.privacy.gradients.losses import Loss
from tests.privacy.training_parts import flat, step_sum, training

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")

MODES = ("fast", "ghost", "hooks", "functorch", "ew")


class Difference(nn.Module):
    """First position minus second: their output gradients are opposite."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, 0] - inputs[:, 1]


def moved(
    make: Callable[[], nn.Module], loss: Loss, features: Tensor, labels: Tensor, mode: str
) -> float:
    """How far, in units of C = 1, the last record moves the clipped sum."""
    sums = []
    for rows in (len(features) - 1, len(features)):
        torch.manual_seed(0)
        private = training(make(), loss, features[:rows], labels[:rows], grad_sample_mode=mode)
        sums.append(flat(step_sum(private)))
        private.close()
    return float((sums[1] - sums[0]).norm())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bias", [True, False])
def test_two_almost_equal_positions_cannot_hide_a_gradient(mode: str, bias: bool) -> None:
    """Outputs cancel to a gradient of some hundreds of C; rounding of the Gram sum once took
    that for zero.
    """
    for apart in (1e-2, 1e-3, 1e-4, 1e-5):
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(5, 2, 64, generator=generator) * 0.1
        features[-1] = 1e4 * torch.randn(64, generator=generator)
        features[-1, 1] += 1e4 * apart * torch.randn(64, generator=generator)
        made = moved(
            lambda: nn.Sequential(nn.Linear(64, 64, bias=bias), Difference()),
            lambda outputs, labels: outputs.sum(1),
            features,
            torch.zeros(5),
            mode,
        )
        assert made <= 1.01, f"apart={apart}: one record moved the sum by {made:.4g} C"


@pytest.mark.parametrize("mode", ["fast", "hooks", "functorch", "ew", "ghost"])
def test_one_word_twice_cannot_hide_a_gradient(mode: str) -> None:
    words = torch.tensor([[0, 1], [1, 2], [4, 0], [3, 3]])
    weights = torch.tensor([1.0, 1.0, 1.0, 1e6])
    for apart in (1e-1, 1e-3, 1e-4, 1e-5, 1e-6):

        def loss(outputs: Tensor, labels: Tensor, apart: float = apart) -> Tensor:
            return (outputs[:, 0] - (1 - apart) * outputs[:, 1]).sum(1) * labels

        made = moved(lambda: nn.Sequential(nn.Embedding(5, 16)), loss, words, weights, mode)
        assert made <= 1.01, f"apart={apart}: one record moved the sum by {made:.4g} C"


def test_bias_gradients_that_cancel_are_bounded_too() -> None:
    """Inputs of zeros leave nothing but the bias, whose gradient is a small rest of large terms."""
    features, weights = torch.zeros(4, 3, 8), torch.tensor([1.0, 1.0, 1.0, 1e7])

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs[:, 0] - 0.7 * outputs[:, 1] - 0.3 * outputs[:, 2]).sum(1) * labels

    for mode in ("fast", "ghost"):
        assert moved(lambda: nn.Sequential(nn.Linear(8, 8)), loss, features, weights, mode) <= 1.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("positions", "inputs", "outputs"), [(2, 3, 4), (7, 200, 30), (40, 500, 300)]
)
def test_squares_are_never_below_and_hardly_above_the_true_ones(
    dtype: torch.dtype, positions: int, inputs: int, outputs: int
) -> None:
    torch.manual_seed(positions)
    a, g = torch.randn(6, positions, inputs).to(dtype), torch.randn(6, positions, outputs).to(dtype)
    true = (g.double().mT @ a.double()).flatten(1).square().sum(1)
    found = outer_squares(a, g).double()
    assert bool((found >= true * (1 - 1e-15)).all())
    assert bool((found <= true * (1 + 1e-3)).all())
    words = torch.randint(0, 5, (6, positions))
    vectors = torch.zeros(6, 5, outputs).double()
    for row in range(6):
        vectors[row].index_add_(0, words[row], g[row].double())
    true, found = vectors.flatten(1).square().sum(1), lookup_squares(words, g).double()
    assert bool((found >= true * (1 - 1e-15)).all())
    assert bool((found <= true * (1 + 1e-3)).all())
