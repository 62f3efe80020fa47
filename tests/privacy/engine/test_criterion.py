"""Criteria that make_private returns: one loss a row inside, the loss of the loop outside, and
nothing of the rows that fill up a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.engine.criterion import FilledForward, RowCriterion, WithReduction, rows_loss
from homo_dp.privacy.engine.loader import CurrentBlock
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import binary_logistic, squared_error
from tests.privacy.engine_parts import ErrorLoss
from tests.privacy.training_parts import QUIET, flat, reference_sum, step_sum, training

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")

MODES = ("fast", "hooks", "functorch", "ew", "ghost")


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def table(rows: int = 13) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(rows, 3), torch.randn(rows)


def test_criteria_of_torch_are_asked_for_one_loss_a_row_and_left_as_they_were() -> None:
    criterion = nn.MSELoss(reduction="mean")
    loss = rows_loss(criterion)
    assert loss(torch.ones(3, 1), torch.zeros(3, 1)).shape == (3, 1)
    assert criterion.reduction == "mean"
    with pytest.raises(RuntimeError):
        loss(torch.ones(3), torch.zeros(4))
    assert criterion.reduction == "mean"
    assert rows_loss(squared_error) is squared_error
    assert WithReduction(squared_error, "sum")(torch.ones(2), torch.zeros(2)).tolist() == [1.0, 1.0]


CRITERIA: dict[str, Callable[[], Any]] = {
    "known": lambda: squared_error,
    "function": lambda: lambda outputs, labels: (outputs.squeeze(1) - labels).square(),
    "of torch": lambda: ErrorLoss(),
    "in columns": lambda: ErrorLoss(columns=True),
}


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [13, 16])
def test_the_clipped_sum_is_that_of_one_row_after_the_other_for_any_criterion(
    mode: str, criterion: str, rows: int
) -> None:
    """Thirteen rows are filled up."""
    module, (features, labels) = network(), table(rows)
    expected = flat(reference_sum(module, squared_error, features, labels, 1.0))
    made = CRITERIA[criterion]()
    private = training(module, made, features, labels, grad_sample_mode=mode)
    torch.testing.assert_close(flat(step_sum(private)), expected, rtol=1e-3, atol=1e-4)
    assert len(private.last_norms) == rows


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("mode", MODES)
def test_a_loss_has_the_value_that_the_loop_expects(mode: str, reduction: str) -> None:
    """For logs of the loop's own; it is not private, and never sent."""
    module, (features, labels) = network(), table()
    losses = squared_error(module(features), labels).detach()
    expected = losses.mean() if reduction == "mean" else losses.sum()
    private = training(
        module, squared_error, features, labels, grad_sample_mode=mode, loss_reduction=reduction
    )
    block = next(iter(private.loader))
    value = private.criterion(private.wrapped(block[0]), block[1])
    torch.testing.assert_close(value.detach(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_sums_are_not_divided_where_the_criterion_sums(mode: str) -> None:
    module, (features, labels) = network(), table()
    expected = flat(reference_sum(module, squared_error, features, labels, 1.0))
    private = training(
        module, squared_error, features, labels, grad_sample_mode=mode, loss_reduction="sum"
    )
    private.optimizer.param_groups[0]["lr"] = 1.0
    torch.testing.assert_close(flat(step_sum(private)), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_the_loop_sees_the_rows_of_its_batch_and_no_more(mode: str) -> None:
    module, (features, labels) = network(), table()
    expected = module(features).detach()
    private = training(module, squared_error, features, labels, grad_sample_mode=mode)
    block = next(iter(private.loader))
    assert [len(part) for part in block] == [13, 13]
    outputs = private.wrapped(block[0])
    torch.testing.assert_close(outputs.detach(), expected, rtol=1e-5, atol=1e-6)
    private.wrapped.eval()
    torch.testing.assert_close(private.wrapped(features[:5]).detach(), expected[:5])


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew"])
def test_a_loss_that_is_not_one_a_row_is_refused_while_training_too(mode: str) -> None:
    current = CurrentBlock()
    criterion = RowCriterion(
        FilledForward(network(), current), lambda outputs, _: outputs.mean(), "mean"
    )
    with pytest.raises(PrivacyError, match="not one loss per row"):
        criterion(torch.ones(3, 1), torch.ones(3))


def test_ghost_clipping_passes_again_without_rows_that_are_not_finite() -> None:
    """Of a block, in the middle of others."""
    module, (features, labels) = network(), table(40)
    good = torch.arange(40) % 9 != 4
    expected = flat(reference_sum(module, squared_error, features[good], labels[good], 1.0))
    features[~good, 1] = torch.inf
    for most in (None, 8):
        private = training(
            module,
            squared_error,
            features,
            labels,
            grad_sample_mode="ghost",
            physical_batch_size=most,
        )
        before = private.weights()
        found = flat(step_sum(private))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)
        assert private.rows_not_finite == int((~good).sum())
        private.load_weights(before)
        private.close()


@pytest.mark.parametrize("mode", MODES)
def test_dropout_is_drawn_for_the_rows_of_a_batch_with_one_mask_each_way(mode: str) -> None:
    """Half of 4,096 columns: a weight gets a gradient where its column was kept, and only there."""
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4096, 1, bias=False))
    nn.init.zeros_(module.get_parameter("1.weight"))
    private = training(
        module,
        binary_logistic,
        torch.ones(1, 4096),
        torch.ones(1),
        clip_norm=1e6,
        noise_multiplier=QUIET * 1e-4,
        grad_sample_mode=mode,
    )
    moved = step_sum(private)[0].abs()
    kept = moved > 0.5
    assert 1700 < int(kept.sum()) < 2400, "2,048 with a standard deviation of 32"
    torch.testing.assert_close(moved[kept], torch.ones(int(kept.sum())), rtol=1e-2, atol=1e-2)
    assert float(moved[~kept].abs().max()) < 1e-2
