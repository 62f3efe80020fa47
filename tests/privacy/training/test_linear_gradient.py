"""The gradient of a linear model: no record moves the sum by more than its clip norm, whatever the coordinates are."""

import math

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.gradients.losses import (
    Loss,
    binary_logistic,
    output_gradient,
    softmax_cross_entropy,
    squared_error,
)
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.privacy.training.linear_gradient import LinearGradient, linear_layer, most_residual

ROWS, WIDTH = 40, 5


def made(
    loss: Loss,
    features: Tensor,
    labels: Tensor,
    clip_norm: float,
    row_norm: float | None = None,
    centres: Tensor | None = None,
) -> Tensor:
    """The sum that would be noised, with weights and coordinates as an aggregator may choose them."""
    outputs = 1 if loss is binary_logistic else 3
    generator = torch.Generator().manual_seed(3)
    module = nn.Sequential(nn.Linear(WIDTH, outputs))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 50)
    private_sum = PrivateSum(outputs * (WIDTH + 1), clip_norm, 1.0, ROWS)
    found = LinearGradient(
        module,
        loss,
        features,
        labels,
        private_sum=private_sum,
        declared=ROWS,
        noise=SeededNoise(0),
        row_norm=row_norm,
    )
    if centres is not None:
        found.turn(centres)
    elif row_norm is None:
        found.turn(torch.randn(WIDTH + 1, WIDTH + 1, generator=generator) * 1000)
    return found._sum()


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
    bound = 2.0 * most_residual(loss)
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


def test_without_clipping_the_attack_sees_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "homo_dp.privacy.training.linear_gradient.clip_factors",
        lambda norms, _: torch.ones_like(norms),
    )
    features, labels = table(2)
    moved = made(binary_logistic, features, labels, 0.5) - made(
        binary_logistic, features[1:], labels[1:], 0.5
    )
    assert float(moved.norm()) > 0.5


def test_residuals_of_softmax_reach_their_bound() -> None:
    worst = output_gradient(softmax_cross_entropy, torch.tensor([[80.0, -80.0]]), torch.tensor([1]))
    assert math.isclose(float(worst.norm()), most_residual(softmax_cross_entropy), rel_tol=1e-6)


def test_a_row_that_is_not_finite_adds_nothing() -> None:
    features, labels = table(2)
    spoilt = features.clone()
    spoilt[0, 0] = math.nan
    assert torch.equal(
        made(binary_logistic, spoilt, labels, 0.5),
        made(binary_logistic, features[1:], labels[1:], 0.5),
    )


def test_networks_are_not_linear() -> None:
    assert linear_layer(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))) is None


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
    """Float32 products round a row by its place, and one row less moved all others: the sum by 15 to 85 C."""
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
            private_sum = PrivateSum(outputs * (width + 1), clip_norm, 1.0, count)
            labels = torch.zeros(len(kept)).long()
            found = LinearGradient(
                module,
                softmax_cross_entropy,
                kept.clone(),
                labels,
                private_sum=private_sum,
                declared=count,
                noise=SeededNoise(0),
            )
            if by_transform:
                transform = torch.zeros(width + 1, width + 1)
                transform[:width, :outputs] = weights.t()
                found.turn(transform)
            totals.append(found._sum() / clip_norm)
        worst = max(
            worst, float((totals[0] - totals[1]).norm()), float((totals[0] - totals[2]).norm()) / 2
        )
    assert worst <= 1


def crafted_sum(features: Tensor, loss: Loss, outputs: int, clip_norm: float) -> Tensor:
    """Weights and coordinates under which rows with each number twice give nothing but what rounding leaves."""
    generator = torch.Generator().manual_seed(5)
    half = features.shape[1] // 2
    order = torch.randperm(2 * half, generator=generator)
    module = nn.Linear(2 * half, outputs)
    weights = torch.randn(outputs, half, generator=generator) * 3e5
    turned = torch.randn(half, 2 * half + 1, generator=generator) * 3e5
    with torch.no_grad():
        module.weight.copy_(torch.cat([weights, -weights], dim=1)[:, order])
        module.bias.zero_()
    found = LinearGradient(
        module,
        loss,
        features[:, order],
        torch.zeros(len(features)) if outputs == 1 else torch.zeros(len(features)).long(),
        private_sum=PrivateSum(outputs * (2 * half + 1), clip_norm, 1.0, 1000),
        declared=len(features),
        noise=SeededNoise(0),
    )
    found.turn(torch.cat([torch.cat([turned, -turned])[order], torch.zeros(1, 2 * half + 1)]))
    return found._sum()


@pytest.mark.parametrize(
    ("loss", "outputs"), [(binary_logistic, 1), (squared_error, 1), (softmax_cross_entropy, 3)]
)
@pytest.mark.parametrize("clip_norm", [1e-12, 1e-10, 1.0])
def test_what_rounding_leaves_of_a_row_does_not_depend_on_the_rows_before_it(
    loss: Loss, outputs: int, clip_norm: float
) -> None:
    """A clip norm as small as rounding makes whole gradients of it, in directions that are all alike at best."""
    half = torch.rand(801, 50, generator=torch.Generator().manual_seed(4))
    features = torch.cat([half, half], dim=1)
    whole = crafted_sum(features, loss, outputs, clip_norm)
    for gone in (0, 1, 2, 5, 400, 800):
        rest = crafted_sum(
            torch.cat([features[:gone], features[gone + 1 :]]), loss, outputs, clip_norm
        )
        assert float((whole - rest).norm()) <= clip_norm


def test_coordinates_in_which_a_row_is_not_finite_silence_that_row_alone() -> None:
    features = torch.ones(4, 2, dtype=torch.float64)
    features[1] = 1e306
    sums = []
    for rows in (features, features[[0, 2, 3]]):
        found = LinearGradient(
            nn.Linear(2, 1),
            squared_error,
            rows,
            torch.ones(len(rows)) * 5,
            private_sum=PrivateSum(3, 1.0, 1.0, 4),
            declared=4,
            noise=SeededNoise(0),
        )
        found.load_weights({"weight": torch.zeros(1, 2), "bias": torch.zeros(1)})
        found.turn(torch.eye(3) * 1e6)
        sums.append(found._sum())
    assert sums[0].isfinite().all()
    assert torch.equal(sums[0], sums[1])
