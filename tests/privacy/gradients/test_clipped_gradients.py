"""What all grad-sample modes share: one question, answered alike by each of them."""

import math

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.clipped_gradients import (
    ClippedGradients,
    has_opacus_layers,
    out_of_place,
)
from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.gradients.fast.gradients import FastGradients
from homo_dp.privacy.gradients.losses import binary_logistic
from homo_dp.privacy.gradients.opacus_gradients import GhostGradients, MaterialisedGradients

MODES = ("fast", "hooks", "functorch", "ew", "ghost")
CLIP = 0.2


def gradients(mode: str, module: nn.Linear) -> ClippedGradients:
    match mode:
        case "fast":
            chain = chain_of(module)[0]
            assert chain is not None
            return FastGradients(chain, binary_logistic, CLIP)
        case "ghost":
            return GhostGradients(module, binary_logistic, CLIP)
    return MaterialisedGradients(module, binary_logistic, CLIP, mode)


def summed(mode: str, features: Tensor) -> tuple[Tensor, int]:
    torch.manual_seed(1)
    module = nn.Linear(3, 1)
    made = gradients(mode, module)
    sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in module.parameters()]
    made.clipped_sum(features, torch.ones(len(features)), sums, False)
    made.close()
    return torch.cat([total.flatten() for total in sums]), made.rows_not_finite


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_same_bounded_sum(mode: str) -> None:
    features = torch.randn(9, 3, generator=torch.Generator().manual_seed(2)) * 5
    whole, _ = summed(mode, features)
    torch.testing.assert_close(whole, summed("hooks", features)[0], rtol=1e-4, atol=1e-4 * CLIP)
    moved = [
        float((whole - summed(mode, torch.cat([features[:at], features[at + 1 :]]))[0]).norm())
        for at in range(9)
    ]
    assert 0.9 * CLIP < max(moved) <= CLIP


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("mode", MODES)
def test_no_mode_lets_a_row_through_that_is_not_finite(mode: str) -> None:
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    spoilt = torch.cat([features, torch.full((1, 3), math.nan)])
    found, not_finite = summed(mode, spoilt)
    torch.testing.assert_close(found, summed(mode, features)[0], rtol=1e-4, atol=1e-4 * CLIP)
    assert not_finite == 1


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
