"""Built-in models: their first weights, their shapes, and none of both without a generator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from homo_dp.models.builtin import cnn, linear_regression, logistic_regression, mlp, norm_groups

Make = Callable[[torch.Generator | None], nn.Module]
MODELS: dict[str, tuple[Make, tuple[int, ...], int]] = {
    "logistic": (lambda generator: logistic_regression(5, 3, generator), (5,), 3),
    "flat images": (
        lambda generator: logistic_regression(12, 1, generator, flatten=True),
        (3, 2, 2),
        1,
    ),
    "linear": (lambda generator: linear_regression(5, generator, bias=False), (5,), 1),
    "mlp": (lambda generator: mlp(5, [7, 4], 2, generator), (5,), 2),
    "cnn": (lambda generator: cnn((1, 9, 9), [4, 8], [6], 10, generator), (1, 9, 9), 10),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_start_at_zero_whatever_the_record(name: str) -> None:
    make, shape, outputs = MODELS[name]
    found = make(torch.Generator().manual_seed(1))(torch.randn(4, *shape))
    assert found.shape == (4, outputs)
    assert not bool(found.any())


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    make = MODELS[name][0]
    first = make(torch.Generator().manual_seed(1)).state_dict()
    torch.manual_seed(99)
    again = make(torch.Generator().manual_seed(1)).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)


@pytest.mark.parametrize("name", MODELS)
def test_without_a_generator_there_are_shapes_only(name: str) -> None:
    make = MODELS[name][0]
    shapes, real = make(None).state_dict(), make(torch.Generator()).state_dict()
    assert all(tensor.is_meta for tensor in shapes.values())
    assert {key: tensor.shape for key, tensor in shapes.items()} == {
        key: t.shape for key, t in real.items()
    }


def test_rows_of_a_cnn_do_not_meet() -> None:
    model, rows = (
        cnn((1, 8, 8), [4], [], 2, torch.Generator().manual_seed(1)),
        torch.randn(5, 1, 8, 8),
    )
    nn.init.normal_(model[-1].weight)  # type: ignore[arg-type]
    torch.testing.assert_close(model(rows)[:1], model(rows[:1]))
    assert [norm_groups(count) for count in (3, 12)] == [1, 3]
