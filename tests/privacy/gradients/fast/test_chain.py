"""The fast path: the clipped sums of one row at a time for every layer it takes, and a reason
where it takes none.
"""

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.gradients.fast.convolution import FastConvolution
from homo_dp.privacy.gradients.losses import softmax_cross_entropy
from tests.privacy.training_parts import flat, reference_sum, step_sum, training

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


def test_dropout_is_drawn_once_for_forward_and_backward() -> None:
    module = nn.Sequential(
        nn.Linear(50, 40), nn.Dropout(0.5), nn.Linear(40, 1, bias=False)
    ).double()
    chain, _ = chain_of(module)
    assert chain is not None
    inputs = torch.randn(32, 50).double()
    with torch.no_grad():
        chain.forward(inputs)
        chain.backward(torch.ones(32, 1).double())
    dropped = chain._trained[0]._gradient == 0  # type: ignore[attr-defined]
    kept_inputs = chain._trained[1]._inputs == 0  # type: ignore[attr-defined]
    assert torch.equal(dropped, kept_inputs)
    assert 400 < int(dropped.sum()) < 880


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.PReLU()), "1: PReLU has no fast gradient"),
        (
            nn.Sequential(nn.Conv2d(2, 2, 2, groups=2), nn.Flatten()),
            "0: Conv2d has no fast gradient",
        ),
        (
            nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")),
            "0: Conv2d has no fast gradient",
        ),
        (nn.Sequential(nn.Conv2d(2, 2, 2, padding="same")), "0: Conv2d has no fast gradient"),
        (nn.Sequential(nn.Embedding(3, 3, max_norm=1.0)), "0: Embedding has no fast gradient"),
        (nn.Sequential(nn.EmbeddingBag(3, 3, mode="max")), "0: EmbeddingBag has no fast gradient"),
        (nn.Sequential(nn.Bilinear(2, 2, 2)), "0: Bilinear has no fast gradient"),
    ],
)
def test_what_it_does_not_take_is_named(module: nn.Module, reason: str) -> None:
    assert chain_of(module) == (None, reason)


def test_shared_parameters_and_hooks_fall_back() -> None:
    layer = nn.Linear(3, 3)
    assert (
        chain_of(nn.Sequential(layer, nn.Tanh(), layer))[1]
        == "a parameter is shared between layers"
    )
    tied = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    assert chain_of(tied)[1] == "a parameter is shared between layers"
    watched = nn.Sequential(nn.Linear(3, 3))
    watched[0].register_forward_hook(lambda module, inputs, outputs: outputs * 2)
    assert chain_of(watched)[1] == "0: Linear has hooks of its own"
    masked = nn.Linear(3, 3)
    masked.weight.register_hook(lambda gradient: gradient * 0)  # type: ignore[no-untyped-call]
    assert chain_of(masked)[1] == "model: Linear has hooks of its own"
    features, labels = torch.randn(10, 3), torch.arange(10) % 3
    expected = reference_sum(tied, softmax_cross_entropy, features, labels, 0.5)
    private = training(tied, softmax_cross_entropy, features, labels, clip_norm=0.5)
    assert private.grad_sample_mode == "hooks"
    torch.testing.assert_close(flat(step_sum(private)), flat(expected), rtol=1e-4, atol=1e-5)


def test_a_subclass_with_its_own_forward_is_not_taken_for_its_parent() -> None:
    class Doubled(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) * 2

    class Residual(nn.Sequential):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) + inputs  # type: ignore[no-any-return,no-untyped-call]

    assert chain_of(nn.Sequential(Doubled(2, 2)))[1] == "0: Doubled has no fast gradient"
    assert chain_of(Residual(nn.Linear(2, 2)))[1] == "model: Residual has no fast gradient"


def test_fast_by_name_on_another_model_is_refused_with_the_reason() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.PReLU())
    with pytest.raises(PrivacyError, match="PReLU has no fast gradient; use grad_sample_mode=auto"):
        training(
            module,
            softmax_cross_entropy,
            torch.randn(5, 3),
            torch.arange(5) % 3,
            grad_sample_mode="fast",
        )


def test_the_chain_keeps_nothing_after_a_step() -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 42, 3)
    )
    private = training(module, softmax_cross_entropy, torch.randn(6, 2, 9, 8), torch.arange(6) % 3)
    private.run(1)
    convolution = private.wrapped.passes._chain._trained[0]
    assert isinstance(convolution, FastConvolution)
    assert not hasattr(convolution, "_inputs")
    assert convolution._rows is None
