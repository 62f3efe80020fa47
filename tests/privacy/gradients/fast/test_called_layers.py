"""Modules with code of their own on the fast path."""

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.losses import binary_logistic, softmax_cross_entropy
from tests.privacy.gradients.fast.parts import frozen, same_as_reference
from tests.privacy.training_parts import flat, reference_sum, step_sum, training

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


class Scaled(nn.Sequential):
    """A chain with a forward of its own around one output."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.square()) * 3  # type: ignore[no-any-return,no-untyped-call]


def test_one_output_inside_code_of_its_own() -> None:
    torch.manual_seed(3)
    watched = nn.Sequential(nn.Linear(6, 1))
    watched.register_forward_hook(lambda module, inputs, outputs: outputs * 3)
    for module in (Scaled(nn.Linear(6, 1)), watched):
        same_as_reference(
            module, binary_logistic, torch.randn(12, 6).double(), torch.arange(12) % 2
        )


class Block(nn.Module):
    """Code of its own: a residual, functional activations, a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = (
            nn.LayerNorm(6),
            nn.Linear(6, 6),
            nn.Linear(6, 6, bias=False),
        )
        self.spare = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.outer(torch.relu(self.inner(self.norm(inputs))))
        return inputs + hidden


class Network(nn.Module):
    """A small convolutional network as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, stride=2), nn.Linear(48, 3)
        self.drop = nn.Dropout(0.0)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(input=inputs).tanh_().view(len(inputs), -1)
        outputs: Tensor = self.second(self.drop(hidden))
        return outputs


class Sentence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.classes = nn.Embedding(4, 5), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.classes(self.words(inputs)).mean(1)
        return outputs


def test_modules_with_code_of_their_own() -> None:
    torch.manual_seed(1)
    labels, rows = torch.arange(12) % 3, torch.randn(12, 6).double() * 2
    same_as_reference(
        nn.Sequential(Block(), nn.ReLU(inplace=True), nn.Linear(6, 3)),
        softmax_cross_entropy,
        rows,
        labels,
    )
    same_as_reference(
        frozen(Network(), "first.bias"),
        softmax_cross_entropy,
        torch.randn(12, 2, 9, 8).double(),
        labels,
    )
    same_as_reference(Sentence(), softmax_cross_entropy, torch.randint(0, 4, (12, 6)), labels)


def test_rows_that_are_not_finite_leave_a_module_with_code_of_its_own() -> None:
    torch.manual_seed(1)
    features, labels = torch.randn(8, 2, 9, 8).double(), torch.arange(8) % 3
    module = Network().double()
    expected = reference_sum(module, softmax_cross_entropy, features[1:], labels[1:], 0.5)
    features[0] = torch.nan
    private = training(module, softmax_cross_entropy, features, labels, clip_norm=0.5)
    torch.testing.assert_close(flat(step_sum(private)), flat(expected), rtol=1e-5, atol=1e-5)
    features[:] = torch.nan
    private = training(Network().double(), softmax_cross_entropy, features, labels)
    assert float(flat(step_sum(private)).abs().max()) < 1e-5
    assert private.rows_not_finite == 8
