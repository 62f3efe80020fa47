"""Rows that meet are found by trying: in layers, losses, labels, backward passes and by their
number.
"""

import pytest
import torch
from opacus.layers import DPMultiheadAttention
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import Loss, softmax_cross_entropy
from homo_dp.privacy.gradients.probing import probe_rows, size_of_outputs
from homo_dp.privacy.gradients.validation import check_module, compatible_module
from tests.privacy.gradients.modules import Counting


class Centred(nn.Module):
    """Subtracts the mean of the batch without being called BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs - inputs.mean(0))
        return outputs


class Masked(nn.Module):
    """A constant that is no weight: allowed, because it is not persistent and the forward pass
    only reads it.
    """

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("mask", torch.tensor([True, False, True, True]), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs * self.mask)
        return outputs


def test_rows_that_meet_are_found_whatever_the_layer_is_called() -> None:
    features, labels = torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(PrivacyError, match="Centred mixes rows"):
        probe_rows(Centred(), softmax_cross_entropy, features, labels)
    with pytest.raises(PrivacyError, match="mixes rows"):
        probe_rows(
            nn.Sequential(nn.Linear(4, 2), nn.Softmax(dim=0)),
            softmax_cross_entropy,
            features,
            labels,
        )
    with pytest.raises(PrivacyError, match="buffer seen is written"):
        probe_rows(Counting(persistent=False), softmax_cross_entropy, features, labels)


def test_a_single_row_is_probed_as_any_table_is() -> None:
    features, labels = torch.randn(1, 4), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(PrivacyError, match="Centred mixes rows"):
        probe_rows(Centred(), softmax_cross_entropy, features, labels)
    probe_rows(nn.Linear(4, 2), softmax_cross_entropy, features, labels)
    probe_rows(
        nn.Sequential(nn.Embedding(5, 3), nn.Flatten()),
        size_of_outputs,
        torch.tensor([[0, 1]]),
        labels,
    )
    probe_rows(nn.Linear(4, 2), softmax_cross_entropy, features[:0], labels[:0])


def test_rows_of_indices_are_probed_too() -> None:
    class CentredWords(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            vectors: Tensor = self.words(inputs).mean(1)
            return vectors - vectors.mean(0)

    indices = torch.tensor([[0, 1], [2, 3], [4, 4], [1, 2]])
    with pytest.raises(PrivacyError, match="mixes rows"):
        probe_rows(CentredWords(), size_of_outputs, indices, torch.zeros(4))


def test_modules_that_keep_rows_apart_pass_dropout_and_constants_too() -> None:
    features, labels = torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)
    state = torch.get_rng_state()
    for module in (nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)), Masked()):
        check_module(module)
        probe_rows(module, softmax_cross_entropy, features, labels)
    before = torch.get_rng_state()
    probe_rows(nn.Sequential(nn.Dropout(0.5)), size_of_outputs, features, labels)
    assert torch.equal(before, torch.get_rng_state()), (
        "the probe must not move the random state of the caller"
    )
    assert not torch.equal(before, state), "building layers did move it, so the comparison can fail"


def test_indices_stored_as_floats_are_probed_with_rows_of_the_table() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            vectors: Tensor = self.words(inputs.long()).sum(1)
            return vectors

    indices = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 4.0]])
    probe_rows(Words(), size_of_outputs, indices, torch.zeros(3))


class Logarithms(nn.Module):
    """A layer for positive numbers; made-up rows are not, and give NaN or an error."""

    def __init__(self, *, strict: bool, centred: bool) -> None:
        super().__init__()
        self.inner, self.strict, self.centred = nn.Linear(3, 2), strict, centred

    def forward(self, inputs: Tensor) -> Tensor:
        if self.strict and bool((inputs <= 0).any()):
            raise ValueError("give positive numbers")
        values = inputs.log()
        outputs: Tensor = self.inner(values - values.mean(0) if self.centred else values)
        return outputs


@pytest.mark.parametrize("strict", [False, True])
def test_models_of_positive_numbers_are_probed_with_rows_of_the_table(strict: bool) -> None:
    rows = torch.rand(9, 3) + 0.1
    probe_rows(Logarithms(strict=strict, centred=False), size_of_outputs, rows, torch.zeros(9))
    with pytest.raises(PrivacyError, match="mixes rows"):
        probe_rows(Logarithms(strict=strict, centred=True), size_of_outputs, rows, torch.zeros(9))


def test_rows_that_meet_before_a_layer_of_zeros_are_found() -> None:
    module = Logarithms(strict=False, centred=True)
    nn.init.zeros_(module.inner.weight)
    nn.init.zeros_(module.inner.bias)
    with pytest.raises(PrivacyError, match="mixes rows"):
        probe_rows(module, size_of_outputs, torch.rand(9, 3) + 0.1, torch.zeros(9))
    assert not bool(module.inner.weight.any() or module.inner.bias.any())


class KeepsMeans(nn.Module):
    """Writes the mean of what it sees into a parameter, which is sent as a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.seen = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.copy_(inputs.mean(0))
        outputs: Tensor = self.layer(inputs)
        return outputs


