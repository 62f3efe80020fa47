"""Clipped sums of the fast mode: filling rows count for nothing, and rows that are not finite
leave, are counted, and leave no trace on the others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.engine import passes, preparation
from homo_dp.privacy.engine.loader import CurrentBlock
from homo_dp.privacy.engine.passes import (
    ChainPasses,
    OneOutputPasses,
    fast_chain,
    passes_of,
)
from homo_dp.privacy.engine.release import ClippedSum
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.batch_invariance import Places
from homo_dp.privacy.gradients.losses import Loss, binary_logistic, squared_error
from homo_dp.privacy.noise.source import SeededNoise
from tests.privacy.training_parts import (
    PrivateLoop,
    draw_batches,
    exact_sum,
    flat,
    reference_sum,
    training,
)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def one_output(columns: int = 7, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(columns, 1, bias=bias)


def summed(
    module: nn.Module,
    features: Tensor,
    labels: Tensor,
    loss: Loss = binary_logistic,
    clip_norm: float = 1.0,
    **options: Any,
) -> tuple[Tensor, Tensor, int]:
    """The clipped sum, the norms, and the rows that were left out."""
    private = training(module, loss, features, labels, clip_norm=clip_norm, **options)
    assert private.grad_sample_mode == "fast"
    return exact_sum(private), private.last_norms, private.rows_not_finite


# Layers


def test_one_row_moves_the_sum_by_at_most_the_clip_norm_and_fillers_by_nothing() -> None:
    features, labels = torch.randn(8, 3) * 50, torch.ones(8)
    whole = summed(network(), features, labels, squared_error, 0.1)[0]
    rest = summed(network(), features[1:], labels[1:], squared_error, 0.1)[0]  # filled up to eight
    assert 0.09 < float((whole - rest).norm()) <= 0.1
    expected = flat(reference_sum(network(), squared_error, features[1:], labels[1:], 0.1))
    torch.testing.assert_close(rest, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_adds_nothing_and_is_counted(bad: float) -> None:
    features = torch.randn(8, 3)
    spoilt = torch.cat([features, torch.full((1, 3), bad)])
    labels = torch.ones(9)
    found, _, not_finite = summed(network(), spoilt, labels, squared_error, 0.1)
    expected = summed(network(), features, labels[:8], squared_error, 0.1)[0]
    torch.testing.assert_close(found, expected)
    assert not_finite == 1
    nothing_else = summed(network(), spoilt[-1:], labels[:1], squared_error, 0.1)
    assert not nothing_else[0].any()


def test_a_gradient_of_another_shape_is_refused() -> None:
    class Odd:
        def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
            return outputs.squeeze(1)

        def output_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
            return outputs.new_ones(len(outputs), 2)

    made = passes_of(network(), fast_chain(network()), Odd(), torch.randn(4, 3), CurrentBlock())
    number, _ = made.forward(torch.randn(4, 3))
    with pytest.raises(PrivacyError, match="one gradient per output"):
        made.backward_of(number, Odd(), torch.ones(4))


def test_a_backward_pass_is_that_of_the_last_forward_pass_and_a_sum_is_taken_once() -> None:
    made = passes_of(network(), fast_chain(network()), squared_error, None, CurrentBlock())
    first, _ = made.forward(torch.randn(4, 3))
    second, _ = made.forward(torch.randn(4, 3))
    with pytest.raises(PrivacyError, match="one forward and one backward pass"):
        made.backward_of(first, squared_error, torch.ones(4))
    made.backward_of(second, squared_error, torch.ones(4))
    with pytest.raises(PrivacyError, match="one forward and one backward pass"):
        made.backward_of(second, squared_error, torch.ones(4))
    clipped = ClippedSum(made.parameters, made.columns)
    made.take_clipped_sum(1.0, clipped, accumulate=False)
    with pytest.raises(ValueError, match="no gradients since the last step"):
        made.take_clipped_sum(1.0, clipped, accumulate=False)


def test_a_linear_model_with_one_output_has_passes_of_its_own() -> None:
    rows = torch.randn(3, 4)
    kinds = [
        (nn.Linear(4, 1), binary_logistic, rows, OneOutputPasses),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 1)), squared_error, rows, OneOutputPasses),
        (nn.Linear(4, 1), None, rows, OneOutputPasses),
        (nn.Linear(4, 1), lambda outputs, labels: outputs.squeeze(1), rows, ChainPasses),
        (nn.Linear(4, 1), squared_error, torch.randn(3, 2, 4), ChainPasses),
        (nn.Linear(4, 2), squared_error, rows, ChainPasses),
    ]
    for module, loss, features, kind in kinds:
        found = passes_of(module, fast_chain(module), loss, features, CurrentBlock())  # type: ignore[arg-type]
        assert type(found) is kind


# One output


def table(rows: int, columns: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    scale = torch.linspace(0.01, 5, rows)[:, None]
    return torch.randn(rows, columns, generator=generator) * scale, (torch.arange(rows) % 2).float()


def forget_lengths(private: PrivateLoop) -> None:
    """Let norms of rows be made anew in every batch, as those of rows that change are."""
    assert private.wrapped.passes._lengths is not None
    private.wrapped.passes._lengths = None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", [binary_logistic, squared_error])
@pytest.mark.parametrize("columns", [1, 4, 7, 100])
@pytest.mark.parametrize("kept", [True, False])
def test_sums_and_norms_are_those_of_the_rows(
    kept: bool, columns: int, loss: Loss, bias: bool
) -> None:
    """Whatever was in the sum, and which rows were drawn, before."""
    rows, labels = table(300, columns)
    module = one_output(columns, bias)
    private = training(module, loss, rows, labels, noise=SeededNoise(1))
    if not kept:
        forget_lengths(private)
    double = copy.deepcopy(module).double()
    for numbers in (
        torch.arange(0, 300, 3),
        torch.arange(64),
        torch.tensor([7]),
        torch.arange(300),
        torch.arange(5, 280),
    ):
        draw_batches(private, numbers)
        found = exact_sum(private)
        expected = reference_sum(double, loss, rows[numbers].double(), labels[numbers], 1.0)
        torch.testing.assert_close(found, flat(expected), rtol=1e-12, atol=1e-12)
        lengths = [
            flat(reference_sum(double, loss, rows[at].double(), labels[at], 1e12)).norm()
            for at in torch.split(numbers, 1)
        ]
        norms = private.last_norms
        torch.testing.assert_close(norms, torch.stack(lengths), rtol=1e-12, atol=1e-12)


def test_blocks_of_a_batch_add_up() -> None:
    rows, labels = table(300)
    found, norms, _ = summed(one_output(), rows, labels, physical_batch_size=100)
    expected, others, _ = summed(one_output(), rows, labels)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(norms, others, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e18, 1e37])
@pytest.mark.parametrize("clip_norm", [1e-12, 1.0])
@pytest.mark.parametrize("bias", [True, False])
def test_a_row_adds_at_most_the_clip_norm(size: float, clip_norm: float, bias: bool) -> None:
    rows = torch.tensor([[size, -0.77 * size]])
    total, _, _ = summed(
        one_output(2, bias),
        rows,
        torch.tensor([1e30]),
        squared_error,
        clip_norm,
        noise_multiplier=1.0,
    )
    assert 0 < float(total.norm()) <= clip_norm


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["row", "label"])
def test_a_batch_with_a_row_that_is_not_finite_is_that_of_the_others(
    value: float, where: str
) -> None:
    rows, labels = table(40)
    expected = summed(one_output(), rows[1:], labels[1:])[0]
    if where == "row":
        rows[0, 2] = value
    else:
        labels[0] = value
    found, _, not_finite = summed(one_output(), rows, labels)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not_finite == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1.0, 1e30])
def test_a_row_that_is_not_finite_changes_no_bit_of_the_others(value: float, size: float) -> None:
    """However long they are: had another path with other bounds taken over, long rows would have
    come or gone.
    """
    rows, labels = torch.randn(64, 7) * size, (torch.arange(64) % 2).float()
    expected, norms, _ = summed(one_output(), rows[1:], labels[1:])
    rows[0, 3] = value
    found, others, not_finite = summed(one_output(), rows, labels)
    assert torch.equal(norms, others[1:])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not_finite == 1


def test_the_batch_after_one_that_was_not_finite_is_a_batch_like_others() -> None:
    rows, labels = table(64)
    rows[32:] = math.nan
    private = training(one_output(), binary_logistic, rows, labels)
    seen = []
    for numbers in (torch.arange(32), torch.arange(32, 64), torch.arange(32)):
        draw_batches(private, numbers)
        seen.append((exact_sum(private), private.last_norms))
    assert all(map(torch.equal, seen[0], seen[2]))
    assert not seen[1][0].any()
    assert private.rows_not_finite == 32


def test_what_fills_up_a_batch_counts_for_nothing() -> None:
    """A batch is filled up with copies of a row, here of one that is not finite."""
    rows, labels = table(33)
    rows[0] = math.nan
    found, norms, not_finite = summed(one_output(), rows, labels)
    assert len(norms) == 33
    assert not_finite == 1
    expected = summed(one_output(), rows[1:], labels[1:])[0]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("piece", [1, 32])
def test_a_size_that_rounds_by_position_is_taken_in_blocks(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, labels = table(96)
    expected, others, _ = summed(one_output(), rows, labels)
    honest = passes._numbers(binary_logistic)

    def by_position(module: nn.Module, features: Tensor, given: Tensor) -> list[Tensor]:
        count = len(features)
        moved = torch.arange(count) % 3 if count > piece else torch.zeros(count)
        return [
            values + moved.reshape(-1, *[1] * (values.dim() - 1))
            for values in honest(module, features, given)
        ]

    assert Places(one_output(), by_position).at_once(96, rows, labels) == piece
    monkeypatch.setattr(preparation, "_places", lambda module, *_: Places(module, by_position))
    private = training(one_output(), binary_logistic, rows, labels)
    sizes: list[int] = []
    private.wrapped.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    found = exact_sum(private)
    assert sizes == [piece] * (96 // piece)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(private.last_norms, others, rtol=1e-12, atol=1e-12)


def test_rows_of_float64_that_are_finite_but_too_long_are_left_out() -> None:
    """Their norms in float64 are infinite."""
    rows, labels = table(40)
    rows = rows.double()
    expected = summed(one_output().double(), rows[1:], labels[1:])[0]
    rows[0] = 1e200
    found, _, not_finite = summed(one_output().double(), rows, labels)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not_finite == 1


@pytest.mark.parametrize("loss", [binary_logistic, squared_error])
@pytest.mark.parametrize(
    ("label", "weight"), [(1e300, 1.0), (1.7e308, 1.0), (0.0, math.inf), (0.0, -math.inf)]
)
def test_a_row_that_is_not_finite_does_not_decide_what_others_add(
    loss: Loss, label: float, weight: float
) -> None:
    """Rows of an infinite gradient are left out: had the first row decided whether, 193 C went
    with it.
    """
    # without the first no row of zeros fills up the batch, which infinity makes NaN
    rows = torch.full((193, 4), 1e10)
    rows[0, 0] = math.nan
    dtype = torch.float64 if label else torch.float32
    labels = torch.full((193,), label, dtype=dtype)
    sums = []
    for start in (0, 1):
        layer = nn.Linear(4, 1)
        private = training(
            layer, loss, rows[start:], labels[start:], noise_multiplier=1.0, noise=SeededNoise(1)
        )
        nn.init.constant_(layer.weight, weight)  # as a step at a huge rate leaves it
        sums.append(exact_sum(private))
    assert float((sums[0] - sums[1]).norm()) <= 1.0


def test_rows_that_change_afterwards_do_not_pass_the_bound() -> None:
    """Clipped by a length of before, the sum would be 1e6 long."""
    rows, labels = torch.ones(1, 2), torch.zeros(1)
    private = training(one_output(2), binary_logistic, rows, labels)
    first = exact_sum(private)
    rows.mul_(1e6)
    for total in (first, exact_sum(private)):
        assert float(total.norm()) <= 1.0


def slices() -> dict[str, Callable[[Tensor], Tensor]]:
    """Columns of wider tables, as people cut features out of what they read."""
    return {
        "first columns": lambda wide: wide[:, :7],
        "last columns": lambda wide: wide[:, 1:],
        "every second row": lambda wide: wide[::2, :7],
        "transposed": lambda wide: wide.t().contiguous().t()[:, :7],
    }


@pytest.mark.parametrize("cut", slices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_that_are_a_part_of_a_wider_table_are_no_more_than_that_part(
    cut: str, dtype: torch.dtype
) -> None:
    """Eight columns, as many as rows have that are made ready with the 1 for their bias."""
    wide = torch.randn(40, 8, generator=torch.Generator().manual_seed(3)).to(dtype) * 9
    features = slices()[cut](wide)
    labels = (torch.arange(len(features)) % 2).float()
    found, norms, _ = summed(one_output().to(dtype), features, labels)
    expected, others, _ = summed(one_output().to(dtype), features.clone(), labels)
    assert torch.equal(found, expected)
    assert torch.equal(norms, others)


def test_one_record_less_changes_no_bit_of_what_others_add() -> None:
    """Every row but the first stands elsewhere, in the table and in the batch; the norms are
    those of before.
    """
    for most in (None, 96):
        rows, labels = table(500, 30)
        totals, norms = [], []
        for start in (0, 1):
            total, found, _ = summed(
                one_output(30),
                rows[start:].clone(),
                labels[start:].clone(),
                physical_batch_size=most,
            )
            totals.append(total)
            norms.append(found[1 - start :])
        assert torch.equal(norms[0], norms[1])
        assert float((totals[0] - totals[1]).norm()) <= 1.0


@pytest.mark.parametrize("most", [None, 40])
@pytest.mark.parametrize("bad", [False, True])
def test_training_is_the_same_without_lengths_that_are_kept(most: int | None, bad: bool) -> None:
    rows, labels = table(200)
    if bad:
        rows[10] = math.nan

    def trained(kept: bool) -> PrivateLoop:
        private = training(
            one_output(),
            binary_logistic,
            rows,
            labels,
            sample_rate=0.5,
            noise_multiplier=1.0,
            noise=SeededNoise(3),
            physical_batch_size=most,
        )
        if not kept:
            forget_lengths(private)
        private.run(20)
        return private

    found, expected = trained(kept=True), trained(kept=False)
    for name, weight in found.weights().items():
        torch.testing.assert_close(weight, expected.weights()[name])
    torch.testing.assert_close(found.last_norms, expected.last_norms, equal_nan=True)
    assert found.rows_not_finite == expected.rows_not_finite
    assert bool(found.rows_not_finite) == bad
