"""Products of rows with weights that give a row the same bits wherever it stands among the rows.

BLAS has kernels for narrow results (up to 11 columns with MKL 2024) that take rows by where they
start in memory. How they round a row then depends on how many rows are before it, and so on other
records; a ReLU at zero makes a whole gradient of that last bit. So results are made LEAST columns
wide at least, and float64 rows start at a multiple of 32 bytes. Nothing here is taken on trust:
``batch_invariance.py`` compares, on the machine that trains.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LEAST = 16  # columns of a result
_PLAIN = (Tensor, nn.Parameter, type(None))


def wide_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear`` whose result is LEAST columns wide inside, and so is autograd's gradient at
    its inputs.
    """
    outputs, columns = weight.shape
    more, longer = (
        _missing(outputs, weight),
        _missing(columns, weight) if inputs.requires_grad else 0,
    )
    if weight.dtype is torch.float64:
        longer = max(longer, -columns % 4)
    if not more and not longer:
        return F.linear(inputs, weight, bias)
    weight = F.pad(weight, (0, longer, 0, more))
    inputs = F.pad(inputs, (0, longer)) if longer else inputs
    result = F.linear(inputs, weight, None if bias is None else F.pad(bias, (0, more)))
    return result[..., :outputs].contiguous() if more else result


class WideProducts(TorchFunctionMode):
    """Makes the Linear layers of a model that runs inside wide, whoever calls them."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by torch for every function."""
        given = kwargs or {}
        if (
            func is F.linear
            and not given
            and 2 <= len(args) <= 3
            and all(type(each) in _PLAIN for each in args)
        ):
            return wide_linear(args[0], args[1], args[2] if len(args) == 3 else None)
        return func(*args, **given)


def wide_product(rows: Tensor, weight: Tensor) -> Tensor:
    """``rows @ weight`` with a result that is LEAST columns wide inside."""
    terms, columns = weight.shape
    more, longer = _missing(columns, weight), -terms % 4 if weight.dtype is torch.float64 else 0
    if not more and not longer:
        return rows.matmul(weight)
    rows = F.pad(rows, (0, longer)) if longer else rows
    return rows.matmul(F.pad(weight, (0, more, 0, longer)))[..., :columns].contiguous()


def exact_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear`` in float64; with one output it is a product with a vector, which is the same
    at every place.
    """
    rows, exact, shift = inputs.double(), weight.double(), None if bias is None else bias.double()
    return F.linear(rows, exact, shift) if len(weight) == 1 else wide_linear(rows, exact, shift)


def _missing(columns: int, weight: Tensor) -> int:
    """How many columns a result has to get."""
    return max(LEAST - columns, -columns % 4 if weight.dtype is torch.float64 else 0, 0)
