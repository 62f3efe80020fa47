"""Activations by name."""

from __future__ import annotations

import pytest
import torch

from homo_dp.core.errors import ConfigError
from homo_dp.models.activations import ACTIVATIONS, activation


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_name_gives_finite_values_and_slopes(name: str) -> None:
    values = torch.linspace(-30, 30, 61, requires_grad=True)
    outputs = activation(name)(values)
    outputs.sum().backward()
    assert bool(outputs.isfinite().all())
    assert values.grad is not None
    assert bool(values.grad.isfinite().all())


def test_a_tempered_sigmoid_is_bounded_by_its_numbers() -> None:
    found = activation("tempered_sigmoid")(torch.tensor([-1e6, 0.0, 1e6]))
    assert found.tolist() == pytest.approx([-0.71, 0.08, 0.87])


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="choose one of elu, gelu"):
        activation("softsign")