def test_weights_that_a_forward_pass_writes_are_found() -> None:
    features, labels = torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(PrivacyError, match="parameter seen is written by the forward pass"):
        probe_rows(KeepsMeans(), softmax_cross_entropy, features, labels)
    for layer in (nn.Embedding(5, 4, max_norm=1.0), nn.EmbeddingBag(5, 4, max_norm=1.0)):
        with pytest.raises(
            PrivacyError, match=r"0: Embedding.* max_norm=1\.0 rewrites .* use max_norm=None"
        ):
            check_module(nn.Sequential(layer, nn.Linear(4, 2)))
    check_module(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)))


def test_rows_that_meet_in_the_backward_pass_alone_are_found() -> None:
    class Straight(nn.Module):
        """Adds the mean of the batch to the gradient and nothing to the value."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs = self.layer(inputs)
            shared: Tensor = outputs.mean(0)
            mixed: Tensor = outputs + (shared - shared.detach())
            return mixed

    features, labels = torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(
        PrivacyError, match="Straight mixes rows: changing one row changed another row's gradient"
    ):
        probe_rows(Straight(), softmax_cross_entropy, features, labels)


def test_a_table_that_starts_with_equal_rows_is_probed_with_others() -> None:
    class CentredWord(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            vectors: Tensor = self.words(inputs)
            return vectors - vectors.mean(0)

    words = torch.tensor([1, 1, 1, 1, 1, 1, 4])
    for indices in (words, words.double()):
        module = CentredWord() if indices is words else nn.Sequential(_Long(), CentredWord())
        with pytest.raises(PrivacyError, match="mixes rows"):
            probe_rows(module, size_of_outputs, indices, torch.zeros(7))


class _Long(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        if bool((inputs != inputs.long()).any()):
            raise IndexError("not an index")
        return inputs.long()


def test_sparse_gradients_are_probed_too() -> None:
    indices = torch.tensor([[0, 1], [2, 3], [4, 4], [1, 2]])
    probe_rows(
        nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten()),
        size_of_outputs,
        indices,
        torch.zeros(4),
    )


def _by_label_count(outputs: Tensor, labels: Tensor) -> Tensor:
    """A class-balanced loss that counts the labels of the batch: one label changes the weight of
    other rows.
    """
    counts = torch.bincount(labels, minlength=2)
    return softmax_cross_entropy(outputs, labels) / counts[labels]


def _by_label_spread(outputs: Tensor, labels: Tensor) -> Tensor:
    return softmax_cross_entropy(outputs, labels) * float(labels.float().std(correction=0) + 1)


class TimesRows(nn.Module):
    """Multiplies by the number of rows in the batch: no row sees another, and yet each shows
    that another is there.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 2), *layers)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs * len(inputs)


@pytest.mark.parametrize("loss", [_by_label_count, _by_label_spread])
def test_rows_that_meet_in_their_labels_are_found(loss: Loss) -> None:
    features = torch.randn(6, 4)
    for labels in (
        torch.tensor([0, 1, 0, 1, 1, 0]),
        torch.tensor([0, 0, 0, 0, 0, 1]),
        torch.tensor([0, 0, 0, 1]),
    ):
        with pytest.raises(PrivacyError, match="mixes rows"):
            probe_rows(nn.Linear(4, 2), loss, features[: len(labels)], labels)


def test_rows_that_show_how_many_there_are_are_found() -> None:
    features, labels = torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)
    for module in (TimesRows(), TimesRows(nn.Dropout(0.5), nn.Linear(2, 2), nn.Dropout(0.5))):
        with pytest.raises(
            PrivacyError, match="TimesRows mixes rows: leaving one row out changed another row's"
        ):
            probe_rows(module, softmax_cross_entropy, features, labels)
    apart = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2), nn.Dropout(0.5))
    for count in (2, 3, 6):
        probe_rows(apart, softmax_cross_entropy, features[:count], labels[:count])
    assert apart.training


class Turned(nn.Module):
    """Gives its first layer the rows in reverse: every row's output is its own, its gradients
    are not in its place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.first(inputs.flip(0)).flip(0)
        outputs: Tensor = self.second(hidden.tanh())
        return outputs


class TurnedByName(Turned):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.first(input=inputs.flip(0)).flip(0)
        # so that norms cannot be compared
        outputs: Tensor = self.second(hidden.tanh() + torch.randn(len(inputs), 4))
        return outputs


def test_layers_that_get_the_rows_by_name_must_get_them_in_order_too() -> None:
    features, labels = torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(PrivacyError, match="first: is given the rows in another order"):
        probe_rows(TurnedByName(), softmax_cross_entropy, features, labels)


def test_layers_must_get_the_rows_in_order() -> None:
    features, labels = torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(PrivacyError, match="first: is given the rows in another order"):
        probe_rows(Turned(), softmax_cross_entropy, features, labels)
    for fixed in (nn.LSTM(3, 4, batch_first=True), nn.MultiheadAttention(4, 2, batch_first=True)):
        probe_rows(
            OneStep(compatible_module(fixed, fix=True)),
            size_of_outputs,
            torch.randn(6, 5, 4),
            labels,
        )


class OneStep(nn.Module):
    """A sequence layer, asked for its last step."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        attends = isinstance(self.layer, DPMultiheadAttention)
        outputs: Tensor = self.layer(*[inputs] * 3 if attends else [inputs[..., :3]])[0]
        return outputs[:, -1]
