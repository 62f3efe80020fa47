"""The engine: Opacus loops in secure mode, in every grad-sample mode, at the rate that is
accounted.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dp_accounting import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import squared_error
from homo_dp.privacy.noise.source import OrdinaryNoise, SeededNoise
from homo_dp.privacy.sampling.samplers import PoissonSampler
from tests.privacy.engine_parts import (
    MODES,
    ErrorLoss,
    made_private,
    one_epoch,
    small_table,
    sum_of_epoch,
)
from tests.privacy.training_parts import QUIET, flat, middle_norm, reference_sum

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:In CPU autocast")


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 5), nn.Linear(5, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.outer(inputs + torch.tanh(self.inner(inputs)))
        return outputs


def test_a_loop_over_a_module_with_code_of_its_own_sums_what_one_row_at_a_time_sums() -> None:
    _, features, labels = small_table()
    module = _Residual()
    clip_norm = middle_norm(module, squared_error, features, labels)
    expected = reference_sum(module, squared_error, features, labels, clip_norm)
    parts = made_private(module, features, labels, grad_sample_mode="fast", max_grad_norm=clip_norm)
    torch.testing.assert_close(
        sum_of_epoch(module, parts), flat(expected), rtol=1e-4, atol=1e-4 * clip_norm
    )


@pytest.mark.parametrize("mode", MODES)
def test_an_opacus_loop_sums_what_one_row_at_a_time_sums(mode: str) -> None:
    module, features, labels = small_table()
    clip_norm = middle_norm(module, squared_error, features, labels)
    expected = reference_sum(module, squared_error, features, labels, clip_norm)
    parts = made_private(module, features, labels, grad_sample_mode=mode, max_grad_norm=clip_norm)
    assert isinstance(parts[1], DPOptimizer)
    torch.testing.assert_close(
        sum_of_epoch(module, parts), flat(expected), rtol=1e-4, atol=1e-4 * clip_norm
    )


@pytest.mark.parametrize("mode", MODES)
def test_activations_in_place_work_in_every_mode(mode: str) -> None:
    _, features, labels = small_table()
    made = [
        nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=place), nn.Linear(4, 1))
        for place in (False, True)
    ]
    made[1].load_state_dict(made[0].state_dict())
    expected = flat(reference_sum(made[0], squared_error, features, labels, 1.0))
    parts = made_private(made[1], features, labels, grad_sample_mode=mode)
    torch.testing.assert_close(sum_of_epoch(made[1], parts), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_noise_of_an_opacus_loop_is_secure_and_as_accounted(mode: str) -> None:
    """12,288 coordinates: 6 sigma of the variance is 7.7 %; a false alarm once in 5e8."""
    module = nn.Linear(4096, 1, bias=False)
    engine = PrivacyEngine()
    features, labels = torch.zeros(6, 4096), torch.zeros(6)
    parts = made_private(
        module,
        features,
        labels,
        engine=engine,
        grad_sample_mode=mode,
        noise_multiplier=2.0,
        max_grad_norm=1.5,
    )
    assert engine.secure_mode
    assert engine.noise.private
    noise = torch.stack([sum_of_epoch(module, parts) for _ in range(3)])
    assert abs(float(noise.square().mean()) / 9.0 - 1) < 6 * (2 / noise.numel()) ** 0.5
    assert parts[1].applied_sigma == 3.0
    assert float((torch.corrcoef(noise) - torch.eye(3)).abs().max()) < 6 / 64
    assert engine.accountant.history == [(2.0, 1.0, 3)]


@pytest.mark.parametrize("mode", MODES)
def test_empty_batches_step_and_are_accounted(mode: str) -> None:
    """What the loader gives when nobody was drawn, five times."""
    module = nn.Linear(64, 1)
    engine = PrivacyEngine()
    wrapped, optimizer, criterion, _ = made_private(
        module,
        torch.randn(10, 64),
        torch.zeros(10),
        engine=engine,
        grad_sample_mode=mode,
        lr=1.0,
        noise_multiplier=1.0,
    )
    for _ in range(5):
        before = module.weight.detach().clone()
        assert one_epoch(
            wrapped,
            optimizer,
            criterion,
            [(torch.zeros(0, 64), torch.zeros(0))],  # type: ignore[arg-type]
        ) == [0]
        # Of 64 values on their grid one in 160 is zero: more than half of them never.
        assert float((module.weight.detach() != before).double().mean()) > 0.5
        assert bool(module.weight.isfinite().all())
    assert engine.accountant.history == [(1.0, 1.0, 5)]


def test_the_rate_used_is_the_rate_accounted_and_not_that_of_whole_batches() -> None:
    """300 of 1,000 rows: q = 0.3, where Opacus takes 1 / ceil(1000 / 300) = 0.25; 400 batches, 6
    sigma once in 5e8.
    """
    module, features, labels = small_table(1000)
    engine = PrivacyEngine()
    parts = made_private(
        module, features, labels, engine=engine, batch_size=300, lr=0.1, noise_multiplier=1.0
    )
    assert len(parts[3]) == 4
    assert parts[1].expected_batch_size == 300
    sizes = [size for _ in range(100) for size in one_epoch(*parts)]
    (entry,) = engine.accountant.history
    assert entry == (1.0, 0.3, 400)
    assert abs(sum(sizes) / 400 / 1000 - 0.3) < 6 * (0.3 * 0.7 / 400_000) ** 0.5
    assert len(set(sizes)) > 10


class _Made(Dataset[tuple[Tensor, Tensor]]):
    """Rows made by code: collated one by one."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((5,), float(index)), torch.tensor(float(index))


