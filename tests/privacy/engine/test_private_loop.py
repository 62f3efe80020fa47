"""An ordinary loop over what the engine makes private: the contract by checks that broken variants
fail, then the rest of its promises one by one.
"""

import math
import os
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import binary_logistic, softmax_cross_entropy, squared_error
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.sampling.samplers import PoissonSampler
from tests.privacy.broken_training import BROKEN
from tests.privacy.engine_parts import small_table
from tests.privacy.training_checks import CHECKS
from tests.privacy.training_parts import (
    QUIET,
    PrivateLoop,
    exact_sum,
    flat,
    middle_norm,
    reference_sum,
    seeded,
    step_sum,
    training,
)

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")

MODES = ("fast", "hooks", "functorch", "ew", "ghost")


@pytest.mark.parametrize("name", CHECKS)
def test_the_training_keeps_the_contract(name: str) -> None:
    CHECKS[name](PrivateLoop)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["bound", "empty"])
def test_every_mode_keeps_the_contract(name: str, mode: str) -> None:
    def kind(*args: Any, **options: Any) -> PrivateLoop:
        return PrivateLoop(*args, **options, grad_sample_mode=mode)

    CHECKS[name](kind)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_training_is_noticed(broken: str) -> None:
    kind, name = BROKEN[broken]
    with pytest.raises(AssertionError):
        CHECKS[name](kind)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(6, 3), lambda: torch.randn(20, 6) * 2),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
        lambda: torch.randn(20, 6) * 2,
    ),
    "in place": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        lambda: torch.randn(20, 6) * 2,
    ),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(75, 3)
        ),
        lambda: torch.randn(20, 2, 5, 5),
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(12, 3)),
        lambda: torch.randint(0, 6, (20, 3)),
    ),
    "sequence": (
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)
        ),
        lambda: torch.randn(20, 3, 4),
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LAYERS)
def test_every_mode_clips_every_layer_as_one_row_at_a_time(name: str, mode: str) -> None:
    make, rows = LAYERS[name]
    torch.manual_seed(6)
    module, features, labels = make(), rows(), torch.arange(20) % 3
    clip_norm = middle_norm(module, softmax_cross_entropy, features, labels)
    expected = reference_sum(module, softmax_cross_entropy, features, labels, clip_norm)
    private = training(
        module, softmax_cross_entropy, features, labels, clip_norm=clip_norm, grad_sample_mode=mode
    )
    found = flat(step_sum(private))
    torch.testing.assert_close(found, flat(expected), rtol=1e-4, atol=2e-5 * clip_norm)
    assert 0.3 < private.last_fraction_clipped < 0.7


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_same_bounded_sum(mode: str) -> None:
    """One record after the other leaves."""
    features = torch.randn(9, 3, generator=torch.Generator().manual_seed(2)) * 5

    def summed(mode: str, rows: Tensor) -> Tensor:
        torch.manual_seed(1)
        labels = torch.ones(len(rows))
        options: dict[str, Any] = {"clip_norm": 0.2, "grad_sample_mode": mode}
        return exact_sum(training(nn.Linear(3, 1), binary_logistic, rows, labels, **options))

    whole = summed(mode, features)
    torch.testing.assert_close(whole, summed("hooks", features), rtol=1e-4, atol=2e-5)
    moved = [
        float((whole - summed(mode, torch.cat([features[:at], features[at + 1 :]]))).norm())
        for at in range(9)
    ]
    assert 0.9 * 0.2 < max(moved) <= 0.2


def _regression(rows: int = 30) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(5)
    return (
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)),
        torch.randn(rows, 4),
        torch.randn(rows),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_adds_nothing_and_is_counted(mode: str, value: float) -> None:
    module, features, labels = _regression()
    expected = reference_sum(module, squared_error, features[1:], labels[1:], 1.0)
    features[0, 2] = value
    private = training(module, squared_error, features, labels, grad_sample_mode=mode)
    found = step_sum(private)
    torch.testing.assert_close(flat(found), flat(expected), rtol=1e-4, atol=1e-5)
    assert private.rows_not_finite == 1


