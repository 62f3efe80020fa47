"""What loops of somebody's own may do to batches, bounds and arguments: it is refused or harmless."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from homo_dp.opacus import PrivacyEngine
from homo_dp.privacy.engine.drawn_ahead import PoissonBatches
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import binary_logistic, softmax_cross_entropy
from homo_dp.privacy.noise.source import SeededNoise
from tests.privacy.training_parts import QUIET, flat

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")
MODES = ("fast", "hooks", "functorch", "ew", "ghost")


def everybody(
    module: nn.Module, criterion: Any, rows: Tensor, labels: Tensor, **options: Any
) -> tuple[Any, Any, Any, Any]:
    """What make_private gives for steps of all rows, whose sum a step of SGD subtracts."""
    made: tuple[Any, Any, Any, Any] = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=float(len(rows))),
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(rows, labels), batch_size=len(rows)),
        **{"noise_multiplier": QUIET, "max_grad_norm": 1.0, "steps": 1, **options},
    )
    return made


def moved(module: nn.Module, before: Tensor) -> float:
    """How far the weights are from where they were."""
    return float((before - flat([weight.detach() for weight in module.parameters()])).norm())


def test_norms_that_are_kept_are_not_used_for_a_batch_that_the_loop_changed() -> None:
    """Rows a thousand times as long would move the sum by 1,000 C."""
    module = nn.Linear(5, 1)
    nn.init.zeros_(module.weight)
    rows = torch.ones(3, 5)
    wrapped, optimizer, criterion, loader = everybody(
        module, binary_logistic, rows, torch.ones(3, 1)
    )
    before = flat([weight.detach().clone() for weight in module.parameters()])
    for features, labels in loader:
        features *= 1000.0
        criterion(wrapped(features), labels).backward()
        optimizer.step()
    assert moved(module, before) <= 3.0


def test_a_batch_changed_before_the_step_is_refused() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    wrapped, optimizer, criterion, loader = everybody(
        module, softmax_cross_entropy, torch.ones(40, 5), torch.zeros(40).long()
    )
    for features, labels in loader:
        criterion(wrapped(features), labels).backward()
        features *= 1000.0
        with pytest.raises(PrivacyError, match="was changed between"):
            optimizer.step()


class Halves(nn.Module):
    """Gives its outputs in a tuple, which nothing cuts to the rows that count."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, rows: Tensor) -> Any:
        outputs = self.layer(rows)
        return (outputs, outputs.detach()) if rows.shape[0] > 8 else outputs


def plain_cross_entropy(outputs: Any, labels: Tensor) -> Tensor:
    """A loss that takes the outputs in a tuple, too."""
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_rows_that_fill_up_count_for_nothing_whatever_form_outputs_have(mode: str) -> None:
    torch.manual_seed(0)
    module = Halves()
    rows, labels = torch.randn(9, 5) * 9, torch.arange(9) % 3
    wrapped, optimizer, criterion, loader = everybody(
        module, plain_cross_entropy, rows, labels, grad_sample_mode=mode
    )
    before = flat([weight.detach().clone() for weight in module.parameters()])
    for features, truth in loader:
        outputs = wrapped(features)
        criterion(outputs[0] if isinstance(outputs, tuple) else outputs, truth).backward()
        optimizer.step()
    assert moved(module, before) <= 9.0 + 1e-3


@pytest.mark.parametrize("mode", MODES)
def test_a_clip_norm_that_changes_within_a_batch_is_refused(mode: str) -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    wrapped, optimizer, criterion, loader = everybody(
        module,
        softmax_cross_entropy,
        torch.randn(40, 5),
        torch.arange(40) % 3,
        grad_sample_mode=mode,
        physical_batch_size=16,
    )

    def lowering() -> None:
        for features, labels in loader:
            optimizer.zero_grad()
            criterion(wrapped(features), labels).backward()
            optimizer.step()
            optimizer.max_grad_norm = optimizer.max_grad_norm * 0.1
            if mode == "ghost":
                wrapped.max_grad_norm = optimizer.max_grad_norm

    with pytest.raises(PrivacyError, match="max_grad_norm"):
        lowering()


def test_an_event_names_no_step_with_other_noise() -> None:
    engine = PrivacyEngine()
    module = nn.Linear(5, 3)
    wrapped, optimizer, criterion, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        criterion=softmax_cross_entropy,
        data_loader=DataLoader(
            TensorDataset(torch.randn(20, 5), torch.arange(20) % 3), batch_size=10
        ),
        noise_multiplier=5.0,
        max_grad_norm=1.0,
    )
    engine.event(1)
    for number, (features, labels) in enumerate(loader):
        optimizer.noise_multiplier = 0.01 if number == 0 else 5.0
        optimizer.zero_grad()
        criterion(wrapped(features), labels).backward()
        optimizer.step()
    with pytest.raises(PrivacyError, match=r"noise_multiplier=0\.01"):
        engine.event(2)


