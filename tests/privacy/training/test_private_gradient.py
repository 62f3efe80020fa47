"""One private gradient: the weights stay, the sum is bounded and on its grid, the event is that of the sum."""

import pytest
import torch
from torch import nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import binary_logistic
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.privacy.training.private_gradient import PrivateGradient

ROWS, CLIP = 40, 0.5


def made(noise: float, rows: int = ROWS) -> tuple[PrivateGradient, nn.Module]:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    module[0].bias.requires_grad_(False)
    size = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    private_sum = PrivateSum(size, CLIP, noise, ROWS)
    features = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(2))[:rows] * 20
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    found = PrivateGradient(
        module,
        torch.optim.SGD(trained, lr=1.0),
        binary_logistic,
        features,
        torch.ones(rows),
        private_sum=private_sum,
        declared=ROWS,
        noise=SeededNoise(3),
    )
    return found, module


def released(noise: float, rows: int = ROWS) -> torch.Tensor:
    found, module = made(noise, rows)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    found.run(1)
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))
    assert found.released is not None
    return found.released


def test_one_row_moves_the_sum_by_at_most_the_clip_norm() -> None:
    quiet = 1e-6
    moved = float((released(quiet) - released(quiet, ROWS - 1)).norm())
    assert 0.9 * CLIP < moved <= CLIP + 1e-4


def test_the_noise_is_that_of_the_sum_and_so_is_the_event() -> None:
    differences = released(50.0) - released(1e-6)
    assert (
        0.5 < float(differences.std()) / (50.0 * CLIP) < 1.6
    )  # 20 numbers; outside by chance: below 1e-3
    found, _ = made(2.0)
    assert found.event(3) == found.private_sum.event(3)
    found.run(1)
    assert found.applied_sigma == 2.0 * CLIP


def test_parts_have_the_names_of_the_weights_and_zeros_for_frozen_ones() -> None:
    found, module = made(1.0)
    parts = found.parts(torch.arange(1.0, 22.0)[: found.private_sum.dimension])
    assert {name: part.shape for name, part in parts.items()} == {
        name: parameter.shape for name, parameter in module.named_parameters()
    }
    assert not parts["0.bias"].any()
    assert parts["0.weight"].all()


def test_other_coordinates_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"train\.solver=sgd"):
        made(1.0)[0].turn(torch.eye(3))
