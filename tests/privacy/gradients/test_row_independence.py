"""Rows that meet only in large batches, at large values or in a backward pass: found when
training starts.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import Loss, softmax_cross_entropy, squared_error
from homo_dp.privacy.gradients.row_independence import FIRST_STEPS, RowsAlone
from tests.privacy.engine_parts import ErrorLoss, made_private, one_epoch, own_collate
from tests.privacy.training_parts import flat, reference_sum, step_sum, training

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")

MODES = ("fast", "hooks", "functorch", "ghost")


class _Meeting(nn.Module):
    """Two layers, with the mean of the batch taken off between them where ``when`` says so."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.first, self.last, self.when = nn.Linear(4, 4), nn.Linear(4, 1), when

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        if {"many": len(inputs) > 8, "large": bool(inputs.max() > 10), "never": False}[self.when]:
            hidden = hidden - hidden.mean(0)
        outputs: Tensor = self.last(hidden)
        return outputs


class _Backward(torch.autograd.Function):
    """Nothing to be seen in the values; the gradients of all rows meet."""

    @staticmethod
    def forward(context: Any, losses: Tensor, how: str) -> Tensor:
        context.how = how
        return losses.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        given = gradients[0]
        return (
            given.sum().expand_as(given) if context.how == "sum" else given.max().expand_as(given)
        ), None


def _loss(how: str) -> Loss:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        losses: Tensor = _Backward.apply(squared_error(outputs, labels), how)  # type: ignore[no-untyped-call]
        return losses

    return loss


class _KnownMeeting:
    """A loss whose closed form divides by the number of rows, which its values do not show."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return squared_error(outputs, labels)

    def output_gradient(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return squared_error.output_gradient(outputs, labels) / len(outputs)


def table(rows: int = 40) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(rows, 4), torch.randn(rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["many", "large"])
def test_rows_that_meet_in_large_batches_or_at_large_values_are_found_on_made_up_rows(
    mode: str, when: str
) -> None:
    features, labels = table()
    with pytest.raises(PrivacyError, match="mixes rows: in a batch of 40 rows a row's loss"):
        training(_Meeting(when), squared_error, features, labels, grad_sample_mode=mode)
    training(_Meeting("never"), squared_error, features, labels, grad_sample_mode=mode).run(3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", [_loss("sum"), _loss("max"), _KnownMeeting()])
def test_rows_that_meet_in_the_backward_pass_of_a_loss_are_found(mode: str, loss: Loss) -> None:
    features, labels = table()
    with pytest.raises(PrivacyError, match=r"mixes rows: .* gradient"):
        training(nn.Sequential(nn.Linear(4, 1)), loss, features, labels, grad_sample_mode=mode)


class _Special(_Meeting):
    """Rows meet where one of them says so, as no made-up row does."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        if bool((inputs == 7.25).any()):
            hidden = hidden - hidden.mean(0)
        outputs: Tensor = self.last(hidden)
        return outputs


@pytest.mark.parametrize("piece", [None, 16])
def test_rows_that_meet_on_real_rows_alone_are_found_before_a_step_is_taken(
    piece: int | None,
) -> None:
    features, labels = table()
    private = training(
        _Special("never"), squared_error, features, labels, physical_batch_size=piece
    )
    private.run(1)
    features[30, 2] = 7.25
    private = training(
        _Special("never"), squared_error, features, labels, physical_batch_size=piece
    )
    before = flat([parameter.detach().clone() for parameter in private.module.parameters()])
    with pytest.raises(PrivacyError, match=f"in a batch of {piece or 40} rows"):
        private.run(1)
    assert torch.equal(
        before, flat([parameter.detach() for parameter in private.module.parameters()])
    )
    assert private.steps_done == 0


def test_only_first_steps_with_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = table()
    seen: list[int] = []
    plain = RowsAlone._compare

    def noted(self: RowsAlone, rows: Tensor, targets: Tensor) -> None:
        seen.append(len(rows))
        plain(self, rows, targets)

    monkeypatch.setattr(RowsAlone, "_compare", noted)
    training(_Meeting("never"), squared_error, features, labels).run(5)
    assert seen == [40] * (1 + FIRST_STEPS)
    seen.clear()
    training(nn.Linear(4, 1), squared_error, features, labels).run(2)
    training(
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), squared_error, features, labels
    ).run(2)
    assert not seen, "layers and losses of torch and ours are known to treat rows alone"