def test_rows_made_by_code_are_sampled_too_and_empty_batches_keep_their_shape() -> None:
    module, _, _ = small_table()
    engine = PrivacyEngine()
    made = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(_Made(), batch_size=1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    batches = [batch for _ in range(5) for batch in made[2]]
    assert len(batches) == 200
    assert {batch[0].shape[1:] for batch in batches} == {(5,)}
    assert 0 in {len(batch[0]) for batch in batches}, (
        "200 batches of rate 1/40: an empty one is missing once in 1e36"
    )
    assert all(torch.equal(rows[:, 0], labels) for rows, labels in batches)


@pytest.mark.parametrize("mode", ["hooks", "ghost", "fast"])
def test_a_logical_batch_in_pieces_is_one_accounted_step(mode: str) -> None:
    module, features, labels = small_table()
    clip_norm = middle_norm(module, squared_error, features, labels)
    expected = reference_sum(module, squared_error, features, labels, clip_norm)
    engine = PrivacyEngine()
    wrapped, optimizer, criterion, loader = made_private(
        module, features, labels, engine=engine, grad_sample_mode=mode, max_grad_norm=clip_norm
    )
    before = flat([parameter.detach().clone() for parameter in module.parameters()])
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=5, optimizer=optimizer
    ) as pieces:
        sizes = one_epoch(wrapped, optimizer, criterion, pieces)
    moved = before - flat([parameter.detach() for parameter in module.parameters()])
    assert max(sizes) <= 5
    assert sum(sizes) == 24
    torch.testing.assert_close(moved, flat(expected), rtol=1e-4, atol=1e-4 * clip_norm)
    assert engine.accountant.history == [(QUIET, 1.0, 1)]


class _Listed(Dataset[tuple[Tensor, Tensor]]):
    """A table behind code."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self._rows = list(zip(features, labels, strict=True))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._rows[index]


class _WeightOutsideItsLayer(nn.Module):
    """Uses a layer's weight a second time behind the back of every hook."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs).tanh() @ self.layer.weight
        return outputs.sum(1, keepdim=True)


@pytest.mark.parametrize("mode", ["ghost", "hooks", "functorch"])
def test_a_weight_used_outside_its_layer_is_refused(mode: str) -> None:
    _, features, labels = small_table()
    with pytest.raises(PrivacyError, match=f"{mode} does not see every gradient"):
        made_private(_WeightOutsideItsLayer(), features, labels, grad_sample_mode=mode)
    with pytest.raises(PrivacyError, match=f"{mode} does not see every gradient"):
        PrivacyEngine().make_private(
            module=(module := _WeightOutsideItsLayer()),
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(_Listed(features, labels), batch_size=4),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
        )


