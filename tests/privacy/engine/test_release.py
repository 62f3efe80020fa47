"""What a step does with its clipped sum: it steps by it, or hands it out with its noise and moves
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.engine.release import named_parts
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import (
    binary_logistic,
    softmax_cross_entropy,
    squared_error,
)
from homo_dp.privacy.noise.grid import on_grid
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.privacy.sampling.samplers import PoissonSampler
from tests.privacy.training_parts import (
    QUIET,
    PrivateLoop,
    flat,
    reference_sum,
    silent_layer,
    training,
)

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")

MODES = ("fast", "hooks", "functorch", "ew", "ghost")
ROWS, CLIP = 40, 0.5
SHARE = NoiseShare(5, 1, 1)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def table(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    features = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(2))[:rows] * 20
    return features, torch.ones(rows)


def size_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def handing_out(
    module: nn.Module,
    features: Tensor,
    labels: Tensor,
    noise_multiplier: float = QUIET,
    share: NoiseShare | None = None,
    *,
    clip_norm: float = CLIP,
    sample_rate: float = 1.0,
    **options: Any,
) -> PrivateLoop:
    """A training that hands its sums out, with the noise that a federation would ask for."""
    private_sum = PrivateSum(size_of(module), clip_norm, noise_multiplier, ROWS, sample_rate, share)
    return training(
        module,
        binary_logistic,
        features,
        labels,
        **{
            "sample_rate": sample_rate,
            "clip_norm": clip_norm,
            "noise_multiplier": private_sum.party_sigma / clip_norm,
            "release": "hand_out" if share is None else "hand_out_masked",
            "private_sum": private_sum,
            **options,
        },
    )


def handed_out(private: PrivateLoop) -> Tensor:
    """What one step hands out."""
    private.run(1)
    released: Tensor = private.private.take_released()
    return released


# Handing out


@pytest.mark.parametrize("most", [None, 7])
@pytest.mark.parametrize("mode", MODES)
def test_the_noisy_sum_is_handed_out_and_nothing_moves(mode: str, most: int | None) -> None:
    """Neither weights nor the state of the optimizer; and no gradient is left."""
    module, (features, labels) = network(), table()
    expected = reference_sum(module, binary_logistic, features, labels, CLIP)
    private = handing_out(module, features, labels, grad_sample_mode=mode, physical_batch_size=most)
    private.optimizer.param_groups[0]["momentum"] = 0.9
    before = private.weights()
    for _ in range(2):
        private.run(1)
        released = private.private.released
        assert released.dtype is torch.float64
        assert released.shape == (size_of(module),)
        torch.testing.assert_close(released, flat(expected), rtol=2e-4, atol=2e-4)
        assert on_grid(released, QUIET * CLIP)
        assert all(parameter.grad is None for parameter in module.parameters())
        assert not private.optimizer.state
        assert all(torch.equal(before[name], now) for name, now in private.weights().items())


def test_what_is_handed_out_is_taken_once() -> None:
    private = handing_out(network(), *table())
    with pytest.raises(ValueError, match="take a step first"):
        private.private.take_released()
    first = handed_out(private)
    assert first.any()
    with pytest.raises(ValueError, match="take a step first"):
        private.private.take_released()
    assert private.private.released is None


@pytest.mark.parametrize("mode", MODES)
def test_one_row_moves_what_is_handed_out_by_at_most_the_clip_norm(mode: str) -> None:
    sums = [
        handed_out(handing_out(network(), *table(rows), 1e-6, grad_sample_mode=mode))
        for rows in (ROWS, ROWS - 1)
    ]
    assert 0.9 * CLIP < float((sums[0] - sums[1]).norm()) <= CLIP + 1e-4


def test_an_empty_batch_hands_out_noise_alone() -> None:
    """4,096 squares of normals: 8 sigma of their mean is 0.18, a false alarm below 1e-12."""
    for mode in MODES:
        private = silent_layer(
            sample_rate=1e-8,
            noise_multiplier=1.0,
            grad_sample_mode=mode,
            release="hand_out",
            private_sum=PrivateSum(4096, 1.0, 1.0, 10, 1e-8),
        )
        assert abs(float(handed_out(private).square().mean()) - 1) < 0.18


@pytest.mark.parametrize("mode", ["fast", "hooks"])
def test_the_noise_is_that_of_the_sum_and_so_is_the_event(mode: str) -> None:
    """20,480 normals: the relative error of a variance is 1 %; 6 sigma once in 5e8."""
    private_sum = PrivateSum(4096, 1.5, 2.0, 10)
    private = silent_layer(
        noise_multiplier=2.0,
        clip_norm=1.5,
        grad_sample_mode=mode,
        release="hand_out",
        private_sum=private_sum,
    )
    noise = torch.stack([handed_out(private) for _ in range(5)])
    assert abs(float(noise.square().mean()) / 9.0 - 1) < 6 * (2 / noise.numel()) ** 0.5
    # 10 pairs of 4,096 numbers beyond 6 sigma once in 5e7
    alike = torch.corrcoef(noise) - torch.eye(5)
    assert float(alike.abs().max()) < 6 / 4096**0.5
    assert private.applied_sigma == 3.0
    assert private.event(3) == private_sum.event(3)


@pytest.mark.parametrize("sample_rate", [1.0, 0.5])
@pytest.mark.parametrize("mode", ["fast", "hooks"])
def test_a_sum_can_be_handed_out_by_the_keywords_of_make_private_alone(
    mode: str, sample_rate: float
) -> None:
    """20,480 normals: the relative error of a variance is 1 %; 6 sigma once in 5e8."""
    private = silent_layer(
        noise_multiplier=2.0,
        clip_norm=1.5,
        sample_rate=sample_rate,
        grad_sample_mode=mode,
        release="hand_out",
    )
    noise = torch.stack([handed_out(private) for _ in range(5)])
    assert abs(float(noise.square().mean()) / 9.0 - 1) < 6 * (2 / noise.numel()) ** 0.5
    assert private.event(3) == PoissonSampler(10, sample_rate).event(2.0, 3)


@pytest.mark.parametrize("mode", ["fast", "hooks"])
def test_a_masked_sum_is_integers_with_this_partys_share_of_the_noise(mode: str) -> None:
    """20,480 numbers, 6 sigma of their variance once in 5e8; the sum of five parties has the noise
    that is accounted, and more.
    """
    private_sum = PrivateSum(4096, 1.5, 2.0, 10, share=SHARE)
    private = silent_layer(
        noise_multiplier=private_sum.party_sigma / 1.5,
        clip_norm=1.5,
        grad_sample_mode=mode,
        release="hand_out_masked",
        private_sum=private_sum,
    )
    steps = [handed_out(private) for _ in range(5)]
    assert {released.dtype for released in steps} == {torch.int64}
    values = torch.stack(steps).double() * private_sum.grid.step
    sigma = private_sum.grid.share_std(private_sum.party_sigma)
    assert abs(float(values.square().mean()) / sigma**2 - 1) < 6 * (2 / values.numel()) ** 0.5
    assert private_sum.party_sigma == pytest.approx(3.0 / math.sqrt(SHARE.sharers))
    assert private.applied_sigma == private_sum.party_sigma
    assert private.event(3) == private_sum.event(3)
    module, (features, labels) = network(), table()
    expected = reference_sum(module, binary_logistic, features, labels, CLIP)
    quiet = handing_out(module, features, labels, 1e-5, SHARE)
    found = handed_out(quiet).double() * PrivateSum(21, CLIP, 1e-5, ROWS, share=SHARE).grid.step
    torch.testing.assert_close(found, flat(expected), rtol=2e-4, atol=2e-4)


def test_a_sum_of_a_sample_is_charged_as_one() -> None:
    private = handing_out(network(), *table(), 2.0, sample_rate=0.25)
    sampler = PoissonSampler(ROWS, 0.25)
    assert private.event(4) == sampler.event(2.0, 4)
    assert private.event(4).event.sampling_probability == 0.25
    sizes = set()
    for _ in range(20):
        handed_out(private)
        sizes.add(len(private.last_norms))
    assert len(sizes) > 1, "20 samples of 40 rows at 1/4 of one size: once in 1e16"
    assert max(sizes) < ROWS


def test_everybody_in_every_step_is_no_sample() -> None:
    for options in (
        {},
        {"release": "hand_out", "private_sum": PrivateSum(21, CLIP, 2.0, ROWS)},
    ):
        private = training(
            network(),
            binary_logistic,
            *table(),
            clip_norm=CLIP,
            noise_multiplier=2.0,
            **options,  # type: ignore[arg-type]
        )
        event = private.event(3)
        assert type(event.event).__name__ == "GaussianDpEvent"
        assert (event.event.noise_multiplier, event.count) == (2.0, 3)


REFUSED: dict[str, dict[str, Any]] = {
    "unknown": {"release": "give"},
    "no sum for masks": {"release": "hand_out_masked", "private_sum": None},
    "no share": {"release": "hand_out_masked"},
    "a share": {"private_sum": PrivateSum(21, CLIP, 1.0, ROWS, share=SHARE)},
    "steps": {"release": "step"},
    "another clip norm": {"clip_norm": 2 * CLIP},
    "another rate": {"private_sum": PrivateSum(21, CLIP, 1.0, ROWS, sample_rate=0.5)},
    "more noise than is added": {"private_sum": PrivateSum(21, CLIP, 2.0, ROWS)},
    "one bound a layer": {"clipping": "per_layer", "max_grad_norm": [CLIP] * 4},
    "one bound a layer and no sum": {
        "clipping": "per_layer",
        "max_grad_norm": [CLIP] * 4,
        "private_sum": None,
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_combinations_that_do_not_fit_are_refused(name: str) -> None:
    given: dict[str, Any] = {
        "release": "hand_out",
        "private_sum": PrivateSum(21, CLIP, 1.0, ROWS),
        "noise_multiplier": 1.0,
        "clip_norm": CLIP,
        **REFUSED[name],
    }
    if "max_grad_norm" in given:
        given["clip_norm"] = given.pop("max_grad_norm")
    with pytest.raises(PrivacyError):
        training(network(), binary_logistic, *table(), **given)


def test_sums_of_what_is_trained_have_zeros_for_what_is_frozen() -> None:
    module = network()
    module.get_parameter("0.bias").requires_grad_(False)
    whole = PrivateSum(21, CLIP, QUIET, ROWS)
    private = handing_out(module, *table(), private_sum=whole)
    released = handed_out(private)
    assert len(released) == 17
    parts = named_parts(module, released)
    assert {name: part.shape for name, part in parts.items()} == {
        name: parameter.shape for name, parameter in module.named_parameters()
    }
    assert not parts["0.bias"].any()
    assert parts["0.weight"].all()
    assert private.event(1) == whole.event(1)
    with pytest.raises(PrivacyError, match="freeze none"):
        handing_out(module, *table(), QUIET, SHARE, private_sum=replace(whole, share=SHARE))


def test_a_sum_that_is_not_finite_is_handed_out_as_noise_alone() -> None:
    for value in (math.nan, 0.0):
        made = handing_out(network(), *table(), 1.0, noise=SeededNoise(3))
        real = made.private.clip_and_accumulate

        def fill(real: Any = real, private: Any = made.private, v: float = value) -> None:
            real()
            private.clipped.finite = False
            private.clipped.total.fill_(v)

        made.private.clip_and_accumulate = fill
        if value == 0.0:
            expected = handed_out(made)
        else:
            found = handed_out(made)
            assert made.sums_not_finite == 1
    assert torch.equal(found, expected)


# Blocks


@pytest.mark.parametrize("kind", ["step", "hand_out", "hand_out_masked"])
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_in_several_blocks_is_one_sum_and_one_release(mode: str, kind: str) -> None:
    labels = torch.arange(ROWS) % 3
    features = table()[0]
    found = []
    for most in (None, 7):
        torch.manual_seed(2)
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        options: dict[str, Any] = {}
        if kind != "step":
            share = SHARE if kind == "hand_out_masked" else None
            options = {"private_sum": PrivateSum(31, 1.0, 1e-4, ROWS, share=share)}
        sigma = options["private_sum"].party_sigma if options else 1e-4
        private = training(
            module,
            softmax_cross_entropy,
            features,
            labels,
            noise_multiplier=sigma,
            grad_sample_mode=mode,
            physical_batch_size=most,
            release=kind,
            **options,
        )
        calls = {"add_noise": 0, "step_hook": 0, "step": 0}
        blocks: list[int] = []
        counted(private, calls)
        private.wrapped.register_forward_pre_hook(
            lambda _, given, blocks=blocks: blocks.append(len(given[0])), prepend=True
        )
        before = flat([parameter.detach().clone() for parameter in module.parameters()])
        private.run(1)
        moved = before - flat([parameter.detach() for parameter in module.parameters()])
        total = moved if kind == "step" else private.private.take_released().double()
        if kind == "hand_out_masked":
            total = total * options["private_sum"].grid.step
        found.append(total)
        assert sum(blocks) == ROWS
        assert (len(blocks) == 1) == (most is None)
        assert max(blocks) <= (most or ROWS)
        assert calls == {"add_noise": 1, "step_hook": 1, "step": int(kind == "step")}
        assert private.steps_done == 1
        assert private.engine.accountant.history == [(pytest.approx(sigma), 1.0, 1)]
        assert len(private.last_norms) == ROWS
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=2e-3)


def counted(private: PrivateLoop, calls: dict[str, int]) -> None:
    """Count calls of the optimizer's parts, and steps that move weights."""
    optimizer = private.private
    for name in ("add_noise", "step_hook"):
        setattr(optimizer, name, partial(_count, calls, name, getattr(optimizer, name)))
    private.optimizer.register_step_pre_hook(
        lambda *_: calls.__setitem__("step", calls["step"] + 1)
    )


