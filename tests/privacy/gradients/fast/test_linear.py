"""One Linear layer with one output: sums of clipped gradients are those of one row after the other."""

import pytest
import torch
from torch import nn

from homo_dp.privacy.gradients.losses import Loss, binary_logistic, squared_error
from tests.privacy.gradients.fast.parts import same_as_reference

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "loss", [binary_logistic, squared_error, lambda outputs, labels: (outputs - labels[:, None]).abs()]
)
def test_one_output_with_any_loss(bias: bool, loss: Loss) -> None:
    torch.manual_seed(1)
    labels = (torch.arange(12) % 2).double()
    features = torch.randn(12, 7).double() * torch.linspace(0.1, 3, 12).double()[:, None]
    same_as_reference(nn.Linear(7, 1, bias=bias), loss, features, labels)
    same_as_reference(nn.Sequential(nn.Flatten(), nn.Linear(7, 1, bias=bias)), loss, features.reshape(12, 7, 1), labels)
