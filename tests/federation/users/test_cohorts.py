"""Users trained together: the same sums as one at a time, whatever the model, the sizes, the
pieces and the options.
"""

import logging
import math
from typing import Any

import pytest
import torch
from torch import nn

from homo_dp.config.schema import TrainConfig
from homo_dp.federation.mechanisms.base import Weights
from homo_dp.federation.mechanisms.cohort_mechanism import CohortSum
from homo_dp.federation.mechanisms.flat_weights import Layout
from homo_dp.federation.users.cohorts import CohortTraining, OneAtATime, Together, cohort_training
from homo_dp.federation.users.user_rows import Users
from homo_dp.models.builtin import cnn, logistic_regression, mlp
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.losses import binary_logistic, softmax_cross_entropy, squared_error
from tests.federation.user_parts import ADAPTIVE, Keys, user_config, user_mechanism

SIZES = [1, 7, 30, 12, 2, 19, 30, 5]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def ragged_users(
    shape: tuple[int, ...] = (6,), classes: int = 2, sizes: list[int] | None = None
) -> Users:
    sizes = sizes or SIZES
    rows, seeded = sum(sizes), generator()
    numbers = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    shuffled = torch.randperm(rows, generator=seeded)
    features = torch.randn(rows, *shape, generator=seeded)
    labels = torch.randint(classes, (rows,), generator=seeded)
    return Users.of(features, labels, numbers[shuffled])


class Scaled(nn.Module):
    """A scalar weight on top of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.linear = nn.Linear(6, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(features) * self.scale
        return outputs


class WithBatchNorm(nn.Sequential):
    """Writes to its buffers, which cannot be vectorised over users."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


MODELS: dict[str, tuple[Any, Any, tuple[int, ...], int]] = {
    "logistic": (lambda: logistic_regression(6, 1, generator()), binary_logistic, (6,), 2),
    "no_bias": (
        lambda: logistic_regression(6, 1, generator(), bias=False),
        binary_logistic,
        (6,),
        2,
    ),
    "classes": (lambda: logistic_regression(6, 4, generator()), softmax_cross_entropy, (6,), 4),
    "images": (
        lambda: logistic_regression(6, 4, generator(), flatten=True),
        softmax_cross_entropy,
        (2, 3),
        4,
    ),
    "regression": (lambda: nn.Linear(6, 1), squared_error, (6,), 2),
    "mlp": (lambda: mlp(6, [5], 3, generator()), softmax_cross_entropy, (6,), 3),
    "cnn": (lambda: cnn((1, 8, 8), [4], [], 3, generator()), softmax_cross_entropy, (1, 8, 8), 3),
    "scalar": (Scaled, binary_logistic, (6,), 2),
    "own_loss": (lambda: nn.Linear(6, 1), lambda out, y: (out[:, 0] - y).abs(), (6,), 2),
}


OPTIONS: dict[str, Keys] = {
    "steps": {"train.local_steps": 3, "train.batch_size": 4},
    "epochs": {"train.local_epochs": 2, "train.batch_size": 7},
    "whole": {"train.local_steps": 2, "train.batch_size": 100},
    "rate": {"train.local_epochs": 1.5, "train.sample_rate": 0.3},
    "momentum": {"train.local_epochs": 1, "train.batch_size": 5, "train.momentum": 0.9},
    "decay_and_pull": {"train.local_steps": 3, "train.weight_decay": 0.1, "train.proximal_mu": 0.5},
    "schedule": {"train.local_epochs": 1, "train.batch_size": 5, "train.schedule": "inverse_sqrt"},
    "clip_each_step": {
        "train.local_steps": 4,
        "train.batch_size": 4,
        "privacy.clip_each_step": True,
    },
}


def start_weights(model: nn.Module) -> Weights:
    seeded = generator()
    return {
        name: 0.3 * torch.randn(tensor.shape, generator=seeded) + tensor
        for name, tensor in model.state_dict().items()
    }


