"""Weights of a model that is trained elsewhere: arrays keep their order, integers are refused."""

import numpy as np
import pytest
import torch

from homo_dp.core.errors import ConfigError
from homo_dp.models.arrays import ArrayModel, array_model


def test_arrays_keep_their_order_by_name() -> None:
    model = ArrayModel([np.full(2, float(number)) for number in range(12)])
    assert [float(model.state_dict()[name][0]) for name in sorted(model.state_dict())] == list(
        range(12)
    )


def test_integers_and_no_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="not floats"):
        ArrayModel([np.arange(3)])
    with pytest.raises(ConfigError, match="is empty"):
        array_model([], outputs=1)


def test_it_predicts_nothing_and_lets_gradients_through() -> None:
    model = array_model([[4, 3], [3]], outputs=2)
    outputs = model(torch.ones(5, 4))
    assert outputs.shape == (5, 2)
    assert not outputs.any()
    outputs.sum().backward()
    assert all(
        parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters()
    )
    first, bias = model.parameters()
    assert first.any()
    assert not bias.any()