def _count(calls: dict[str, int], name: str, real: Callable[..., Any], *given: Any) -> Any:
    calls[name] += 1
    return real(*given)


@pytest.mark.parametrize("left", [1, 2, 5])
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_a_loop_left_half_way_is_in_no_later_sum(mode: str, left: int) -> None:
    """An error, or a loop that breaks off: had its blocks stayed, a row of both batches would have
    moved the next sum by 2 C; had their order, the next batch would have been released too soon.
    """
    module, (features, labels) = network(), table()
    expected = flat(reference_sum(module, binary_logistic, features, labels, 1.0))
    private = training(
        module,
        binary_logistic,
        features,
        labels,
        grad_sample_mode=mode,
        physical_batch_size=8,
    )
    released = []
    for taken in (left - 1, left, None):  # without and with the step of the last block
        before = flat([parameter.detach().clone() for parameter in module.parameters()])
        private.loader.batch_sampler.steps = 1
        for number, (rows, targets) in enumerate(private.loader, start=1):
            private.private.zero_grad()
            private.criterion(private.wrapped(rows), targets).backward()
            if taken is not None and number > taken:
                break
            private.private.step()
            if number == taken == left:
                break
        now = flat([parameter.detach() for parameter in module.parameters()])
        released.append(before - now)
    limit = 5  # blocks of eight rows
    for moved, taken in zip(released, (left - 1, left, None), strict=True):
        if taken is None or taken == limit:
            assert float(moved.norm()) <= float(expected.norm()) * 1.5 + 1.0
        else:
            assert not moved.any(), "a part of a batch was released"
    if left < limit:
        torch.testing.assert_close(released[2], expected, rtol=1e-3, atol=1e-3)


