"""Layers of the fast path give what autograd gives, one row after the other."""

import copy
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.losses import softmax_cross_entropy, squared_error
from tests.privacy.gradients.fast.parts import frozen, same_as_reference
from tests.privacy.training_parts import exact_sum, flat, reference_sum, step_sum, training

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


class Tempered(nn.Module):
    """An activation that the package has never heard of."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2.0 * torch.sigmoid(2.0 * inputs) - 1.0


LINEAR: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: nn.Linear(6, 3),
    "no bias": lambda: nn.Sequential(
        nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)
    ),
    "named": lambda: nn.Sequential(
        OrderedDict(hidden=nn.Linear(6, 5), between=nn.Sigmoid(), output=nn.Linear(5, 3))
    ),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Sequential(nn.Linear(5, 3))
    ),
    "activations": lambda: nn.Sequential(
        nn.Linear(6, 5),
        nn.GELU(),
        nn.Linear(5, 5),
        nn.ELU(),
        nn.Linear(5, 5),
        nn.LeakyReLU(),
        nn.Linear(5, 3),
    ),
    "own activation": lambda: nn.Sequential(nn.Linear(6, 5), Tempered(), nn.Linear(5, 3)),
    "layer norm": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)
    ),
    "layer norm first": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)),
    "layer norm without bias": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8, bias=False), nn.Linear(8, 3)
    ),
    "fixed norm": lambda: nn.Sequential(nn.LayerNorm(6, elementwise_affine=False), nn.Linear(6, 3)),
    "group norm": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 3)
    ),
    "frozen weight": lambda: frozen(
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), "2.weight"
    ),
    "frozen bias": lambda: frozen(
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), "0.bias"
    ),
    "frozen layer": lambda: frozen(
        frozen(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), "0.bias"), "0.weight"
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_vectors(name: str) -> None:
    torch.manual_seed(1)
    same_as_reference(
        LINEAR[name](), softmax_cross_entropy, torch.randn(12, 6).double() * 2, torch.arange(12) % 3
    )


@pytest.mark.parametrize("activation", [nn.ELU, nn.ReLU, nn.LeakyReLU])
def test_activations_in_place_are_those_of_a_copy(activation: Callable[..., nn.Module]) -> None:
    torch.manual_seed(1)
    features, labels = torch.randn(12, 6).double(), torch.arange(12) % 3
    features[0] = torch.inf  # so that the batch is passed twice
    for first in ([], [activation(inplace=True)]):
        torch.manual_seed(2)
        module = nn.Sequential(
            *first, nn.Linear(6, 5), activation(inplace=True), nn.Linear(5, 3)
        ).double()
        copied = copy.deepcopy(module)
        for layer in copied.modules():
            if hasattr(layer, "inplace"):
                layer.inplace = False  # type: ignore[assignment]
        expected = reference_sum(copied, softmax_cross_entropy, features[1:], labels[1:], 1.0)
        private = training(module, softmax_cross_entropy, features, labels)
        assert private.grad_sample_mode == "fast"
        torch.testing.assert_close(flat(step_sum(private)), flat(expected), rtol=1e-5, atol=1e-5)


def test_one_output_at_each_position() -> None:
    torch.manual_seed(1)
    features, labels = torch.randn(12, 5, 6).double(), torch.randn(12, 5, 1).double()
    same_as_reference(nn.Linear(6, 1), squared_error, features, labels)
    same_as_reference(nn.Linear(6, 1), squared_error, features[:, :1], labels[:, :1])


def _sized_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.flatten(1).sum(1) * labels


@pytest.mark.parametrize(("outputs", "positions"), [(1, 0), (2, 0), (2, 3)])
@pytest.mark.parametrize(
    ("inputs", "slope"), [(1e-24, 1e18), (1e-22, 1e17), (1e17, 1e-23), (1e19, 1e-21)]
)
def test_products_of_tiny_and_huge_numbers_keep_the_bound(
    inputs: float, slope: float, outputs: int, positions: int
) -> None:
    """The square of the tiny one is zero in float32, while its product with the other is far
    above the bound.
    """
    module = nn.Linear(4, outputs, bias=False)
    features = torch.full((1, positions, 4) if positions else (1, 4), inputs)
    private = training(module, _sized_loss, features, torch.full((1,), slope), clip_norm=1e-9)
    assert private.grad_sample_mode == "fast"
    total = exact_sum(private)
    assert float(total.norm()) <= 1e-9
    assert float(total.norm()) > 0 or inputs > 1e18
