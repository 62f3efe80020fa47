"""What may be trained privately: refusals name the layer and the fix, and the fix is what the
message says.
"""

import math

import pytest
import torch
from torch import nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.validation import (
    check_module,
    check_optimizer,
    compatible_module,
    has_opacus_layers,
    out_of_place,
)
from tests.privacy.gradients.modules import Counting


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
            r"1: BatchNorm1d mixes .* use GroupNorm or LayerNorm, or set",
        ),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)), "1: BatchNorm1d mixes"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)),
            "1: BatchNorm1d mixes",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True)),
            "track_running_stats=True",
        ),
        (nn.LSTM(3, 3), "LSTM cannot be trained privately"),
        (Counting(persistent=True), "buffer seen .* persistent=False"),
        (nn.Linear(4, 2).to(torch.bfloat16), "dtype=torch.bfloat16"),
        (nn.Linear(4, 2).requires_grad_(False), "0 trainable parameters"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "several dtypes"),
    ],
)
def test_modules_that_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        check_module(module)


def test_values_and_shapes_that_are_refused() -> None:
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight[0, 0] = math.nan
    with pytest.raises(PrivacyError, match="weight holds NaN"):
        check_module(module)
    empty = nn.Linear(2, 2)
    empty.nothing = nn.Parameter(torch.zeros(0))
    with pytest.raises(PrivacyError, match="nothing: shape="):
        check_module(empty)
    counts = nn.Linear(2, 2)
    counts.counts = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
    with pytest.raises(PrivacyError, match=r"counts: dtype=torch\.int64"):
        check_module(counts)


def test_messages_are_one_line() -> None:
    for module in (nn.LSTM(3, 3), nn.Sequential(nn.BatchNorm2d(3))):
        with pytest.raises(PrivacyError) as caught:
            check_module(module)
        assert "\n" not in str(caught.value)
        assert "model.fix=true" in str(caught.value)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)),
        nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True, affine=True)
        ),
        nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2)),
        nn.BatchNorm1d(4),
        nn.LSTM(3, 3),
    ],
)
def test_the_fix_makes_a_copy_that_passes(module: nn.Module) -> None:
    fixed = compatible_module(module, fix=True)
    check_module(fixed)
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in fixed.modules())
    with pytest.raises(PrivacyError):
        compatible_module(module)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8), nn.SyncBatchNorm(8)])
def test_a_replaced_norm_of_flat_records_does_not_wipe_them_out(norm: nn.Module) -> None:
    fixed = compatible_module(nn.Sequential(nn.Linear(4, 8), norm), fix=True)
    outputs = fixed(torch.randn(1, 4))
    assert float(outputs.detach().std()) > 0.5


def test_the_fix_keeps_weights() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    fixed = compatible_module(module, fix=True)
    assert torch.equal(fixed.get_parameter("0.weight"), module.get_parameter("0.weight"))


def test_the_optimiser_holds_exactly_what_is_trained() -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(PrivacyError, match="bias is trainable but not in the optimizer"):
        check_optimizer(module, torch.optim.SGD([module.weight], lr=0.1))
    check_optimizer(module, torch.optim.SGD([module.weight], lr=0.1), partly=True)
    with pytest.raises(PrivacyError, match="that the model has not"):
        check_optimizer(
            module, torch.optim.SGD([*module.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)
        )
    with pytest.raises(PrivacyError, match="maximize=True"):
        check_optimizer(module, torch.optim.SGD(module.parameters(), lr=0.1, maximize=True))
    module.bias.requires_grad_(False)
    check_optimizer(module, torch.optim.SGD(module.parameters(), lr=0.1))


def test_activations_stop_overwriting_and_opacus_layers_are_seen() -> None:
    from opacus.layers import DPLSTM

    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    out_of_place(module)
    assert module(torch.tensor([[1.0, -1.0]])).min() >= 0
    assert not module[1].inplace
    assert (has_opacus_layers(module), has_opacus_layers(nn.Sequential(DPLSTM(2, 2)))) == (
        False,
        True,
    )
