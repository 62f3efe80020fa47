"""Gradients of linear models in coordinates that an aggregator sent: no record moves the sum by
more than its clip norm, and no bit of one depends on the rows before it.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import (
    Loss,
    binary_logistic,
    output_gradient,
    softmax_cross_entropy,
    squared_error,
)
from homo_dp.privacy.gradients.row_sums import BELOW
from homo_dp.privacy.linear_rows import LinearTraining, linear_layer, transformed_rows
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.privacy.sampling.samplers import PoissonSampler
from tests.privacy.broken_training import NoClip, with_optimizer
from tests.privacy.training_parts import PrivateLoop, exact_sum, flat, reference_sum

ROWS, WIDTH = 40, 5
# the largest norms of gradients at the outputs: |sigmoid - y| <= 1, and |p - e_y|^2 = sum p^2 - 2
# p_y + 1 <= 2
MOST = {binary_logistic: 1.0, softmax_cross_entropy: math.sqrt(2.0)}


def linear_sum(
    model: nn.Module,
    loss: Loss,
    features: Tensor,
    labels: Tensor,
    clip_norm: float,
    transform: Tensor | None = None,
    *,
    row_norm: float | None = None,
    declared: int = ROWS,
    kind: Callable[..., PrivateLoop] = PrivateLoop,
    physical_batch_size: int | None = None,
) -> Tensor:
    """The sum that would be noised: weights and coordinates come after the rows were made ready,
    as they do in a round.
    """
    rows = LinearTraining(model, loss, features, labels, row_norm=row_norm)
    private = kind(
        rows.module,
        torch.optim.SGD(rows.module.parameters(), lr=1.0),
        rows.loss,
        rows.features,
        rows.labels,
        sampler=PoissonSampler(len(features), 1.0, declared),
        noise_multiplier=1.0,
        max_grad_norm=clip_norm,
        noise=SeededNoise(0),
        release="hand_out",
        private_sum=PrivateSum(rows.module.weight.numel(), clip_norm, 1.0, declared),
        physical_batch_size=physical_batch_size,
    )
    rows.set_round(dict(model.state_dict()), transform)
    return exact_sum(private)


def made(
    loss: Loss,
    features: Tensor,
    labels: Tensor,
    clip_norm: float,
    row_norm: float | None = None,
    centres: Tensor | None = None,
    kind: Callable[..., PrivateLoop] = PrivateLoop,
) -> Tensor:
    """The sum that would be noised, with weights and coordinates as an aggregator may choose
    them.
    """
    outputs = 1 if loss is binary_logistic else 3
    generator = torch.Generator().manual_seed(3)
    module = nn.Sequential(nn.Linear(WIDTH, outputs))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 50)
    transform = centres
    if centres is None and row_norm is None:
        transform = torch.randn(WIDTH + 1, WIDTH + 1, generator=generator) * 1000
    return linear_sum(
        module, loss, features, labels, clip_norm, transform, row_norm=row_norm, kind=kind
    )


def table(classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, WIDTH, generator=generator) * 9, torch.randint(
        0, classes, (ROWS,), generator=generator
    )


@pytest.mark.parametrize("loss", [binary_logistic, softmax_cross_entropy])
def test_a_record_moves_the_sum_by_at_most_the_clip_norm(loss: Loss) -> None:
    features, labels = table(2 if loss is binary_logistic else 3)
    whole = made(loss, features, labels, clip_norm=0.5)
    moved = [
        float(
            (
                whole
                - made(
                    loss,
                    torch.cat([features[:i], features[i + 1 :]]),
                    torch.cat([labels[:i], labels[i + 1 :]]),
                    0.5,
                )
            ).norm()
        )
        for i in range(ROWS)
    ]
    assert max(moved) <= 0.5
    assert max(moved) > 0.49  # the bound is met: these rows are far longer than it


@pytest.mark.parametrize(
    "centres",
    [[0.0, 0.5, 0.5, 0.2, 0.0, 0.3], [9.0, -1e9, 0, 0, 0, 1e9], [math.inf, 0, 0, 0, 0, 1]],
)
def test_around_any_centres_a_record_moves_the_sum_by_at_most_the_clip_norm(
    centres: list[float],
) -> None:
    features, labels = table(2)
    axes = torch.tensor(centres)
    whole = made(binary_logistic, features, labels, 0.5, 3.0, axes)
    assert whole.isfinite().all()
    moved = [
        float(
            (whole - made(binary_logistic, *_without(i, features, labels), 0.5, 3.0, axes)).norm()
        )
        for i in range(ROWS)
    ]
    assert max(moved) <= 0.5


def test_rows_are_taken_around_the_centres() -> None:
    features, labels = table(2)
    axes, turn = torch.tensor([0.0, 0.5, 0.5, 0.2, 0.0, 0.3]), torch.eye(WIDTH + 1)
    turn[-1] = torch.cat([-axes[:-1], axes[-1:]])
    around = made(binary_logistic, features, labels, 0.5, 3.0, axes)
    assert torch.allclose(around, made(binary_logistic, features, labels, 0.5, 3.0, turn))


def _without(place: int, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    kept = torch.arange(len(features)) != place
    return features[kept], labels[kept]


@pytest.mark.parametrize("loss", [binary_logistic, softmax_cross_entropy])
def test_rows_alone_bound_the_gradient(loss: Loss) -> None:
    features, labels = table(2 if loss is binary_logistic else 3)
    bound = 2.0 * MOST[loss]
    whole = made(loss, features, labels, clip_norm=100.0, row_norm=2.0)
    for i in range(ROWS):
        rest = made(
            loss,
            torch.cat([features[:i], features[i + 1 :]]),
            torch.cat([labels[:i], labels[i + 1 :]]),
            100.0,
            2.0,
        )
        assert float((whole - rest).norm()) <= bound


def test_without_clipping_the_attack_sees_more() -> None:
    features, labels = table(2)
    whole, rest = (
        made(
            binary_logistic,
            features[first:],
            labels[first:],
            0.5,
            kind=with_optimizer(NoClip),
        )
        for first in (0, 1)
    )
    assert float((whole - rest).norm()) > 0.5


def test_residuals_of_softmax_reach_their_bound() -> None:
    worst = output_gradient(softmax_cross_entropy, torch.tensor([[80.0, -80.0]]), torch.tensor([1]))
    assert math.isclose(float(worst.norm()), MOST[softmax_cross_entropy], rel_tol=1e-6)


def test_a_row_that_is_not_finite_adds_nothing() -> None:
    features, labels = table(2)
    spoilt = features.clone()
    spoilt[0, 0] = math.nan
    assert torch.equal(
        made(binary_logistic, spoilt, labels, 0.5),
        made(binary_logistic, features[1:], labels[1:], 0.5),
    )


def test_networks_are_not_linear() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    assert linear_layer(network) is None
    with pytest.raises(PrivacyError, match="needs a linear model"):
        LinearTraining(network, binary_logistic, torch.zeros(3, 2), torch.zeros(3))


def _cancelling(width: int, outputs: int, seed: int) -> tuple[Tensor, Tensor]:
    """A row, and weights within what parties accept whose product with it is rounding alone."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.rand(width, generator=generator) * 2 - 1
    weights = torch.zeros(outputs, width)
    weights[0] = (torch.rand(width, generator=generator) * 2 - 1) * 1e6
    for _ in range(3):
        weights[0] -= (
            weights[0].double() @ row.double() / (row.double() @ row.double()) * row.double()
        ).float()
    return row, weights.clamp(-1e6, 1e6)