@pytest.mark.parametrize("module", [nn.Linear(4, 1), nn.Linear(4, 1, bias=False)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_one_output_path_drops_rows_that_are_not_finite(
    module: nn.Linear, value: float
) -> None:
    _, features, _ = _regression()
    labels = (torch.arange(30) % 2).float()
    expected = reference_sum(module, binary_logistic, features[1:], labels[1:], 0.5)
    features[0, 1] = value
    private = training(module, binary_logistic, features, labels, clip_norm=0.5)
    torch.testing.assert_close(flat(step_sum(private)), flat(expected), rtol=1e-4, atol=1e-5)
    assert private.rows_not_finite == 1


def test_a_batch_of_rows_that_are_not_finite_is_an_empty_batch() -> None:
    module, features, labels = _regression()
    for mode in MODES:
        private = training(
            module, squared_error, features * math.nan, labels, grad_sample_mode=mode
        )
        assert float(flat(step_sum(private)).norm()) < 1e-4
        assert private.rows_not_finite == 30
        private.close()


@pytest.mark.parametrize("mode", MODES)
def test_zero_gradients_are_kept_as_they_are(mode: str) -> None:
    module = nn.Linear(3, 1, bias=False)
    private = training(
        module, squared_error, torch.zeros(8, 3), torch.ones(8), grad_sample_mode=mode
    )
    assert float(flat(step_sum(private)).norm()) < 1e-5
    assert float(private.last_norms.max()) < 1e-15
    assert len(private.last_norms) == 8
    assert private.last_fraction_clipped == 0.0
    assert private.rows_not_finite == 0


class _Tempered(nn.Module):
    """A scalar parameter, which belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs) * self.temperature
        return outputs


def test_a_scalar_parameter_is_clipped_with_the_rest() -> None:
    torch.manual_seed(2)
    module, features, labels = _Tempered(), torch.randn(20, 4), torch.arange(20) % 3
    expected = reference_sum(module, softmax_cross_entropy, features, labels, 0.5)
    private = training(module, softmax_cross_entropy, features, labels, clip_norm=0.5)
    assert (private.grad_sample_mode, private.mode_reason) == (
        "hooks",
        "model: _Tempered has no fast gradient",
    )
    torch.testing.assert_close(flat(step_sum(private)), flat(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_hook_of_the_optimizer_has_the_divided_noisy_gradient_before_the_step(mode: str) -> None:
    module, features, labels = _regression()
    seen: list[Tensor] = []

    def weight_decay(*_: Any) -> None:
        for parameter in module.parameters():
            assert parameter.grad is not None
            seen.append(parameter.grad.clone())
            parameter.grad.add_(parameter.detach(), alpha=0.5)

    expected = reference_sum(module, squared_error, features, labels, 1.0)
    before = flat([parameter.detach().clone() for parameter in module.parameters()])
    private = training(module, squared_error, features, labels, grad_sample_mode=mode)
    private.optimizer.register_step_pre_hook(weight_decay)
    moved = flat(step_sum(private))
    torch.testing.assert_close(flat(seen) * 30, flat(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moved, flat(expected) + 30 * 0.5 * before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_optimisers_step_as_torch_steps_them(name: str) -> None:
    """The same seeded noise, once through the training and once by hand."""
    kinds: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    }
    module, features, labels = _regression()
    gradients: list[list[Tensor]] = []
    private = PrivateLoop(
        module,
        kinds[name](module.parameters()),
        squared_error,
        features,
        labels,
        sampler=PoissonSampler(30, 0.5),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        noise=seeded(4),
    )
    private.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(
            [p.grad.clone() for p in module.parameters() if p.grad is not None]
        )
    )
    copies = [parameter.detach().clone().requires_grad_() for parameter in module.parameters()]
    private.run(5)
    by_hand = kinds[name](copies)
    for step in gradients:
        for copy, gradient in zip(copies, step, strict=True):
            copy.grad = gradient
        by_hand.step()
    torch.testing.assert_close(list(module.parameters()), [nn.Parameter(copy) for copy in copies])


def test_a_learning_rate_schedule_is_followed() -> None:
    module, features, labels = _regression()
    private = training(module, squared_error, features, labels)
    schedule = torch.optim.lr_scheduler.StepLR(private.optimizer, 1, gamma=0.0)
    private.run(1, after_step=schedule.step)
    before = private.weights()
    private.run(3, after_step=schedule.step)
    assert all(torch.equal(before[name], value) for name, value in private.weights().items())


@pytest.mark.parametrize("mode", MODES)
def test_loading_weights_between_rounds_breaks_nothing(mode: str) -> None:
    module, features, labels = _regression()
    private = training(module, squared_error, features, labels, grad_sample_mode=mode)
    weights = private.weights()
    assert sorted(weights) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    private.run(2)
    private.load_weights(weights)
    assert all(torch.equal(weights[name], value) for name, value in private.weights().items())
    expected = (
        reference_sum(module, squared_error, features, labels, 1.0)
        if mode in ("fast", "ew")
        else None
    )
    first = flat(step_sum(private))
    private.load_weights(weights)
    torch.testing.assert_close(flat(step_sum(private)), first, rtol=1e-4, atol=1e-5)
    if expected is not None:
        torch.testing.assert_close(first, flat(expected), rtol=1e-4, atol=1e-5)
    assert private.steps_done == 4


@pytest.mark.parametrize(
    "kind", [torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9), torch.optim.SGD]
)
def test_a_training_goes_on_from_a_checkpoint(
    kind: Callable[..., torch.optim.Optimizer], tmp_path: Path
) -> None:
    def build(lr: float) -> PrivateLoop:
        module, features, labels = _regression()
        optimizer = kind(module.parameters(), lr)
        return PrivateLoop(
            module,
            optimizer,
            squared_error,
            features,
            labels,
            sampler=PoissonSampler(30, 1.0),
            noise_multiplier=QUIET,
            max_grad_norm=1.0,
        )

    first, second = build(0.05), build(0.5)
    first.run(4)
    path = tmp_path / "checkpoint"
    first.engine.save_checkpoint(path=path, module=first.wrapped, optimizer=first.private)
    second.engine.load_checkpoint(path=path, module=second.wrapped, optimizer=second.private)
    assert second.engine.accountant.history == first.engine.accountant.history
    first.run(3)
    second.run(3)
    torch.testing.assert_close(list(first.weights().values()), list(second.weights().values()))


def _drawn(private: PrivateLoop) -> Tensor:
    """The row numbers of a batch that nobody trains on."""
    rows: Tensor = private.loader.batch_sampler.drawn.next()
    return rows


def test_noise_is_secure_by_default_and_batches_differ_between_trainings() -> None:
    module, features, labels = _regression()
    first = training(module, squared_error, features, labels, sample_rate=0.5)
    assert first.noise.private
    second = training(module, squared_error, features, labels, sample_rate=0.5)
    drawn = [[_drawn(private).tolist() for _ in range(3)] for private in (first, second)]
    assert drawn[0] != drawn[1], "30 rows at q = 0.5: equal by chance once in 1e27"


def test_seeded_noise_repeats_and_says_not_private() -> None:
    runs = []
    for _ in range(2):
        module, features, labels = _regression()
        private = training(
            module,
            squared_error,
            features,
            labels,
            noise=seeded(11),
            sample_rate=0.3,
            noise_multiplier=1.0,
        )
        assert not private.noise.private
        private.run(5)
        runs.append(flat(list(private.weights().values())))
    assert torch.equal(*runs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier=0.0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan"),
        ({"noise_multiplier": math.inf}, "noise_multiplier=inf"),
        ({"clip_norm": 0.0}, "max_grad_norm=0.0"),
        ({"clip_norm": math.inf}, "max_grad_norm=inf"),
        ({"physical_batch_size": 0}, "physical_batch_size=0"),
        ({"grad_sample_mode": "magic"}, "grad_sample_mode='magic'"),
    ],
)
def test_bad_values_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    module, features, labels = _regression()
    with pytest.raises(PrivacyError, match=message):
        training(module, squared_error, features, labels, **change)


@pytest.mark.parametrize("mode", MODES)
def test_what_the_event_names_cannot_be_changed_later(mode: str) -> None:
    module, features, labels = _regression()
    private = training(
        module, squared_error, features, labels, sample_rate=0.5, grad_sample_mode=mode
    )
    named = private.event(2)
    private.loader.batch_sampler.sample_rate = 1.0
    private.engine.noise = seeded(1)
    assert private.event(2) == named
    private.run(20)
    assert len(private.last_norms) < 30, "20 batches of all 30 rows: by chance once in 1e180"
    assert private.private.noise_source.private
    private.private.noise_multiplier = QUIET / 2
    with pytest.raises(PrivacyError, match="noise_multiplier"):
        private.event(2)


@pytest.mark.parametrize("mode", ["fast", "hooks", "functorch", "ew"])
def test_clipping_and_noise_agree_on_a_bound_that_is_changed_later(mode: str) -> None:
    module, features, labels = _regression()
    expected = reference_sum(module, squared_error, features, labels, 0.25)
    private = training(module, squared_error, features, labels, grad_sample_mode=mode)
    private.private.max_grad_norm = 0.25
    torch.testing.assert_close(flat(step_sum(private)), flat(expected), rtol=1e-4, atol=1e-5)
    assert private.applied_sigma == QUIET * 0.25


def test_losses_that_are_not_one_number_a_row_are_refused() -> None:
    module, features, labels = _regression()
    for loss in (
        lambda outputs, labels: outputs.mean(),
        lambda outputs, labels: outputs.expand(-1, 2),
    ):
        with pytest.raises(PrivacyError, match="is not one loss per row"):
            training(module, loss, features, labels)


def test_a_loss_that_mixes_rows_is_refused() -> None:
    module, features, labels = _regression()

    def ranked(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.squeeze(1) - outputs.mean()).square()

    with pytest.raises(PrivacyError, match="mixes rows"):
        training(module, ranked, features, labels)


@pytest.mark.parametrize("steps", [-1, 2.5, True, "3"])
def test_steps_must_be_a_count(steps: Any) -> None:
    module, features, labels = _regression()
    with pytest.raises(PrivacyError, match="steps="):
        training(module, squared_error, features, labels, steps=steps)
    private = training(module, squared_error, features, labels, steps=3)
    assert [len(private.loader), len(list(private.loader))] == [3, 3]
    private.run(0)
    assert private.steps_done == 0


@pytest.mark.parametrize("mode", MODES)
def test_layers_unfrozen_between_rounds_are_refused(mode: str) -> None:
    """Nobody clips what they get: with momentum their raw gradients would be stepped."""
    module, features, labels = _regression()
    module.get_submodule("0").requires_grad_(False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    options: dict[str, Any] = {
        "sampler": PoissonSampler(30, 1.0),
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
    }
    private = PrivateLoop(
        module, optimizer, squared_error, features, labels, grad_sample_mode=mode, **options
    )
    private.run(1)
    module.get_submodule("0").requires_grad_(True)
    with pytest.raises(PrivacyError, match="the trainable parameters changed"):
        private.run(1)
    module.get_submodule("0").requires_grad_(False)
    private.run(1)
    module.get_submodule("2").requires_grad_(False)
    with pytest.raises(PrivacyError, match="the trainable parameters changed"):
        private.run(1)


def test_gradients_that_frozen_layers_had_before_are_not_stepped() -> None:
    module, features, labels = _regression()
    torch.autograd.backward(squared_error(module(features), labels).sum())
    module.get_submodule("0").requires_grad_(False)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    options: dict[str, Any] = {
        "sampler": PoissonSampler(30, 1.0),
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
    }
    private = PrivateLoop(module, optimizer, squared_error, features, labels, **options)
    before = private.weights()
    private.run(1)
    assert torch.equal(private.weights()["0.weight"], before["0.weight"])
    assert not torch.equal(private.weights()["2.weight"], before["2.weight"])


@pytest.mark.parametrize("mode", MODES)
def test_features_that_ask_for_a_gradient_get_none(mode: str) -> None:
    module, features, labels = _regression()
    expected = reference_sum(module, squared_error, features, labels, 1.0)
    features.requires_grad_()
    private = training(module, squared_error, features, labels, grad_sample_mode=mode)
    torch.testing.assert_close(flat(step_sum(private)), flat(expected), rtol=1e-4, atol=1e-5)
    assert features.grad is None


def test_labels_of_any_kind_of_number_are_taken_by_the_logistic_loss() -> None:
    torch.manual_seed(1)
    module, features, labels = nn.Linear(4, 1), torch.randn(30, 4), torch.arange(30) % 2
    expected = reference_sum(module, binary_logistic, features, labels.float(), 1.0)
    for kind in (torch.bool, torch.uint8, torch.int64, torch.float64):
        private = training(deepcopy(module), binary_logistic, features, labels.to(kind))
        torch.testing.assert_close(flat(step_sum(private)), flat(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_sum_that_is_not_finite_is_a_step_of_noise_alone_and_says_nothing(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a batch overflows depends on its rows: an error there would be a word about them
    that nobody charged.
    """
    found: list[dict[str, Tensor]] = []
    for value in (float("inf"), 0.0):
        torch.manual_seed(0)
        rows, labels = torch.ones(4, 2), torch.zeros(4)
        made = training(
            nn.Linear(2, 1),
            squared_error,
            rows,
            labels,
            noise_multiplier=1.0,
            noise=SeededNoise(0),
            grad_sample_mode=mode,
        )
        name = "accumulate" if mode == "ghost" else "clip_and_accumulate"
        filled = partial(_fill, made.private, getattr(made.private, name), value)
        monkeypatch.setattr(made.private, name, filled)
        made.run(2)
        assert made.sums_not_finite == (2 if value else 0)
        found.append(made.weights())
    assert all(weight.equal(found[1][name]) for name, weight in found[0].items())


def _fill(private: Any, real: Callable[[], None], value: float) -> None:
    """What clips, and then other sums."""
    real()
    if hasattr(private, "clipped"):
        private.clipped.finite = False  # nothing is known of this sum
        private.clipped.total.fill_(value)
        return
    for parameter in private.params:
        parameter.summed_grad.fill_(value)


def test_forked_processes_share_neither_batches_nor_noise() -> None:
    """Two children of one training: 200 rows at q = 0.5 and 8 normals, equal by chance once in
    1e60.
    """
    module, features, labels = small_table(200)
    private = PrivateLoop(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        squared_error,
        features,
        labels,
        sampler=PoissonSampler(200, 0.5),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    private.run(2)
    found = [_in_child(lambda: str(_drawn(private).tolist()).encode()) for _ in range(2)]
    found.append(str(_drawn(private).tolist()).encode())
    assert len(set(found)) == 3


def _in_child(work: Any) -> bytes:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, work()[:4000])
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


def test_a_long_sum_gets_noise_of_its_own_everywhere() -> None:
    """Sums of more than 65,536 numbers are taken in pieces; each bound is passed in one of 1e15
    runs of a sound one.
    """
    module = nn.Linear(99_999, 1)
    private = PrivateLoop(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        binary_logistic,
        torch.zeros(2, 99_999),
        torch.zeros(2),
        sampler=PoissonSampler(2, 1e-9, declared=100),
        noise_multiplier=2.0,
        max_grad_norm=0.5,
    )
    private.run(1)
    released = flat([part.grad for part in module.parameters() if part.grad is not None])
    noise = released * private.sampler.expected_size / private.applied_sigma
    for piece in torch.split(noise, 10_000):
        assert abs(float(piece.std()) - 1) < 8 / math.sqrt(2 * 10_000)
        assert abs(float(piece.mean())) < 8 / math.sqrt(10_000)
    # no number serves two weights
    assert float(noise[:34_464].dot(noise[65_536:]).abs()) < 8 * math.sqrt(34_464)
