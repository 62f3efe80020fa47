"""Convolutions on the fast path, also where kernels are too large to be held or their terms
cancel.
"""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.gradients.losses import softmax_cross_entropy
from tests.privacy.gradients.fast.parts import frozen, same_as_reference

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


IMAGES: dict[str, Callable[[], nn.Module]] = {
    "one channel": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 7 * 6, 3)
    ),
    "two layers": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 5, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(45, 3),
    ),
    "stride": lambda: nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0)), nn.Flatten(), nn.Linear(140, 3)
    ),
    "dilation": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 1),
        nn.Conv2d(4, 3, 3, dilation=2, padding=2),
        nn.Flatten(),
        nn.Linear(216, 3),
    ),
    "same": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 5, padding="same", bias=False), nn.Flatten(), nn.Linear(216, 3)
    ),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.GroupNorm(3, 6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(54, 3),
    ),
    "pools": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.MaxPool2d(2, 1, padding=1),
        nn.Conv2d(6, 5, 2),
        nn.MaxPool2d((2, 3), ceil_mode=True),
        nn.Flatten(),
        nn.Linear(40, 3),
    ),
    "layer norm": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.LayerNorm([3, 7, 6]), nn.Flatten(), nn.Linear(126, 3)
    ),
    "frozen kernel": lambda: frozen(
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(126, 3)), "0.weight"
    ),
    "flat": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3)),
    "rows of pixels": lambda: nn.Sequential(
        nn.Linear(8, 4), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3)
    ),
    "sequence norm": lambda: nn.Sequential(
        nn.Linear(8, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(72, 3)
    ),
    "long sequence": lambda: nn.Sequential(nn.Linear(8, 1), nn.Flatten(), nn.Linear(18, 3)),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    torch.manual_seed(1)
    same_as_reference(
        IMAGES[name](),
        softmax_cross_entropy,
        torch.randn(12, 2, 9, 8).double(),
        torch.arange(12) % 3,
    )


def test_kernels_too_large_to_hold_are_multiplied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homo_dp.privacy.gradients.fast.convolution._HELD", 10)
    monkeypatch.setattr("homo_dp.privacy.gradients.fast.convolution._PIECE", 500)
    torch.manual_seed(1)
    for name in ("two layers", "stride", "dilation", "same"):
        same_as_reference(
            IMAGES[name](),
            softmax_cross_entropy,
            torch.randn(12, 2, 9, 8).double(),
            torch.arange(12) % 3,
        )


@pytest.mark.parametrize("channels", [1, 8])
def test_kernels_multiplied_again_keep_the_bound_where_terms_cancel(
    monkeypatch: pytest.MonkeyPatch, channels: int
) -> None:
    """Without the allowance for rounding, one row in a few hundred of these adds up to four
    times the bound.
    """
    monkeypatch.setattr("homo_dp.privacy.gradients.fast.convolution._HELD", 0)
    torch.manual_seed(0)
    module = nn.Conv2d(channels, 4, 3, bias=False)
    chain, _ = chain_of(module)
    assert chain is not None
    total = torch.zeros_like(module.weight)
    for _ in range(200):
        gradient = (torch.randn(1, 4, 10, 10) * 1e4).round()
        gradient -= gradient.mean((2, 3), keepdim=True)
        with torch.no_grad():
            chain.forward(torch.full((1, channels, 12, 12), 1e6))
            chain.write_clipped_sum(chain.backward(gradient), 1.0, [total], accumulate=False)
        assert float(total.norm()) <= 1.0