@pytest.mark.parametrize("mode", ["fast", "hooks", "functorch", "ew"])
def test_a_row_that_is_not_finite_adds_nothing(mode: str) -> None:
    module, features, labels = small_table()
    expected = reference_sum(module, squared_error, features[1:], labels[1:], 1.0)
    features[0, 0] = math.nan
    parts = made_private(module, features, labels, grad_sample_mode=mode)
    torch.testing.assert_close(sum_of_epoch(module, parts), flat(expected), rtol=1e-4, atol=1e-4)


def test_target_epsilon_is_reached_from_below() -> None:
    module, features, labels = small_table(500)
    engine = PrivacyEngine()
    wrapped, optimizer, loader = engine.make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(features, labels), batch_size=60),
        target_epsilon=3.0,
        target_delta=1e-5,
        epochs=4,
        max_grad_norm=1.0,
    )
    for _ in range(4):
        one_epoch(wrapped, optimizer, ErrorLoss(), loader)
    assert engine.accountant.history == [(optimizer.noise_multiplier, 0.12, 36)]
    assert 3.0 * 0.995 < engine.get_epsilon(1e-5) <= 3.0


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(3.0, 0.01), (3.0, 0.0), (3.0, math.nan), (0.0, 1e-3), (math.inf, 1e-3)]
)
def test_targets_that_promise_nothing_are_refused(epsilon: float, delta: float) -> None:
    module, features, labels = small_table(100)
    with pytest.raises(PrivacyError, match=r"delta=|target_epsilon="):
        PrivacyEngine().make_private_with_epsilon(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(features, labels), batch_size=10),
            target_epsilon=epsilon,
            target_delta=delta,
            epochs=4,
            max_grad_norm=1.0,
        )


def test_steps_spent_before_count_towards_the_target() -> None:
    engine = PrivacyEngine()
    engine.accountant.history = [(1.5, 0.1, 10)]
    beside = engine.noise_multiplier_for(3.0, 1e-5, 0.1, 40)
    engine.accountant.history.append((beside, 0.1, 40))
    assert 3.0 * 0.995 < engine.get_epsilon(1e-5) <= 3.0
    with pytest.raises(PrivacyError, match=r"target_epsilon=2\.0 is spent already"):
        engine.noise_multiplier_for(2.0, 1e-5, 0.1, 40)


def test_auto_is_fast_where_it_can_be_and_says_why_not() -> None:
    module, features, labels = small_table()
    engine = PrivacyEngine()
    parts = made_private(module, features, labels, engine=engine)
    assert type(parts[1]).__name__ == "FastDPOptimizer"
    assert engine.mode_reason == "every trainable layer is supported"
    parts = made_private(_Residual(), features, labels, engine=(own := PrivacyEngine()))
    assert type(parts[1]).__name__ == "FastDPOptimizer"
    assert own.mode_reason == "every trainable layer is supported"
    other = PrivacyEngine()
    parts = made_private(nn.Sequential(nn.Linear(5, 1), nn.PReLU()), features, labels, engine=other)
    assert type(parts[1]).__name__ == "SecureDPOptimizer"
    assert other.mode_reason == "1: PReLU has no fast gradient"


def test_per_layer_clipping_and_adaptive_noise_schedules_of_opacus_work() -> None:
    module, features, labels = small_table()
    engine = PrivacyEngine()
    parts = made_private(
        module, features, labels, engine=engine, clipping="per_layer", max_grad_norm=[0.5] * 4
    )
    one_epoch(*parts)
    parts[1].noise_multiplier = 3.0
    one_epoch(*parts)
    assert engine.accountant.history == [(QUIET, 1.0, 1), (3.0, 1.0, 1)]
    assert parts[1].applied_sigma == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier=0.0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0"),
        ({"poisson_sampling": False}, "poisson_sampling=False"),
        ({"noise_generator": torch.Generator()}, "noise_generator"),
        ({"rand_on_empty": True}, "rand_on_empty"),
        ({"clipping": "adaptive"}, "clipping='adaptive'"),
        ({"grad_sample_mode": "no_op"}, "grad_sample_mode='no_op'"),
    ],
)
def test_requests_that_would_not_be_private_are_refused(
    change: dict[str, Any], message: str
) -> None:
    module, features, labels = small_table()
    with pytest.raises(PrivacyError, match=message):
        made_private(module, features, labels, **change)