# Declared figures


@pytest.mark.parametrize("mode", MODES)
def test_the_divisor_is_the_declared_size_whatever_the_rows_are(mode: str) -> None:
    """A learning rate of one: a step is the sum over the declared size."""
    steps = []
    for rows in (ROWS, ROWS - 17):
        module, (features, labels) = network(), table(rows)
        expected = flat(reference_sum(module, binary_logistic, features, labels, CLIP)) / 50.0
        private = PrivateLoop(
            module,
            torch.optim.SGD(module.parameters(), lr=1.0),
            binary_logistic,
            features,
            labels,
            sampler=PoissonSampler(rows, 1.0, declared=50),
            noise_multiplier=QUIET,
            max_grad_norm=CLIP,
            grad_sample_mode=mode,
            steps=3,
        )
        assert private.private.expected_batch_size == 50.0
        assert len(private.loader) == 3
        before = flat([parameter.detach().clone() for parameter in module.parameters()])
        private.run(1)
        moved = before - flat([parameter.detach() for parameter in module.parameters()])
        torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-5)
        steps.append(private.event(2))
    assert steps[0] == steps[1]


@pytest.mark.parametrize("kind", ["step", "hand_out"])
@pytest.mark.parametrize("mode", MODES)
def test_a_table_without_rows_gives_noise_alone(mode: str, kind: str) -> None:
    """2,048 squares of normals in 4 steps each: 8 sigma of their mean is 0.13, once in 1e15."""
    module = nn.Sequential(nn.Linear(64, 31), nn.Tanh(), nn.Linear(31, 1, bias=False))
    size = size_of(module)
    options: dict[str, Any] = {}
    if kind == "hand_out":
        options = {"private_sum": PrivateSum(size, 2.0, 1.5, 100, 0.1)}
    private = PrivateLoop(
        module,
        torch.optim.SGD(module.parameters(), lr=10.0),
        squared_error,
        torch.zeros(0, 64),
        torch.zeros(0),
        sampler=PoissonSampler(0, 0.1, declared=100),
        noise_multiplier=1.5,
        max_grad_norm=2.0,
        grad_sample_mode=mode,
        release=kind,
        **options,
    )
    noise = []
    for _ in range(4):
        before = flat([parameter.detach().clone() for parameter in module.parameters()])
        private.run(1)
        moved = before - flat([parameter.detach() for parameter in module.parameters()])
        noise.append(moved if kind == "step" else private.private.take_released())
    squares = torch.cat(noise).square() / 3.0**2
    assert abs(float(squares.mean()) - 1) < 8 * (2 / len(squares)) ** 0.5
    assert private.steps_done == 4
    assert private.last_fraction_clipped == 0.0
    assert private.applied_sigma == 3.0


@pytest.mark.parametrize("given", [{"sample_rate": 0.5}, {"expected_batch_size": 20.0}])
def test_one_declared_figure_alone_is_refused(given: dict[str, float]) -> None:
    module = network()
    with pytest.raises(PrivacyError, match="give both, or none"):
        PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
            criterion=binary_logistic,
            data_loader=DataLoader(TensorDataset(*table())),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            **given,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("mode", MODES)
def test_sums_that_are_too_large_for_the_grid_of_their_noise_are_refused(mode: str) -> None:
    """Behind 2**50 steps of it, float64 would round by more than a step leaves free."""
    with pytest.raises(PrivacyError, match="too large for noise"):
        training(
            network(), binary_logistic, *table(), noise_multiplier=1e-14, grad_sample_mode=mode
        ).run(1)