@pytest.mark.parametrize("by_transform", [False, True])
@pytest.mark.parametrize(("width", "outputs"), [(30, 2), (104, 2), (105, 3)])
def test_where_a_row_stands_does_not_move_what_it_adds(
    width: int, outputs: int, by_transform: bool
) -> None:
    """Float32 products round a row by its place, and one row less moved all others: the sum by
    15 to 85 C.
    """
    count, worst = 2001, 0.0
    for seed in range(4):
        row, weights = _cancelling(width, outputs, seed)
        features = torch.zeros(count, width)
        features[seed::4] = row
        clip_norm = float(row.norm()) * 1.5
        totals = []
        for kept in (features, features[1:], features[2:]):
            module = nn.Linear(width, outputs)
            with torch.no_grad():
                module.weight.copy_(torch.zeros_like(weights) if by_transform else weights)
                module.bias.zero_()
            transform = None
            if by_transform:
                transform = torch.zeros(width + 1, width + 1)
                transform[:width, :outputs] = weights.t()
            labels = torch.zeros(len(kept)).long()
            found = linear_sum(
                module,
                softmax_cross_entropy,
                kept.clone(),
                labels,
                clip_norm,
                transform,
                declared=count,
            )
            totals.append(found / clip_norm)
        worst = max(
            worst, float((totals[0] - totals[1]).norm()), float((totals[0] - totals[2]).norm()) / 2
        )
    assert worst <= 1