def test_noise_for_a_target_counts_declared_rates_and_steps() -> None:
    engine = PrivacyEngine()
    module = nn.Linear(5, 3)
    rows = TensorDataset(torch.randn(100, 5), torch.arange(100) % 3)
    made = engine.make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        criterion=softmax_cross_entropy,
        data_loader=DataLoader(rows, batch_size=1),
        target_epsilon=1.0,
        target_delta=1e-5,
        epochs=1,
        max_grad_norm=1.0,
        sample_rate=0.5,
        expected_batch_size=50.0,
        steps=30,
    )
    wrapped, optimizer, criterion, loader = made
    for features, labels in loader:
        optimizer.zero_grad()
        criterion(wrapped(features), labels).backward()
        optimizer.step()
    assert engine.get_epsilon(1e-5) <= 1.0


def test_arguments_that_nobody_reads_are_refused() -> None:
    with pytest.raises(PrivacyError, match="realease"):
        everybody(
            nn.Linear(5, 1), binary_logistic, torch.ones(3, 5), torch.ones(3, 1), realease="step"
        )
    with pytest.raises(PrivacyError, match="is not secure"):
        everybody(
            nn.Linear(5, 1),
            binary_logistic,
            torch.ones(3, 5),
            torch.ones(3, 1),
            noise=SeededNoise(1),
        )


def test_a_row_that_is_not_finite_leaves_dropout_masks_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it a pass over the other rows would draw masks from torch's own generator, whose
    state anybody can know: 2,000 masks that agree by chance have a share of 0.5 +- 0.011.
    """
    masks: list[Tensor] = []

    class Seen(nn.Dropout):
        def forward(self, input: Tensor) -> Tensor:
            found = super().forward(input)
            masks.append((found != 0).detach().clone())
            return found

    monkeypatch.setattr(PoissonBatches, "next", lambda self: torch.arange(40))
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), Seen(0.5), nn.Linear(64, 3))
    rows = torch.randn(40, 5)
    rows[0] = float("nan")
    wrapped, optimizer, criterion, loader = everybody(
        module, softmax_cross_entropy, rows, torch.arange(40) % 3
    )
    for features, labels in loader:
        masks.clear()
        torch.manual_seed(7)
        criterion(wrapped(features), labels).backward()
        torch.manual_seed(7)
        optimizer.step()
    assert len(masks) >= 2  # once for the batch, once without the row
    torch.manual_seed(7)
    public = (nn.functional.dropout(torch.ones_like(masks[-1].float()), 0.5) != 0)[1:40]
    agree = float((masks[-1][1:40] == public).double().mean())
    assert abs(agree - 0.5) < 0.1  # nine standard deviations


@pytest.mark.parametrize("mode", MODES)
def test_one_batch_takes_one_step(mode: str) -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    wrapped, optimizer, criterion, loader = everybody(
        module,
        softmax_cross_entropy,
        torch.randn(20, 5),
        torch.arange(20) % 3,
        grad_sample_mode=mode,
        steps=3,
    )
    batches = list(loader)
    assert len(batches) >= 3  # of blocks

    def steps() -> None:
        for features, labels in batches:
            optimizer.zero_grad()
            criterion(wrapped(features), labels).backward()
            optimizer.step()

    with pytest.raises(PrivacyError, match="takes one step"):
        steps()


def test_gradients_of_another_criterion_are_refused() -> None:
    """Losses that are averaged by the loop itself would be clipped less and moved by 1.45 C."""
    module = nn.Linear(5, 3)
    wrapped, optimizer, _, loader = everybody(
        module,
        softmax_cross_entropy,
        torch.randn(20, 5),
        torch.arange(20) % 3,
        grad_sample_mode="hooks",
    )
    for features, labels in loader:
        torch.autograd.backward([nn.functional.cross_entropy(wrapped(features), labels)])
        with pytest.raises(PrivacyError, match="not of the criterion"):
            optimizer.step()


def test_a_module_that_is_wrapped_again_keeps_nothing_of_the_rows_before() -> None:
    module = nn.Linear(5, 1)
    first = everybody(module, binary_logistic, torch.ones(3, 5), torch.ones(3, 1))
    second = everybody(first[0], binary_logistic, torch.ones(3, 5) * 100, torch.ones(3, 1))
    assert first[0].passes is not second[0].passes
    before = flat([weight.detach().clone() for weight in module.parameters()])
    wrapped, optimizer, criterion, loader = second
    for features, labels in loader:
        criterion(wrapped(features), labels).backward()
        optimizer.step()
    assert moved(module, before) <= 3.0
