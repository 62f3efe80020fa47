"""One Linear layer with one output in float64: its outputs are the layer's, whatever is trained of
it, and sums of clipped gradients are those of one row after the other.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from homo_dp.privacy.gradients.fast.linear import LayerInDouble, one_output_layer
from homo_dp.privacy.gradients.losses import Loss, binary_logistic, squared_error
from tests.privacy.gradients.fast.parts import frozen, same_as_reference

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


@pytest.mark.parametrize("columns", [1, 3, 4, 7])
@pytest.mark.parametrize("trained", ["all", "weight", "no bias"])
def test_outputs_are_those_of_the_layer_as_it_is_now(columns: int, trained: str) -> None:
    torch.manual_seed(columns)
    layer = nn.Linear(columns, 1, bias=trained != "no bias")
    if trained == "weight":
        frozen(layer, "bias")
    found, rows = LayerInDouble(layer), torch.randn(9, columns)
    room = found.room(9)
    assert room.shape == (9, found.columns)
    assert float(room.norm(dim=1).min()) > 0  # no row has a length of zero
    room[:, :columns] = rows
    for _ in range(2):
        expected = layer.double()(rows.double()).squeeze(1)
        layer.float()
        torch.testing.assert_close(found.outputs(room), expected.detach(), rtol=1e-12, atol=1e-12)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(-3.0)


def test_only_a_layer_with_one_trained_output_is_one() -> None:
    layer = nn.Linear(4, 1)
    assert one_output_layer(nn.Sequential(nn.Flatten(), nn.Flatten(), layer)) is layer
    for other in (
        nn.Linear(4, 2),
        nn.Sequential(layer, nn.Sigmoid()),
        nn.Sequential(nn.Flatten(0), layer),
        frozen(nn.Linear(4, 1), "weight"),
    ):
        assert one_output_layer(other) is None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "loss",
    [binary_logistic, squared_error, lambda outputs, labels: (outputs - labels[:, None]).abs()],
)
def test_one_output_with_any_loss(bias: bool, loss: Loss) -> None:
    torch.manual_seed(1)
    labels = (torch.arange(12) % 2).double()
    features = torch.randn(12, 7).double() * torch.linspace(0.1, 3, 12).double()[:, None]
    same_as_reference(nn.Linear(7, 1, bias=bias), loss, features, labels)
    same_as_reference(
        nn.Sequential(nn.Flatten(), nn.Linear(7, 1, bias=bias)),
        loss,
        features.reshape(12, 7, 1),
        labels,
    )
