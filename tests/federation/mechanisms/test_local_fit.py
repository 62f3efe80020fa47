"""Local training: hooks in order, terms added after the gradient, schedules over all rounds."""

import pytest
import torch
from torch import nn

from homo_dp.config.schema import Config, TrainConfig
from homo_dp.federation.mechanisms.base import FederationFacts, PartyFacts, Release
from homo_dp.federation.mechanisms.local_fit import CHUNK, LocalFit
from homo_dp.federation.mechanisms.none import PlainAveraging
from homo_dp.models.task import task_for
from homo_dp.privacy.gradients.losses import binary_logistic
from homo_dp.privacy.noise.source import secure_noise
from homo_dp.statistics.released_metrics import ReleasedMetrics

FACTS = PartyFacts("a", rows=8, rounds=2, steps_per_round=3, sample_rate=0.5)


def make_fit(**train: object) -> LocalFit:
    torch.manual_seed(0)
    config = TrainConfig.model_validate(
        {"rounds": 2, "local_steps": 3, "learning_rate": 0.5, **train}
    )
    model = nn.Sequential(nn.Linear(2, 1))
    features, labels = torch.randn(8, 2), torch.tensor([0.0, 1.0] * 4)
    return LocalFit(
        model, binary_logistic, features, labels, FACTS, config, torch.Generator().manual_seed(1)
    )


class Recorder(PlainAveraging):
    """Writes down which hook was called."""

    def __init__(self) -> None:
        super().__init__(Config(), FederationFacts({"a": FACTS}, 2, 3), secure_noise())
        self.calls: list[str] = []

    def before_fit(self, fit: LocalFit) -> None:
        self.calls.append("before_fit")

    def after_batch(self, fit: LocalFit) -> None:
        self.calls.append("after_batch")

    def after_fit(self, fit: LocalFit) -> Release:
        self.calls.append("after_fit")
        return super().after_fit(fit)


def test_hooks_are_called_in_order() -> None:
    fit, mechanism = make_fit(), Recorder()
    fit.fit(mechanism, fit.weights(), 1, {})
    assert mechanism.calls == [
        "before_fit",
        "after_batch",
        "after_batch",
        "after_batch",
        "after_fit",
    ]


def test_training_starts_from_the_global_weights_and_does_not_touch_them() -> None:
    fit = make_fit()
    zeros = {name: torch.zeros_like(tensor) for name, tensor in fit.weights().items()}
    release = fit.fit(Recorder(), zeros, 1, {})
    assert all(not tensor.any() for tensor in zeros.values())
    assert any(tensor.any() for tensor in release.tensors.values())


def test_weight_decay_and_proximal_pull_are_added_to_the_finished_gradient() -> None:
    fit = make_fit(weight_decay=0.1, proximal_mu=0.01)
    fit.start = {name: tensor + 1.0 for name, tensor in fit.weights().items()}
    for parameter in fit.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    add = fit.after_gradient
    assert add is not None
    add()
    for name, parameter in fit.model.named_parameters():
        expected = 0.1 * parameter + 0.01 * (parameter - fit.start[name])
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, expected)


def test_a_pull_that_changes_between_rounds_is_the_one_of_its_round() -> None:
    """A pull of 2 at a rate of 0.5 puts weights back where the round began, whatever they were."""
    fit = make_fit(proximal_mu=0.1, local_steps=1)
    moves = []
    for pull in (0.1, 2.0):
        fit.proximal_mu = pull
        fit.begin(fit.weights())
        fit._hang_terms_on_steps()
        with torch.no_grad():
            for parameter in fit.model.parameters():
                parameter.add_(1.0)
                parameter.grad = torch.zeros_like(parameter)
        fit.optimizer.step()
        weight = fit.model.get_parameter("0.weight").detach()
        moves.append(float((weight - fit.start["0.weight"]).mean()))
    assert moves == pytest.approx([0.95, 0.0], abs=1e-6)


def test_nothing_to_add_is_none() -> None:
    assert make_fit().after_gradient is None


def test_the_schedule_runs_over_all_rounds() -> None:
    fit = make_fit(schedule="inverse_sqrt")
    for number in (1, 2):
        fit.fit(Recorder(), fit.weights(), number, {})
    assert fit.optimizer.param_groups[0]["lr"] == 0.5 / 7**0.5


def test_a_physical_batch_bounds_the_rows_in_memory_and_changes_no_result() -> None:
    sizes: list[int] = []
    whole, pieces = make_fit(), make_fit(physical_batch_size=3)
    pieces.model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    start = whole.weights()
    expected, found = (fit.fit(Recorder(), start, 1, {}).tensors for fit in (whole, pieces))
    assert sizes == [3, 1] * 3
    assert all(torch.allclose(expected[name], found[name], atol=1e-6) for name in start)


def test_where_a_test_row_stands_does_not_move_what_it_adds_to_metrics() -> None:
    """Weights whose product with a row is rounding alone: in a batch, one row less moved the sum
    by 50 and more.
    """
    width, count, worst, task = 105, 801, 0.0, task_for([0, 1, 2])
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        row = torch.rand(width, generator=generator) * 2 - 1
        layer = nn.Linear(width, 3)
        weights = torch.zeros(3, width)
        weights[0] = (torch.rand(width, generator=generator) * 2 - 1) * 1e6
        for _ in range(3):
            weights[0] -= (
                weights[0].double() @ row.double() / (row.double() @ row.double()) * row.double()
            ).float()
        with torch.no_grad():
            layer.weight.copy_(weights)
            layer.bias.zero_()
        features = torch.zeros(count, width)
        features[seed % 4 :: 4] = row
        labels, asked = torch.zeros(count).long(), ReleasedMetrics("multiclass", 3)
        sums = []
        for start in (0, 1):
            fit = LocalFit(
                nn.Sequential(layer),
                task.loss,
                features,
                labels,
                FACTS,
                TrainConfig(),
                torch.Generator(),
            )
            fit.test = (task, features[start:].clone(), labels[start:])
            sums.append(torch.cat(list(fit.metric_parts(asked))).sum(0))
        worst = max(worst, float((sums[0] - sums[1]).norm()))
    assert worst <= 1 + 1e-9


def test_metrics_of_many_classes_take_rows_a_few_at_a_time() -> None:
    """A thousand classes are a million numbers a row: whether memory is left must not depend on
    the count of rows.
    """
    classes, count = 1000, 9
    task, asked = task_for(list(range(classes))), ReleasedMetrics("multiclass", classes)
    features, labels = torch.randn(count, 2), torch.arange(count)
    model = nn.Sequential(nn.Linear(2, classes))
    fit = LocalFit(model, task.loss, features, labels, FACTS, TrainConfig(), torch.Generator())
    fit.test = (task, features, labels)
    sizes = [part.numel() for part in fit.metric_parts(asked)]
    assert max(sizes) <= CHUNK
    assert sum(sizes) == count * asked.dimension