def both(name: str, keys: Keys, sizes: list[int] | None = None) -> tuple[CohortSum, CohortSum]:
    """The sums of one cohort, trained together and one at a time."""
    make, loss, shape, classes = MODELS[name]
    few: Keys = {
        "train.learning_rate": 0.2,
        "privacy.clip_norm": 0.4,
        "privacy.adaptive.initial_clip_norm": 0.4,
    }
    config = user_config(ADAPTIVE, few, keys)
    users = ragged_users(shape, classes, sizes)
    model = make()
    # 900 never replies
    weights, chosen = start_weights(model), torch.tensor([0, 1, 2, 3, 5, 6, 7, 900])
    kinds: tuple[type[CohortTraining], ...] = (Together, OneAtATime)
    together, alone = (
        kind(model, loss, users, config.train).run(
            user_mechanism(config), chosen, weights, round_number=2
        )
        for kind in kinds
    )
    return together, alone


def assert_same(together: CohortSum, alone: CohortSum) -> None:
    assert together.replies == alone.replies
    assert together.bits == alone.bits
    assert torch.allclose(together.updates, alone.updates, rtol=1e-4, atol=1e-6)
    assert float(alone.updates.norm()) > 0


@pytest.mark.parametrize("options", list(OPTIONS))
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_together_is_one_at_a_time(model: str, options: str) -> None:
    assert_same(*both(model, OPTIONS[options]))


@pytest.mark.parametrize("model", list(MODELS))
def test_every_model(model: str) -> None:
    assert_same(*both(model, OPTIONS["steps"]))


def test_some_users_are_clipped_and_some_are_not() -> None:
    together, _ = both("logistic", OPTIONS["steps"])
    assert -together.replies / 2 < together.bits < together.replies / 2


def test_other_batches_give_other_sums() -> None:
    # the comparison above would notice a different order of rows
    first, second = (
        both("logistic", {**OPTIONS["steps"], "train.seed": 1}),
        both("logistic", OPTIONS["steps"]),
    )
    assert not torch.allclose(first[0].updates, second[0].updates, rtol=1e-4, atol=1e-6)


def test_pieces_change_nothing() -> None:
    make, loss, shape, classes = MODELS["mlp"]
    config = user_config(OPTIONS["epochs"])
    users, model = ragged_users(shape, classes), make()
    weights, chosen = start_weights(model), torch.arange(len(SIZES))
    whole = Together(model, loss, users, config.train).run(
        user_mechanism(config), chosen, weights, 1
    )
    single = Together(model, loss, users, config.train, memory_bytes=1)
    pieces = single.run(user_mechanism(config), chosen, weights, 1)
    limited = user_config(OPTIONS["epochs"], {"train.physical_batch_size": 14}).train
    rows = Together(model, loss, users, limited).run(user_mechanism(config), chosen, weights, 1)
    assert_same(whole, pieces)
    assert_same(whole, rows)


def test_one_large_user_does_not_hold_up_the_small_ones() -> None:
    """In one piece with it they would be computed to its last step, and only few at a time."""
    users, config = (
        ragged_users(sizes=[3] * 50 + [3000]),
        user_config({"train.local_epochs": 1, "train.batch_size": 2}),
    )
    training = Together(nn.Linear(6, 1), binary_logistic, users, config.train)
    layout = Layout.of(training.model.state_dict())
    assert training._pieces(torch.arange(51), layout) == [50, 1]
    assert training._pieces(torch.arange(50), layout) == [50]
    # 3 rows each, and 3,000
    whole = TrainConfig(local_steps=1, sample_rate=1.0, physical_batch_size=2000)
    assert Together(nn.Linear(6, 1), binary_logistic, users, whole)._pieces(
        torch.arange(51), layout
    ) == [50, 1]


def test_one_user_that_diverges_leaves_the_others_alone() -> None:
    make, loss, shape, classes = MODELS["logistic"]
    config = user_config(OPTIONS["steps"], ADAPTIVE)
    users = ragged_users(shape, classes)
    model = make()
    weights = start_weights(model)
    good = Together(model, loss, users, config.train).run(
        user_mechanism(config), torch.tensor([1, 2]), weights, 1
    )
    users.features[int(users.offsets[3]) : int(users.offsets[4])] = math.nan
    mechanism = user_mechanism(config)
    mixed = Together(model, loss, users, config.train).run(
        mechanism, torch.tensor([1, 2, 3]), weights, 1
    )
    assert torch.allclose(good.updates, mixed.updates, rtol=1e-5, atol=1e-7)
    assert mixed.bits == good.bits - 0.5
    assert mechanism.not_finite == 1