def crafted_sum(
    features: Tensor, loss: Loss, outputs: int, clip_norm: float, physical_batch_size: int | None
) -> Tensor:
    """Weights and coordinates under which rows with each number twice give nothing but what
    rounding leaves.
    """
    generator = torch.Generator().manual_seed(5)
    half = features.shape[1] // 2
    order = torch.randperm(2 * half, generator=generator)
    module = nn.Linear(2 * half, outputs)
    weights = torch.randn(outputs, half, generator=generator) * 3e5
    turned = torch.randn(half, 2 * half + 1, generator=generator) * 3e5
    with torch.no_grad():
        module.weight.copy_(torch.cat([weights, -weights], dim=1)[:, order])
        module.bias.zero_()
    return linear_sum(
        module,
        loss,
        features[:, order],
        torch.zeros(len(features)) if outputs == 1 else torch.zeros(len(features)).long(),
        clip_norm,
        torch.cat([torch.cat([turned, -turned])[order], torch.zeros(1, 2 * half + 1)]),
        declared=1000,
        physical_batch_size=physical_batch_size,
    )


@pytest.mark.parametrize(
    ("loss", "outputs"), [(binary_logistic, 1), (squared_error, 1), (softmax_cross_entropy, 3)]
)
@pytest.mark.parametrize("clip_norm", [1e-12, 1e-10, 1.0])
@pytest.mark.parametrize("most", [None, 100])
def test_what_rounding_leaves_of_a_row_does_not_depend_on_the_rows_before_it(
    loss: Loss, outputs: int, clip_norm: float, most: int | None
) -> None:
    """A clip norm as small as rounding makes whole gradients of it, in directions that are all
    alike at best.
    """
    half = torch.rand(801, 50, generator=torch.Generator().manual_seed(4))
    features = torch.cat([half, half], dim=1)
    whole = crafted_sum(features, loss, outputs, clip_norm, most)
    for gone in (0, 1, 2, 5, 400, 800):
        rest = crafted_sum(
            torch.cat([features[:gone], features[gone + 1 :]]), loss, outputs, clip_norm, most
        )
        assert float((whole - rest).norm()) <= clip_norm


def test_coordinates_in_which_a_row_is_not_finite_silence_that_row_alone() -> None:
    features = torch.ones(4, 2, dtype=torch.float64)
    features[1] = 1e306
    sums = []
    for rows in (features, features[[0, 2, 3]]):
        module = nn.Linear(2, 1)
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        labels = torch.ones(len(rows)) * 5
        sums.append(
            linear_sum(module, squared_error, rows, labels, 1.0, torch.eye(3) * 1e6, declared=4)
        )
    assert sums[0].isfinite().all()
    assert torch.equal(sums[0], sums[1])


