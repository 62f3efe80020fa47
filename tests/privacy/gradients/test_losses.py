"""Losses that know their gradient: it is that of autograd, and outputs of the wrong shape are
refused.
"""

import pytest
import torch

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import (
    Loss,
    binary_logistic,
    output_gradient,
    per_sample,
    softmax_cross_entropy,
    squared_error,
)

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


@pytest.mark.parametrize("loss", [binary_logistic, squared_error])
@pytest.mark.parametrize("shape", [(9,), (9, 1)])
def test_known_output_gradients_are_those_of_autograd(loss: Loss, shape: tuple[int, ...]) -> None:
    outputs, labels = torch.randn(shape), (torch.arange(9) % 2).float()
    known = output_gradient(loss, outputs, labels)
    torch.testing.assert_close(known, output_gradient(lambda o, y: loss(o, y), outputs, labels))


def test_the_softmax_gradient_is_that_of_autograd() -> None:
    outputs, labels = torch.randn(9, 4) * 5, torch.arange(9) % 4
    known = output_gradient(softmax_cross_entropy, outputs, labels)
    torch.testing.assert_close(
        known, output_gradient(lambda o, y: softmax_cross_entropy(o, y), outputs, labels)
    )


def test_losses_check_their_shapes() -> None:
    with pytest.raises(PrivacyError, match="one logit a row"):
        binary_logistic(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(PrivacyError, match="one label per output"):
        squared_error(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(PrivacyError, match="not one loss per row"):
        per_sample(torch.zeros(3, 2), 3)
    with pytest.raises(PrivacyError, match="not one loss per row"):
        per_sample(torch.zeros(()), 1)