def test_an_empty_cohort_is_an_empty_sum() -> None:
    make, loss, shape, classes = MODELS["logistic"]
    config = user_config(OPTIONS["steps"])
    users, model = ragged_users(shape, classes), make()
    for kind in (Together, OneAtATime):
        none = kind(model, loss, users, config.train).run(
            user_mechanism(config), torch.empty(0, dtype=torch.int64), start_weights(model), 1
        )
        assert (none.replies, none.bits, float(none.updates.norm())) == (0, 0.0, 0.0)


def moved_by_one_more(**train: float) -> float:
    """By how many clip norms one user more moves the sum of all others, where steps make a
    rounding large.
    """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
    users = ragged_users((10,), sizes=[7] * 19 + [40])
    keys = {"local_epochs": 20, "batch_size": 40, "learning_rate": 10.0} | train
    config = user_config({f"train.{name}": value for name, value in keys.items()})
    mechanism = user_mechanism(config, parameters=sum(each.numel() for each in model.parameters()))
    training = cohort_training(model, binary_logistic, users, config.train)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    groups = (torch.arange(20), torch.arange(19), torch.tensor([19]))
    everybody, others, one = (
        training.run(mechanism, group, weights, 1).updates for group in groups
    )
    return float((everybody - others - one).norm()) / mechanism.clip_norm


@pytest.mark.parametrize("train", [{}, {"learning_rate": 0.5, "momentum": 0.95}], ids=str)
def test_nobody_s_update_depends_on_who_else_is_trained_where_steps_are_large(
    train: dict[str, float],
) -> None:
    # together it was 0.01 at the rate of 10, and 1.3 after 100 epochs at 30
    assert moved_by_one_more(**train) < 1e-12


def test_users_whose_settings_somebody_else_chose_are_apart_and_so_are_those_with_large_steps() -> (
    None
):
    users = ragged_users()
    for apart, rate, momentum, expected in (
        (False, 1.0, 0.0, False),
        (False, 0.1, 0.9, False),
        (True, 0.1, 0.0, True),
        (False, 1.1, 0.0, True),
        (False, 0.2, 0.9, True),
    ):
        train = TrainConfig(local_steps=1, learning_rate=rate, momentum=momentum)
        chosen = cohort_training(nn.Linear(6, 1), binary_logistic, users, train, apart=apart)
        assert isinstance(chosen, Together)
        assert chosen.apart is expected


def test_linear_and_vectorised_models_are_trained_together() -> None:
    for name in ("logistic", "mlp", "cnn", "scalar"):
        make, loss, shape, classes = MODELS[name]
        chosen = cohort_training(
            make(), loss, ragged_users(shape, classes), TrainConfig(local_steps=1)
        )
        assert isinstance(chosen, Together)


def test_adam_and_models_that_cannot_be_vectorised_are_trained_one_at_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    users = ragged_users(sizes=[4, 4, 4])
    with caplog.at_level(logging.INFO):
        adam = cohort_training(
            nn.Linear(6, 1), binary_logistic, users, TrainConfig(local_steps=1, optimizer="adam")
        )
        batch_norm = cohort_training(
            WithBatchNorm(), binary_logistic, users, TrainConfig(local_steps=1)
        )
    assert isinstance(adam, OneAtATime)
    assert isinstance(batch_norm, OneAtATime)
    assert "one at a time" in caplog.text


def test_buffers_are_refused_unless_declared_and_then_stay() -> None:
    users, model = ragged_users(sizes=[4, 4, 4]), WithBatchNorm()
    names = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for public in ([], names):
        config = user_config(OPTIONS["whole"], {"privacy.public_tensors": public})
        training = cohort_training(model, binary_logistic, users, config.train)
        mechanism = user_mechanism(config)
        if not public:
            with pytest.raises(PrivacyError, match="num_batches_tracked"):
                training.run(mechanism, torch.arange(3), weights, 1)
            continue
        total = training.run(mechanism, torch.arange(3), weights, 1)
        combined = mechanism.combine(total, weights, 1)
        assert all(torch.equal(combined.weights[name], weights[name]) for name in names)
