"""What every way of computing per-sample gradients promises, and what they share; imports no Opacus."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn


class ClippedGradients(Protocol):
    """Computes clipped sums for one module and loss.

    Guarantees:
        - one row moves the sum by at most ``max_grad_norm`` (L2 over all tensors of the sum);
        - a row whose gradient is not finite adds nothing.
    """

    batch_rows: int
    """Rows of the whole batch that the next rows are a part of (ghost mode asks); 0: they are all of it."""

    @property
    def rows_not_finite(self) -> int:
        """Rows left out so far because their gradient was not finite."""

    def clipped_sum(
        self,
        features: Tensor,
        labels: Tensor,
        sums: list[Tensor],
        accumulate: bool,
        filling: int = 0,
    ) -> Callable[[], Tensor]:
        """Write (or add) the clipped sum of these rows to the float64 ``sums``; return what gives their norms.

        The last ``filling`` rows are copies that only fill up the batch: they count for nothing.
        """

    def close(self) -> None:
        """Take every hook off the module."""


def out_of_place(module: nn.Module) -> None:
    """Switch activations to new tensors: torch forbids overwriting the output of a hooked layer; values are the same.

    >>> layer = nn.ReLU(inplace=True)
    >>> out_of_place(layer)
    >>> layer.inplace
    False
    """
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]


def has_opacus_layers(module: nn.Module) -> bool:
    """Whether a layer is one of Opacus', or made from one: then Opacus is imported already."""
    return any(
        base.__module__.startswith("opacus.")
        for layer in module.modules()
        for base in type(layer).__mro__
    )