def test_seeded_noise_is_never_taken_for_secure() -> None:
    with pytest.raises(PrivacyError, match="NOT PRIVATE"):
        PrivacyEngine(noise=SeededNoise(1))
    with pytest.raises(PrivacyError, match=r"OrdinaryNoise.* is not secure"):
        PrivacyEngine(noise=OrdinaryNoise())
    assert isinstance(PrivacyEngine(secure_mode=False).noise, OrdinaryNoise)
    assert not PrivacyEngine(secure_mode=False, noise=SeededNoise(1)).noise.private
    with pytest.raises(PrivacyError, match="accountant='gdp'"):
        PrivacyEngine(accountant="gdp")


class _Several(nn.Module):
    """Predictions, and what somebody may want to look at beside them."""

    def __init__(self, kind: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.kind = nn.Linear(5, 1), kind

    def forward(self, inputs: Tensor) -> Any:
        return self.kind(self.inner(inputs))


@pytest.mark.parametrize(
    "kind",
    [
        lambda a: (a, a.sum(0)),
        lambda a: {"a": a, "mean": [a.mean()]},
        lambda a: (a, (a, a.softmax(0))),
    ],
)
def test_none_of_several_outputs_may_mix_rows(kind: Callable[[Tensor], Any]) -> None:
    """The loss is not known here, and may use any of them."""
    _, features, labels = small_table()
    with pytest.raises(PrivacyError, match="row"):
        made_private(_Several(kind), features, labels, grad_sample_mode="hooks")


@pytest.mark.parametrize("mode", ["auto", "hooks", "functorch"])
@pytest.mark.parametrize(
    "kind",
    [
        lambda a: (a, (2 * a, a.unsqueeze(0).repeat(2, 1, 1))),  # a state: layers, rows, features
        lambda a: {"found": a, "more": [a > 0, a.square(), torch.ones(9), None]},
    ],
)
def test_a_model_may_give_several_outputs(mode: str, kind: Callable[[Tensor], Any]) -> None:
    _, features, labels = small_table()
    module = _Several(kind)
    expected = reference_sum(module.inner, squared_error, features, labels, 1.0)
    wrapped, optimizer, criterion, loader = made_private(
        module, features, labels, grad_sample_mode=mode
    )
    before = flat([parameter.detach().clone() for parameter in module.parameters()])
    for rows, targets in loader:
        found = wrapped(rows)
        criterion(found["found"] if isinstance(found, dict) else found[0], targets).backward()
        optimizer.step()
    after = flat([parameter.detach() for parameter in module.parameters()])
    torch.testing.assert_close(before - after, flat(expected), rtol=1e-4, atol=1e-4)


class _ForgetfulEngine(PrivacyEngine):
    """Starts its accountant anew with every round."""

    def make_private(self, **options: Any) -> Any:
        self.accountant.history = []
        return super().make_private(**options)


def _check_accountant_sees_every_round(engine: PrivacyEngine) -> None:
    """Three rounds of ten steps cost what thirty steps cost, by dp-accounting's RDP (2 % for its
    other orders).
    """
    for _ in range(3):
        parts = made_private(
            *small_table(500), engine=engine, batch_size=50, lr=0.1, noise_multiplier=1.0
        )
        assert len(one_epoch(*parts)) == 10
    event = PoissonSampler(500, 0.1).event(1.0, 30)
    expected = (
        RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
        .compose(event)
        .get_epsilon(1e-5)
    )
    reported = engine.get_epsilon(1e-5)
    assert abs(reported / expected - 1) < 0.02, f"epsilon {reported} reported, {expected} spent"


def test_the_accountant_sees_every_round_and_a_forgetful_one_is_noticed() -> None:
    _check_accountant_sees_every_round(PrivacyEngine())
    with pytest.raises(AssertionError):
        _check_accountant_sees_every_round(_ForgetfulEngine())
