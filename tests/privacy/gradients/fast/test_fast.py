"""The fast path: the clipped sums of one row at a time for every layer it takes, and a reason where it takes none."""

import copy
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.gradients.fast.convolution import FastConvolution
from homo_dp.privacy.gradients.losses import (
    Loss,
    binary_logistic,
    output_gradient,
    per_sample,
    softmax_cross_entropy,
    squared_error,
)
from homo_dp.privacy.training.sgd import is_plain_sgd, step_optimizer
from tests.privacy.training_parts import flat, middle_norm, reference_sum, step_sum, training

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")


class Tempered(nn.Module):
    """An activation that the package has never heard of."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2.0 * torch.sigmoid(2.0 * inputs) - 1.0


def _frozen(module: nn.Module, name: str) -> nn.Module:
    module.get_parameter(name).requires_grad_(False)
    return module


LINEAR: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: nn.Linear(6, 3),
    "no bias": lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)),
    "named": lambda: nn.Sequential(OrderedDict(hidden=nn.Linear(6, 5), between=nn.Sigmoid(), output=nn.Linear(5, 3))),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Sequential(nn.Linear(5, 3))),
    "activations": lambda: nn.Sequential(
        nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 5), nn.ELU(), nn.Linear(5, 5), nn.LeakyReLU(), nn.Linear(5, 3)
    ),
    "own activation": lambda: nn.Sequential(nn.Linear(6, 5), Tempered(), nn.Linear(5, 3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)),
    "layer norm first": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)),
    "layer norm without bias": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8, bias=False), nn.Linear(8, 3)),
    "fixed norm": lambda: nn.Sequential(nn.LayerNorm(6, elementwise_affine=False), nn.Linear(6, 3)),
    "group norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 3)),
    "frozen weight": lambda: _frozen(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), "2.weight"),
    "frozen bias": lambda: _frozen(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), "0.bias"),
    "frozen layer": lambda: _frozen(
        _frozen(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), "0.bias"), "0.weight"
    ),
}
IMAGES: dict[str, Callable[[], nn.Module]] = {
    "one channel": lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 7 * 6, 3)),
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
        nn.Conv2d(2, 4, 1), nn.Conv2d(4, 3, 3, dilation=2, padding=2), nn.Flatten(), nn.Linear(216, 3)
    ),
    "same": lambda: nn.Sequential(nn.Conv2d(2, 3, 5, padding="same", bias=False), nn.Flatten(), nn.Linear(216, 3)),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 3)
    ),
    "pools": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.MaxPool2d(2, 1, padding=1),
        nn.Conv2d(6, 5, 2),
        nn.MaxPool2d((2, 3), ceil_mode=True),
        nn.Flatten(),
        nn.Linear(40, 3),
    ),
    "layer norm": lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.LayerNorm([3, 7, 6]), nn.Flatten(), nn.Linear(126, 3)),
    "frozen kernel": lambda: _frozen(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(126, 3)), "0.weight"),
    "flat": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3)),
    "rows of pixels": lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3)),
    "sequence norm": lambda: nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(72, 3)),
    "long sequence": lambda: nn.Sequential(nn.Linear(8, 1), nn.Flatten(), nn.Linear(18, 3)),
}
WORDS: dict[str, Callable[[], nn.Module]] = {
    "flat": lambda: nn.Sequential(nn.Embedding(4, 5), nn.Flatten(), nn.Linear(30, 3)),
    "padding": lambda: nn.Sequential(nn.Embedding(4, 5, padding_idx=0), nn.Flatten(), nn.Linear(30, 3)),
    "mean of a bag": lambda: nn.Sequential(nn.EmbeddingBag(4, 5), nn.Linear(5, 3)),
    "sum of a bag": lambda: nn.Sequential(nn.EmbeddingBag(4, 5, mode="sum"), nn.Linear(5, 3)),
    "bag with padding": lambda: nn.Sequential(nn.EmbeddingBag(4, 5, padding_idx=1), nn.Linear(5, 3)),
    "sequence": lambda: nn.Sequential(nn.Embedding(4, 5), nn.Linear(5, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)),
}


def _same_as_reference(module: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> None:
    """In float64, so that any difference of method would show; half of the rows are clipped."""
    module = module.double()
    clip_norm = middle_norm(module, loss, features, labels)
    for physical_batch_size in (None, 5):
        trained = copy.deepcopy(module)
        expected = reference_sum(trained, loss, features, labels, clip_norm)
        private = training(
            trained, loss, features, labels, clip_norm=clip_norm, physical_batch_size=physical_batch_size
        )
        assert (private.grad_sample_mode, private.mode_reason) == ("fast", "every trainable layer is supported")
        torch.testing.assert_close(flat(step_sum(private)), flat(expected), rtol=1e-5, atol=2e-6 * clip_norm * 12)
        assert 0.3 < private.last_fraction_clipped < 0.7


@pytest.mark.parametrize("name", LINEAR)
def test_vectors(name: str) -> None:
    torch.manual_seed(1)
    _same_as_reference(LINEAR[name](), softmax_cross_entropy, torch.randn(12, 6).double() * 2, torch.arange(12) % 3)


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    torch.manual_seed(1)
    _same_as_reference(IMAGES[name](), softmax_cross_entropy, torch.randn(12, 2, 9, 8).double(), torch.arange(12) % 3)


@pytest.mark.parametrize("name", WORDS)
def test_words_that_repeat_in_a_row(name: str) -> None:
    torch.manual_seed(1)
    _same_as_reference(WORDS[name](), softmax_cross_entropy, torch.randint(0, 4, (12, 6)), torch.arange(12) % 3)


def test_one_word_a_row() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    _same_as_reference(module, softmax_cross_entropy, torch.arange(12) % 5, torch.arange(12) % 3)


def test_kernels_too_large_to_hold_are_multiplied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homo_dp.privacy.gradients.fast.convolution._HELD", 10)
    monkeypatch.setattr("homo_dp.privacy.gradients.fast.convolution._PIECE", 500)
    torch.manual_seed(1)
    for name in ("two layers", "stride", "dilation", "same"):
        _same_as_reference(
            IMAGES[name](), softmax_cross_entropy, torch.randn(12, 2, 9, 8).double(), torch.arange(12) % 3
        )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "loss", [binary_logistic, squared_error, lambda outputs, labels: (outputs - labels[:, None]).abs()]
)
def test_one_output_with_any_loss(bias: bool, loss: Loss) -> None:
    torch.manual_seed(1)
    labels = (torch.arange(12) % 2).double()
    features = torch.randn(12, 7).double() * torch.linspace(0.1, 3, 12).double()[:, None]
    _same_as_reference(nn.Linear(7, 1, bias=bias), loss, features, labels)
    _same_as_reference(
        nn.Sequential(nn.Flatten(), nn.Linear(7, 1, bias=bias)), loss, features.reshape(12, 7, 1), labels
    )


def test_dropout_is_drawn_once_for_forward_and_backward() -> None:
    module = nn.Sequential(nn.Linear(50, 40), nn.Dropout(0.5), nn.Linear(40, 1, bias=False)).double()
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
        (nn.Sequential(nn.Conv2d(2, 2, 2, groups=2), nn.Flatten()), "0: Conv2d has no fast gradient"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")), "0: Conv2d has no fast gradient"),
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
    assert chain_of(nn.Sequential(layer, nn.Tanh(), layer))[1] == "a parameter is shared between layers"
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
        training(module, softmax_cross_entropy, torch.randn(5, 3), torch.arange(5) % 3, grad_sample_mode="fast")


def test_the_chain_keeps_nothing_after_a_step() -> None:
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 42, 3))
    private = training(module, softmax_cross_entropy, torch.randn(6, 2, 9, 8), torch.arange(6) % 3)
    private.run(1)
    convolution = private._gradients._gradients._chain._trained[0]  # type: ignore[attr-defined]
    assert isinstance(convolution, FastConvolution)
    assert not hasattr(convolution, "_inputs")
    assert convolution._rows is None


@pytest.mark.parametrize("loss", [binary_logistic, squared_error])
@pytest.mark.parametrize("shape", [(9,), (9, 1)])
def test_known_output_gradients_are_those_of_autograd(loss: Loss, shape: tuple[int, ...]) -> None:
    outputs, labels = torch.randn(shape), (torch.arange(9) % 2).float()
    known = output_gradient(loss, outputs, labels)
    torch.testing.assert_close(known, output_gradient(lambda o, y: loss(o, y), outputs, labels))


def test_the_softmax_gradient_is_that_of_autograd() -> None:
    outputs, labels = torch.randn(9, 4) * 5, torch.arange(9) % 4
    known = output_gradient(softmax_cross_entropy, outputs, labels)
    torch.testing.assert_close(known, output_gradient(lambda o, y: softmax_cross_entropy(o, y), outputs, labels))


def test_losses_check_their_shapes() -> None:
    with pytest.raises(PrivacyError, match="one logit a row"):
        binary_logistic(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(PrivacyError, match="one label per output"):
        squared_error(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(PrivacyError, match="not one loss per row"):
        per_sample(torch.zeros(3, 2), 3)
    with pytest.raises(PrivacyError, match="not one loss per row"):
        per_sample(torch.zeros(()), 1)


def test_plain_sgd_is_told_from_sgd_that_does_more() -> None:
    weight = nn.Parameter(torch.ones(3))
    assert is_plain_sgd(torch.optim.SGD([weight], lr=0.1))
    assert not is_plain_sgd(torch.optim.SGD([weight], lr=0.1, momentum=0.9))
    assert not is_plain_sgd(torch.optim.SGD([weight], lr=0.1, weight_decay=0.1))
    assert not is_plain_sgd(torch.optim.SGD([weight], lr=torch.tensor(0.1)))
    assert not is_plain_sgd(torch.optim.Adam([weight], lr=0.1))
    watched = torch.optim.SGD([weight], lr=0.1)
    calls: list[int] = []
    watched.register_step_post_hook(lambda *_: calls.append(1))
    assert not is_plain_sgd(watched)
    weight.grad = torch.ones(3)
    step_optimizer(watched, [weight], [weight.grad])
    assert calls == [1]
    assert weight.tolist() == pytest.approx([0.9] * 3)


@pytest.mark.parametrize("activation", [nn.ELU, nn.ReLU, nn.LeakyReLU])
def test_activations_in_place_are_those_of_a_copy(activation: Callable[..., nn.Module]) -> None:
    torch.manual_seed(1)
    features, labels = torch.randn(12, 6).double(), torch.arange(12) % 3
    features[0] = torch.inf  # so that the batch is passed twice
    for first in ([], [activation(inplace=True)]):
        torch.manual_seed(2)
        module = nn.Sequential(*first, nn.Linear(6, 5), activation(inplace=True), nn.Linear(5, 3)).double()
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
    _same_as_reference(nn.Linear(6, 1), squared_error, features, labels)
    _same_as_reference(nn.Linear(6, 1), squared_error, features[:, :1], labels[:, :1])


class Scaled(nn.Sequential):
    """A chain with a forward of its own around one output."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.square()) * 3  # type: ignore[no-any-return,no-untyped-call]


