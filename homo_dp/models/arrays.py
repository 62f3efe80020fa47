"""The weights of a model that is trained elsewhere, by a client of another framework: arrays in
a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from homo_dp.core.errors import ConfigError


class ArrayModel(nn.Module):
    """Arrays as parameters.

    >>> [tuple(p.shape) for p in ArrayModel([np.zeros((2, 3)), np.zeros(3)]).parameters()]
    [(2, 3), (3,)]
    """

    def __init__(self, arrays: Sequence[np.ndarray], outputs: int = 1) -> None:
        super().__init__()
        self.outputs = outputs
        for at, array in enumerate(arrays):
            if np.asarray(array).dtype.kind != "f":
                raise ConfigError(
                    f"weights: array {at} holds {np.asarray(array).dtype}, not floats; keep it at "
                    "the client"
                )
            self.register_parameter(
                f"array_{at:04}", nn.Parameter(torch.from_numpy(np.array(array, dtype=np.float32)))
            )

    def forward(self, rows: Tensor) -> Tensor:
        """Outputs that are zero for every row: the model itself is elsewhere."""
        nothing = sum(
            (parameter.sum() * 0.0 for parameter in self.parameters()), start=rows.new_zeros(())
        )
        return rows.new_zeros(len(rows), self.outputs) + nothing


def array_model(shapes: Sequence[Sequence[int]], outputs: int) -> ArrayModel:
    """A factory (``model.factory``) for clients between machines: uniform first weights by fan-in,
    biases zero.

    >>> [tuple(p.shape) for p in array_model([[4, 3], [3]], outputs=1).parameters()]
    [(4, 3), (3,)]
    """
    if not shapes:
        raise ConfigError(
            "model.options.shapes: is empty; give the shape of every array, such as [[30, 2], [2]]"
        )
    arrays = []
    for shape in shapes:
        bound = 1 / math.sqrt(shape[0]) if len(shape) > 1 else 0.0
        arrays.append(((torch.rand(*shape) * 2 - 1) * bound).numpy())
    return ArrayModel(arrays, outputs)
