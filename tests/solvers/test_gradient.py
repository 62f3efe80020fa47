"""Gradients around the middle of columns: the same step as in the columns' own axes, and public
numbers alone.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from homo_dp.federation.mechanisms.base import FederationFacts, Update
from homo_dp.federation.mechanisms.dp_fedsgd import DpFedSgd
from homo_dp.federation.sessions.build import build_mechanism, federation_facts, noise_source
from homo_dp.solvers.gradient import CENTRES, SHORTEST, BoundedGradient, CentredRows
from homo_dp.solvers.solver import as_table, as_weights
from tests.federation.small import FEATURES, small_config, small_party, weights_message, zeros

LEVELS = {1: 0.5, 2: 0.5}


def mechanism_of(rows: int, **keys: Any) -> DpFedSgd:
    config = small_config(
        privacy__mechanism="dp_fedsgd",
        train__local_steps=None,
        train__solver="gradient",
        train__row_norm=2.0,
        train__learning_rate=1.0,
        train__sample_rate=1.0,
        **keys,
    )
    facts: FederationFacts = federation_facts(
        config, {"a": rows}, FEATURES + config.model.bias, levels=LEVELS
    )
    made = build_mechanism(config, facts, noise_source(config))
    assert isinstance(made, DpFedSgd)
    return made


def test_a_step_is_that_of_the_gradient_in_the_turned_axes() -> None:
    rows = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows[:, -1] = 1.0
    axes = CentredRows(torch.tensor([0.0, 0.5, 0.5]), ones=0.5, reach=3.0)
    turn = torch.eye(4, dtype=torch.float64)
    turn[-1] = torch.tensor([0.0, -0.5, -0.5, 0.5])
    residuals = torch.rand(1, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    reach = torch.diag(torch.tensor([1.0, 1.0, 1.0, 3.0], dtype=torch.float64))
    assert torch.allclose(
        axes.back(residuals @ (rows @ turn)), residuals @ rows @ turn @ reach @ turn.t()
    )


@pytest.mark.parametrize(("kappa", "ones"), [(1.0, SHORTEST), (20.0, 0.5), (40.0, 1.0), (1e6, 1.0)])
def test_the_column_of_ones_is_short_only_where_noise_drowns_it(kappa: float, ones: float) -> None:
    assert CentredRows.of(torch.zeros(3), 2.0, kappa, 1.0).ones == pytest.approx(ones)


def test_noise_moves_the_bias_by_little_and_its_steps_are_no_longer_than_its_curve() -> None:
    axes = CentredRows.of(torch.zeros(3), row_norm=10.0, kappa=1e6, noise=0.01)
    assert axes.ones * axes.reach * 0.01 == pytest.approx(0.15)
    assert CentredRows.of(
        torch.zeros(3), row_norm=10.0, kappa=1e6, noise=1e-9
    ).reach == pytest.approx(100.0)


def test_axes_follow_from_declared_levels_and_noise() -> None:
    many, few = mechanism_of(10_000), mechanism_of(10)
    assert many.broadcast_tensors(1, {})[CENTRES].tolist() == pytest.approx([0.0, 0.5, 0.5, 1.0])
    assert few.broadcast_tensors(1, {})[CENTRES].tolist() == pytest.approx(
        [0.0, 0.5, 0.5, SHORTEST]
    )
    shape, dtype = few.broadcast_signature(1)[CENTRES]
    assert (tuple(few.broadcast_tensors(1, {})[CENTRES].shape), torch.float32) == (shape, dtype)
    assert not mechanism_of(10, model__bias=False).broadcast_tensors(1, {})


def test_the_aggregator_goes_back_to_the_columns_own_axes() -> None:
    mechanism = mechanism_of(10_000)
    assert isinstance(mechanism.solver, BoundedGradient)
    turned = {
        "linear.weight": torch.tensor([[100.0, 200.0, 400.0]]),
        "linear.bias": torch.tensor([50.0]),
    }
    moved = mechanism.on_receive([Update("a", turned, 1.0)], zeros(), 1).weights
    step = as_weights(mechanism.solver.axes.back(as_table(turned)) / 10_000, zeros())
    assert torch.allclose(moved["linear.weight"], -step["linear.weight"])
    assert torch.allclose(moved["linear.bias"], -step["linear.bias"])


def test_a_party_takes_no_weights_without_axes(tmp_path: Path) -> None:
    config = mechanism_of(20).config
    party = small_party(config, tmp_path, mechanism=mechanism_of(20))
    with pytest.raises(Exception, match=r"solver\.centres"):
        party.handle(weights_message())