class _ClampedBackward(torch.autograd.Function):
    """The gradient of each row is clamped by itself, so it is not linear in the row's weight."""

    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(-0.01, 0.01)


class _Clamped(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        clamped: Tensor = _ClampedBackward.apply(super().forward(inputs))  # type: ignore[no-untyped-call]
        return clamped


def test_a_backward_pass_that_is_not_linear_may_treat_rows_alone() -> None:
    features, labels = table()
    model = _Clamped(4, 1)
    alone = RowsAlone(model, squared_error)
    alone.compare_made_up(features, labels, 40)
    assert alone.compare_step(model, [(features, labels)])


class _Noisy(nn.Module):
    """Dropout as a layer, a constant in float32, and values that only just stay apart."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.drop, self.last, self.dtype = (
            nn.Linear(4, 16),
            nn.Dropout(0.5),
            nn.Linear(16, 1),
            dtype,
        )

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.drop(self.first(inputs).relu())
        outputs: Tensor = self.last(hidden @ torch.eye(16, dtype=self.dtype))
        return outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_models_that_treat_rows_alone_pass_whatever_their_values(dtype: torch.dtype) -> None:
    features, labels = table(300)
    features[:5] *= 1e6
    features[5:9] *= 1e-6
    features[9, 0] = torch.nan
    module = _Noisy(dtype).to(dtype)
    drawn = torch.get_rng_state()
    alone = RowsAlone(module, squared_error)
    assert alone.compare_step(module, [(features.to(dtype), labels.to(dtype))])
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(layer.training for layer in module.modules())
    training(module, squared_error, features.to(dtype), labels.to(dtype), sample_rate=0.5).run(3)


def test_comparing_changes_nothing_of_what_is_summed() -> None:
    features, labels = table()
    module = _Meeting("never")
    expected = flat(reference_sum(module, squared_error, features, labels, 1.0))
    torch.testing.assert_close(
        flat(step_sum(training(module, squared_error, features, labels))),
        expected,
        rtol=1e-4,
        atol=1e-4,
    )


class _Criterion(nn.Module):
    """An Opacus criterion with a backward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.reduction = "mean"

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = _loss("max")(outputs, labels)
        return losses.mean() if self.reduction == "mean" else losses


def test_an_opacus_loop_is_compared_too() -> None:
    features, labels = table()
    for when in ("many", "large"):
        with pytest.raises(PrivacyError, match="mixes rows: in a batch of 40"):
            made_private(_Meeting(when), features, labels, grad_sample_mode="hooks")
    features[30, 2] = 7.25
    for mode in MODES:
        parts = made_private(_Special("never"), features, labels, grad_sample_mode=mode)
        with pytest.raises(PrivacyError, match="mixes rows: in a batch of 40"):
            one_epoch(*parts)
        one_epoch(*made_private(_Meeting("never"), features, labels, grad_sample_mode=mode))
    with pytest.raises(PrivacyError, match="mixes rows"):
        made_private(
            nn.Linear(4, 1), features, labels, grad_sample_mode="ghost", criterion=_Criterion()
        )
    parts = made_private(
        nn.Linear(4, 1),
        features,
        labels,
        grad_sample_mode="ghost",
        criterion=_Criterion(),
        collate_fn=own_collate,
    )
    with pytest.raises(PrivacyError, match="the criterion mixes rows"):
        one_epoch(*parts)
    one_epoch(
        *made_private(
            nn.Linear(4, 1), features, labels, grad_sample_mode="ghost", criterion=ErrorLoss()
        )
    )


def test_classes_and_class_numbers_are_compared() -> None:
    features = torch.randn(30, 4)
    labels = torch.arange(30) % 3

    def weighted(outputs: Tensor, labels: Tensor) -> Tensor:
        return softmax_cross_entropy(outputs, labels) * (labels + 1.0)

    def counted(outputs: Tensor, labels: Tensor) -> Tensor:
        shares = (
            torch.bincount(labels, minlength=3)[labels]
            if len(labels) > 10
            else torch.ones(len(labels))
        )
        return softmax_cross_entropy(outputs, labels) / shares

    training(nn.Linear(4, 3), weighted, features, labels).run(2)
    with pytest.raises(PrivacyError, match="mixes rows"):
        training(nn.Linear(4, 3), counted, features, labels)
