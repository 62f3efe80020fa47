"""What an optimiser of an Opacus loop steps: clipped sums only, each once, with noise; ghost
clipping above all.
"""

import contextlib
import math

import opacus
import pytest
import torch
from torch import nn

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import squared_error
from tests.privacy.engine_parts import (
    MODES,
    ErrorLoss,
    made_private,
    one_epoch,
    own_collate,
    small_table,
    sum_of_epoch,
)
from tests.privacy.training_parts import flat, reference_sum

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")


def _attack(engine: opacus.PrivacyEngine) -> float:
    """How far, in units of C, one record moves the clipped sum of 255 when the per-sample loss
    has shape (n, 1).
    """
    sums = []
    for rows in (255, 256):
        module = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(module.weight)
        features = torch.tensor([[0.01, 0.0]]).repeat(256, 1)
        features[-1] = torch.tensor([0.0, 1.0])
        labels = torch.full((256,), 100.0)
        labels[-1] = -0.5
        parts = made_private(
            module,
            features[:rows],
            labels[:rows],
            engine=engine,
            grad_sample_mode="ghost",
            criterion=ErrorLoss(columns=True),
        )
        sums.append(sum_of_epoch(module, parts))
    return float((sums[1] - sums[0]).norm())


@pytest.mark.filterwarnings(
    "ignore:Secure RNG turned off", "ignore:PrivacyEngine detected", "ignore:the dataset changed"
)
def test_ghost_clipping_of_a_loss_in_columns_keeps_the_bound_that_stock_opacus_loses() -> None:
    stock = _attack(opacus.PrivacyEngine(accountant="rdp"))
    assert stock > 100, f"stock Opacus moved by {stock} C only: is this still the attack?"
    assert _attack(PrivacyEngine()) <= 1 + 1e-4


def test_ghost_clipping_and_its_noise_cannot_be_given_different_bounds() -> None:
    module, features, labels = small_table()
    wrapped, optimizer, criterion, _ = made_private(
        module, features, labels, grad_sample_mode="ghost"
    )
    optimizer.max_grad_norm = 0.1
    with pytest.raises(PrivacyError, match=r"max_grad_norm=1\.0 of the module is not 0\.1"):
        criterion(wrapped(features), labels)


def test_ghost_losses_stay_one_number_a_row_through_arithmetic() -> None:
    module, features, labels = small_table()
    wrapped, _, criterion, _ = made_private(module, features, labels, grad_sample_mode="ghost")
    loss = criterion(wrapped(features), labels)
    same = [
        loss * 2.0,
        2.0 * loss,
        loss / 2,
        loss + 1.0,
        1.0 + loss,
        loss - loss,
        1.0 - loss,
        -loss,
        loss + loss,
    ]
    assert {value.loss_per_sample.shape for value in same} == {(24,)}
    with pytest.raises(PrivacyError, match="not one loss per row"):
        loss * torch.ones(24, 1)
    with pytest.raises(PrivacyError, match="not one loss per row"):
        loss + torch.ones(24, 24)


def test_ghost_clipping_steps_only_what_it_clipped() -> None:
    """A plain criterion leaves raw sums in ``p.grad``: stock Opacus takes them for clipped ones."""
    module, features, labels = small_table()
    wrapped, optimizer, criterion, _ = made_private(
        module, features, labels, grad_sample_mode="ghost"
    )
    ErrorLoss()(wrapped(features), labels).backward()
    with pytest.raises(PrivacyError, match="not clipped"):
        optimizer.step()
    optimizer.zero_grad()
    criterion(wrapped(features), labels).backward()
    wrapped.disable_hooks()  # type: ignore[operator]
    ErrorLoss()(wrapped(features), labels).backward()  # on top of the clipped ones
    wrapped.enable_hooks()  # type: ignore[operator]
    with pytest.raises(PrivacyError, match="not clipped"):
        optimizer.step()
    optimizer.zero_grad()
    criterion(wrapped(features), labels).backward()
    optimizer.step()
    with pytest.raises(PrivacyError, match="not clipped"):
        optimizer.step()


