"""The fast pair of an Opacus loop: what it refuses, and that it steps as Opacus' own hooks do."""

from typing import Any

import pytest
import torch
from opacus.grad_sample import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader, TensorDataset

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.errors import PrivacyError
from tests.privacy.engine_parts import ErrorLoss, made_private, one_epoch, small_table
from tests.privacy.training_parts import QUIET, flat

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")


def test_the_fast_pair_refuses_what_it_would_get_wrong() -> None:
    module, features, labels = small_table()
    wrapped, optimizer, criterion, _ = made_private(
        module, features, labels, grad_sample_mode="fast"
    )
    with pytest.raises(ValueError, match="call backward"):
        optimizer.step()
    first = criterion(wrapped(features), labels)
    wrapped(features)
    with pytest.raises(PrivacyError, match="one forward and one backward pass"):
        first.backward()
    criterion(wrapped(features), labels).backward()
    optimizer.step()
    with pytest.raises(ValueError, match="call backward"):
        optimizer.step()
    with pytest.raises(PrivacyError, match="no gradient at the inputs"):
        wrapped(features.clone().requires_grad_())
    wrapped.eval()
    assert wrapped(features).requires_grad


@pytest.mark.parametrize("kind", ["plain", "momentum", "adam", "two groups", "schedule"])
def test_the_fast_pair_steps_any_optimizer_as_the_hooks_do(kind: str) -> None:
    ends = []
    for mode in ("fast", "hooks"):
        module, features, labels = small_table()
        groups: Any = [{"params": layer.parameters()} for layer in (module[0], module[2])]  # type: ignore[index]
        sgd = torch.optim.SGD(
            groups if kind == "two groups" else module.parameters(), lr=0.5, momentum=0.0
        )
        if kind == "momentum":
            sgd.param_groups[0]["momentum"] = 0.9
        optimizer = torch.optim.Adam(module.parameters(), lr=0.05) if kind == "adam" else sgd
        loader = DataLoader(TensorDataset(features, labels), batch_size=24)
        options: dict[str, Any] = {
            "noise_multiplier": QUIET,
            "max_grad_norm": 1.0,
            "grad_sample_mode": mode,
        }
        wrapped, private, loader = PrivacyEngine().make_private(
            module=module, optimizer=optimizer, data_loader=loader, **options
        )
        assert isinstance(private, DPOptimizer)
        assert isinstance(wrapped, AbstractGradSampleModule)
        schedule = torch.optim.lr_scheduler.ExponentialLR(
            private, 0.5 if kind == "schedule" else 1.0
        )
        for step in range(4):
            one_epoch(wrapped, private, ErrorLoss(), loader)
            schedule.step()
            private.zero_grad(set_to_none=step == 2)
            grads = [parameter.grad for parameter in module.parameters()]
            assert all(grad is None if step == 2 else not grad.any() for grad in grads)  # type: ignore[union-attr]
        ends.append(flat([parameter.detach() for parameter in module.parameters()]))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-4)


def test_gradients_a_loop_keeps_are_not_written_again_by_the_fast_pair() -> None:
    module, features, labels = small_table()
    wrapped, optimizer, criterion, _ = made_private(
        module, features, labels, grad_sample_mode="fast", noise_multiplier=1.0
    )
    kept = []
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        criterion(wrapped(features), labels).backward()
        optimizer.step()
        kept.append([parameter.grad for parameter in module.parameters()])
    assert not torch.equal(flat(kept[0]), flat(kept[1]))  # type: ignore[arg-type]
    total = sum(parameter.numel() for parameter in module.parameters())
    assert kept[0][0].untyped_storage().nbytes() == 4 * total  # type: ignore[union-attr]  # no noise of later steps