@pytest.mark.parametrize("width", [3, 9, 17, 31, 64, 101])
@pytest.mark.parametrize("count", [2, 33, 801, 5000])
def test_a_row_has_the_same_bits_wherever_it_stands(width: int, count: int) -> None:
    """Rows that cancel under the coordinates: what is left is how a product rounds."""
    generator = torch.Generator().manual_seed(width)
    half = torch.randn(width // 2, width, generator=generator) * 1e6
    transform = torch.cat([half, half, torch.full((width - 2 * len(half), width), 1e-6)])
    values = torch.randn(count, len(half), generator=generator)
    rows = torch.cat([values, -values, torch.ones(count, width - 2 * len(half))], dim=1)
    order = torch.randperm(width, generator=generator)
    rows, transform = rows[:, order], transform[order]
    whole = transformed_rows(rows, transform)
    for gone in {0, 1, count // 2, count - 1}:
        kept = torch.arange(count) != gone
        assert torch.equal(transformed_rows(rows[kept], transform), whole[kept])


def test_the_product_is_that_of_the_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, transform = (
        torch.randn(70, 5, generator=generator),
        torch.randn(5, 5, generator=generator),
    )
    assert torch.allclose(transformed_rows(rows, transform), rows.double() @ transform.double())
    assert transformed_rows(rows[:0], transform).shape == (0, 5)


def test_a_row_that_is_not_finite_there_becomes_zeros() -> None:
    rows = torch.ones(3, 2, dtype=torch.float64)
    rows[1] = 1e306
    transformed = transformed_rows(rows, torch.eye(2) * 1e6)
    assert transformed.tolist() == [[1e6, 1e6], [0.0, 0.0], [1e6, 1e6]]
    assert transformed_rows(rows, torch.tensor([math.inf, 1.0])).tolist() == [[0.0, 0.0]] * 3


# Against autograd


def reference_in(
    model: nn.Linear, loss: Loss, rows: Tensor, labels: Tensor, transform: Tensor, clip_norm: float
) -> Tensor:
    """Gradients of ``model`` by autograd, row by row, each taken to other coordinates, clipped and
    added up, in float64.
    """
    total = torch.zeros(model.out_features, transform.shape[1], dtype=torch.float64)
    for row in range(len(rows)):
        found = torch.autograd.grad(
            loss(model(rows[row : row + 1]), labels[row : row + 1]).sum(), list(model.parameters())
        )
        gradient = torch.cat([part.reshape(model.out_features, -1) for part in found], dim=1)
        moved = gradient @ transform
        total += moved * min(1.0, BELOW * clip_norm / float(moved.norm())) if moved.any() else moved
    return total.reshape(-1)


@pytest.mark.parametrize("singular", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("loss", "outputs"), [(binary_logistic, 1), (squared_error, 1), (softmax_cross_entropy, 3)]
)
def test_the_sum_is_that_of_gradients_by_autograd_in_these_coordinates(
    loss: Loss, outputs: int, bias: bool, singular: bool
) -> None:
    """Of rows that are clipped and rows that are not."""
    torch.manual_seed(4)
    model = nn.Linear(WIDTH, outputs, bias=bias).double()
    features = torch.randn(ROWS, WIDTH).double()
    labels = torch.arange(ROWS) % (3 if outputs == 3 else 2)
    width = WIDTH + bias
    transform = torch.randn(width, width).double()
    if singular:
        transform[:, 2:] = transform[:, :1] * torch.arange(2.0, width)
        assert int(torch.linalg.matrix_rank(transform)) == 2
    norms = [
        float(
            reference_in(model, loss, features[i : i + 1], labels[i : i + 1], transform, 1e9).norm()
        )
        for i in range(ROWS)
    ]
    clip_norm = sorted(norms)[ROWS // 2]
    found = linear_sum(model, loss, features, labels, clip_norm, transform)
    expected = reference_in(model, loss, features, labels, transform, clip_norm)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6 * clip_norm * ROWS)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("flattened", [True, False])
def test_in_the_columns_own_coordinates_it_is_the_gradient_of_the_model(
    bias: bool, flattened: bool
) -> None:
    """Under the names and with the shapes of its weights."""
    torch.manual_seed(5)
    layer = nn.Linear(6, 3, bias=bias).double()
    model = nn.Sequential(nn.Flatten(), layer) if flattened else layer
    features = torch.randn(ROWS, *((2, 3) if flattened else (6,))).double()
    labels = torch.arange(ROWS) % 3
    expected = reference_sum(model, softmax_cross_entropy, features, labels, 0.5)
    rows = LinearTraining(model, softmax_cross_entropy, features, labels)
    named = rows.named(linear_sum(model, softmax_cross_entropy, features, labels, 0.5))
    assert {name: part.shape for name, part in named.items()} == {
        name: parameter.shape for name, parameter in model.named_parameters()
    }
    found = flat([named[name] for name, _ in model.named_parameters()])
    torch.testing.assert_close(found, flat(expected), rtol=1e-5, atol=1e-5)


def test_weights_and_coordinates_of_a_round_are_those_of_the_round() -> None:
    """Nothing of the rounds before is left in what was made ready once."""
    torch.manual_seed(6)
    model = nn.Linear(WIDTH, 1).double()
    features, labels = torch.randn(ROWS, WIDTH).double(), torch.arange(ROWS) % 2
    rows = LinearTraining(model, binary_logistic, features, labels)
    private = PrivateLoop(
        rows.module,
        torch.optim.SGD(rows.module.parameters(), lr=1.0),
        rows.loss,
        rows.features,
        rows.labels,
        sampler=PoissonSampler(ROWS, 1.0),
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        release="hand_out",
        private_sum=PrivateSum(rows.module.weight.numel(), 0.5, 1.0, ROWS),
    )
    for number in range(4):
        with torch.no_grad():
            model.weight.mul_(-2.0)
        transform = torch.randn(WIDTH + 1, WIDTH + 1).double() if number % 2 == 0 else None
        if transform is not None:
            used = transform
        rows.set_round(dict(model.state_dict()), transform)
        expected = reference_in(model, binary_logistic, features, labels, used, 0.5)
        torch.testing.assert_close(exact_sum(private), expected, rtol=1e-5, atol=1e-4)
        assert not bool(rows.module.weight.any())