def test_ghost_clipping_refuses_a_penalty_inside_the_loss() -> None:
    module, features, labels = small_table()
    wrapped, _, criterion, _ = made_private(module, features, labels, grad_sample_mode="ghost")
    penalty = torch.stack([parameter.square().sum() for parameter in module.parameters()]).sum()
    with pytest.raises(PrivacyError, match="use weight_decay"):
        criterion(wrapped(features), labels) + penalty


def test_ghost_clipping_refuses_a_sum_that_is_not_finite() -> None:
    module, features, labels = small_table()
    features[0, 0] = math.nan
    parts = made_private(module, features, labels, grad_sample_mode="ghost", collate_fn=own_collate)
    with pytest.raises(PrivacyError, match="not finite"):
        one_epoch(*parts)


@pytest.mark.parametrize("mode", MODES)
def test_a_sum_is_released_once(mode: str) -> None:
    """Without zero_grad() the next step would release the last sum again: twice the sensitivity,
    noise for one.
    """
    module, features, labels = small_table()
    first = reference_sum(module, squared_error, features, labels, 1.0)
    wrapped, optimizer, criterion, _ = made_private(
        module, features, labels, grad_sample_mode=mode, lr=24e-4
    )
    before = flat([parameter.detach().clone() for parameter in module.parameters()])
    with contextlib.suppress(ValueError, RuntimeError):  # most refuse
        for _ in range(2):  # steps so small that both have the same gradients
            criterion(wrapped(features), labels).backward()
            optimizer.step()
    moved = (before - flat([parameter.detach() for parameter in module.parameters()])) * 1e4
    assert float(moved.norm()) <= 2.2 * float(flat(first).norm())


@pytest.mark.parametrize("mode", MODES)
def test_layers_unfrozen_later_are_never_stepped_unclipped(mode: str) -> None:
    _, features, labels = small_table()
    features[-1] *= 1000
    sums = []
    for rows in (23, 24):
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(5, 4), nn.LeakyReLU(), nn.Linear(4, 1))
        module[0].requires_grad_(False)
        parts = made_private(module, features[:rows], labels[:rows], grad_sample_mode=mode)
        module[0].requires_grad_(True)
        try:
            sums.append(sum_of_epoch(module, parts))
        except (ValueError, AttributeError):
            return
    assert float((sums[1] - sums[0]).norm()) <= 1 + 1e-4


@pytest.mark.parametrize("mode", MODES)
def test_gradients_that_frozen_layers_already_had_are_dropped(mode: str) -> None:
    module, features, labels = small_table()
    ErrorLoss()(module(features), labels).backward()
    module[0].requires_grad_(False)  # type: ignore[index]
    wrapped, optimizer, criterion, _ = made_private(module, features, labels, grad_sample_mode=mode)
    before = module[0].weight.detach().clone()  # type: ignore[index]
    criterion(wrapped(features), labels).backward()
    optimizer.step()
    assert torch.equal(module[0].weight, before)  # type: ignore[index]


@pytest.mark.parametrize("mode", MODES)
def test_noise_that_a_schedule_takes_to_zero_is_refused(mode: str) -> None:
    module, features, labels = small_table()
    parts = made_private(module, features, labels, grad_sample_mode=mode)
    parts[1].noise_multiplier = 0.0
    with pytest.raises(PrivacyError, match=r"noise_multiplier=0\.0|std=0\.0"):
        one_epoch(*parts)


def test_ghost_refuses_more_rows_than_its_sums_can_bear() -> None:
    """They are float32: of m rows off by m**2 C / 2**24."""
    for rows, taken in ((256, True), (257, False)):
        module, features, labels = small_table(rows)
        parts = made_private(
            module, features, labels, grad_sample_mode="ghost", collate_fn=own_collate
        )
        if taken:
            one_epoch(*parts)
            one_epoch(*parts)  # each batch counts for itself
        else:
            with pytest.raises(PrivacyError, match="at most 256 rows"):
                one_epoch(*parts)


def test_rows_that_are_tensors_come_as_few_as_ghost_sums_can_bear() -> None:
    module, features, labels = small_table(700)
    expected = flat(reference_sum(module, squared_error, features, labels, 1.0))
    parts = made_private(module, features, labels, grad_sample_mode="ghost")
    found = sum_of_epoch(module, parts)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-2)
    assert len(parts[1].last_norms) == 700