def test_one_output_inside_code_of_its_own() -> None:
    torch.manual_seed(3)
    watched = nn.Sequential(nn.Linear(6, 1))
    watched.register_forward_hook(lambda module, inputs, outputs: outputs * 3)
    for module in (Scaled(nn.Linear(6, 1)), watched):
        _same_as_reference(module, binary_logistic, torch.randn(12, 6).double(), torch.arange(12) % 2)


class Block(nn.Module):
    """Code of its own: a residual, functional activations, a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
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
    _same_as_reference(
        nn.Sequential(Block(), nn.ReLU(inplace=True), nn.Linear(6, 3)), softmax_cross_entropy, rows, labels
    )
    _same_as_reference(
        _frozen(Network(), "first.bias"), softmax_cross_entropy, torch.randn(12, 2, 9, 8).double(), labels
    )
    _same_as_reference(Sentence(), softmax_cross_entropy, torch.randint(0, 4, (12, 6)), labels)


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


@pytest.mark.parametrize("channels", [1, 8])
def test_kernels_multiplied_again_keep_the_bound_where_terms_cancel(
    monkeypatch: pytest.MonkeyPatch, channels: int
) -> None:
    """Without the allowance for rounding, one row in a few hundred of these adds up to four times the bound."""
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


def _sized_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.flatten(1).sum(1) * labels


@pytest.mark.parametrize(("outputs", "positions"), [(1, 0), (2, 0), (2, 3)])
@pytest.mark.parametrize(("inputs", "slope"), [(1e-24, 1e18), (1e-22, 1e17), (1e17, 1e-23), (1e19, 1e-21)])
def test_products_of_tiny_and_huge_numbers_keep_the_bound(
    inputs: float, slope: float, outputs: int, positions: int
) -> None:
    """The square of the tiny one is zero in float32, while its product with the other is far above the bound."""
    module = nn.Linear(4, outputs, bias=False)
    features = torch.full((1, positions, 4) if positions else (1, 4), inputs)
    private = training(module, _sized_loss, features, torch.full((1,), slope), clip_norm=1e-9)
    assert private.grad_sample_mode == "fast"
    private._sum_clipped(torch.arange(1))
    assert float(private._sum.double().norm()) <= 1e-9
    assert float(private._sum.double().norm()) > 0 or inputs > 1e18
