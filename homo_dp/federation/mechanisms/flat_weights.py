"""A model's weights as one flat vector and back: what is clipped together is laid out together."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from homo_dp.federation.mechanisms.base import Weights
from homo_dp.privacy.errors import PrivacyError


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of the tensors in the vector; tensors declared public are not in it.

    >>> layout = Layout.of({"w": torch.ones(2, 2), "b": torch.tensor(3.0), "steps": torch.tensor(7)}, {"steps"})
    >>> layout.flatten({"w": torch.ones(2, 2), "b": torch.tensor(3.0)}).tolist()
    [1.0, 1.0, 1.0, 1.0, 3.0]
    """

    shapes: Mapping[str, torch.Size]
    dtypes: Mapping[str, torch.dtype]

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], public: Collection[str] = ()) -> Layout:
        """The layout of these weights; a tensor that cannot be clipped and noised has to be
        declared public.
        """
        check_public(weights, public)
        kept = {name: tensor for name, tensor in weights.items() if name not in public}
        return cls(
            {name: tensor.shape for name, tensor in kept.items()},
            {name: tensor.dtype for name, tensor in kept.items()},
        )

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return sum(self._sizes)

    @property
    def dtype(self) -> torch.dtype:
        """The widest type among the tensors."""
        return torch.float64 if torch.float64 in self.dtypes.values() else torch.float32

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes.values()]

    def flatten(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The tensors one after the other."""
        return torch.cat([weights[name].reshape(-1).to(self.dtype) for name in self.shapes])

    def unflatten(self, vector: Tensor) -> Weights:
        """The tensors of a vector, in their own types."""
        pieces = torch.split(vector, self._sizes)
        return {
            name: piece.reshape(shape).to(self.dtypes[name])
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def views(self, rows: Tensor) -> Weights:
        """The tensors of many vectors (rows), stacked along the first dimension; they share the
        rows' memory.
        """
        pieces = torch.split(rows, self._sizes, dim=1)
        return {
            name: piece.view(len(rows), *shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }


def check_public(weights: Mapping[str, Tensor], public: Collection[str]) -> None:
    """Refuse tensors without a place: not a floating point number and not declared public, or declared and not there.

    >>> check_public({"batches": torch.tensor(3)}, ())
    Traceback (most recent call last):
    ...
    homo_dp.privacy.errors.PrivacyError: batches: dtype=torch.int64 cannot be clipped and noised; \
declare it in privacy.public_tensors if it holds no data, or remove it
    """
    for name in public:
        if name not in weights:
            raise PrivacyError(
                f"privacy.public_tensors={name}: the model has no such tensor; take it off the list"
            )
    for name, tensor in weights.items():
        if name not in public and tensor.dtype not in (torch.float32, torch.float64):
            raise PrivacyError(
                f"{name}: dtype={tensor.dtype} cannot be clipped and noised; declare it in "
                "privacy.public_tensors if it holds no data, or remove it"
            )


def check_module(module: nn.Module, public: Collection[str]) -> None:
    """Refuse a module with state beside its trained weights that was not declared public.

    Guarantees:
        - every tensor that is sent is a trained weight, which is clipped and noised, or declared
          public, which never changes; a buffer is not passed through.
    """
    state = module.state_dict(keep_vars=True)
    check_public(state, public)
    for name, tensor in state.items():
        trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
        if not trained and name not in public:
            kind = "frozen weight" if isinstance(tensor, nn.Parameter) else "buffer"
            raise PrivacyError(
                f"{name}: is a {kind}, not a trained weight; declare it in privacy.public_tensors "
                "if it holds no data (it then keeps its first value), or remove it"
            )
        if trained and name in public:
            raise PrivacyError(
                f"privacy.public_tensors={name}: is trained on data; freeze it or take it off the "
                "list"
            )
    if len(public) == len(state):
        raise PrivacyError(
            "the model has 0 trained weights; leave at least one off privacy.public_tensors"
        )
