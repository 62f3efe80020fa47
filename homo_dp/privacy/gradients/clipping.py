"""Clipping of rows and of whole updates, by a factor for each.

A factor is ``min(1, C / norm)``. A norm of zero keeps factor 1 (nothing to clip, contributes
nothing); a norm that is NaN or infinite gets factor 0, and the contribution is replaced by zeros,
since ``0 * NaN`` would still be NaN. So does one so large that float32 could hold its factor only
with a few bits: rounded up, it would let more than C through. The fast path and ghost clipping have
squared norms of gradients that are never made, and take the same factors from those
(``fast/chain.py``, ``ghost.py``).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError

# The quotient is taken a hair below C so that float32 rounding of the norm cannot carry a
# contribution above C.
SAFETY = 1.0 - 1e-6
LEAST, MOST = 1e-12, 1e12  # clip norms whose squares and shares float32 still resolves
_LEAST_FACTOR = torch.finfo(torch.float32).tiny


def check_clip_norm(clip_norm: float, name: str = "clip_norm") -> float:
    """Return ``clip_norm`` or raise: it must be a finite number above zero that float32 resolves.

    >>> check_clip_norm(1)
    1.0
    """
    if (
        isinstance(clip_norm, bool)
        or not isinstance(clip_norm, int | float)
        or not math.isfinite(clip_norm)
    ):
        raise PrivacyError(
            f"{name}={clip_norm!r} is not a finite number; give a number > 0, for example "
            f"{name}=1.0"
        )
    if clip_norm <= 0:
        raise PrivacyError(
            f"{name}={clip_norm} is not > 0; give a number > 0, for example {name}=1.0"
        )
    if not LEAST <= clip_norm <= MOST:
        raise PrivacyError(
            f"{name}={clip_norm:g} is outside [{LEAST:g}, {MOST:g}]; common values are 0.1 to 10"
        )
    return float(clip_norm)


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """Factor per row: 1 below the bound, ``C / norm`` above it, 0 where the norm is not finite or
    past float32.

    >>> clip_factors(torch.tensor([0.0, 0.5, 4.0, float("nan"), float("inf")]), 1.0).tolist()
    [1.0, 1.0, 0.2499997466802597, 0.0, 0.0]
    """
    factors = norms.reciprocal().mul_(clip_norm * SAFETY).clamp_(max=1.0)
    return torch.where(norms.isfinite() & (factors >= _LEAST_FACTOR), factors, 0.0)


def row_norms(rows: Tensor) -> Tensor:
    """L2 norm of each row of a tensor of any shape; overflow in float32 is avoided by computing
    in float64.
    """
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    return norms


def clip_rows(rows: Tensor, clip_norm: float) -> Tensor:
    """Scale each row (first dimension) to an L2 norm of at most ``clip_norm``.

    Guarantees:
        - every returned row is finite and has norm <= ``clip_norm``;
        - a row that is not finite, or too large for float32 to scale, becomes zeros.

    >>> clip_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0], [float("nan"), 1.0]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000],
            [0.0000, 0.0000]])
    """
    check_clip_norm(clip_norm)
    if not rows.is_floating_point():
        raise PrivacyError(
            f"dtype={rows.dtype} cannot be clipped; convert the tensor to float32 or float64 first"
        )
    factors = clip_factors(row_norms(rows), clip_norm).to(rows.dtype)
    factors = factors.reshape(-1, *[1] * (rows.dim() - 1))
    return torch.where(factors > 0, rows * factors, 0.0)


def vector_norm(tensors: Mapping[str, Tensor]) -> float:
    """L2 norm of all tensors together, as one flat vector, in float64.

    >>> vector_norm({"weight": torch.tensor([[3.0]]), "bias": torch.tensor(4.0)})
    5.0
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise PrivacyError(
                f"{name}: dtype={tensor.dtype} cannot be clipped; send floating point tensors only"
            )
    return math.sqrt(
        sum(
            float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2
            for tensor in tensors.values()
        )
    )


def clip_vector(tensors: Mapping[str, Tensor], clip_norm: float) -> tuple[dict[str, Tensor], float]:
    """Scale all tensors together to a joint L2 norm of at most ``clip_norm``; also return the norm
    before.

    Guarantees:
        - the returned vector is finite and has norm <= ``clip_norm``;
        - a vector with any value that is not finite, or too large for float32 to scale, becomes
          zeros.

    >>> clipped, norm = clip_vector({"weight": torch.tensor([3.0]), "bias": torch.tensor(4.0)}, 10.0)
    >>> clipped["bias"].item(), norm
    (4.0, 5.0)
    """
    check_clip_norm(clip_norm)
    norm = vector_norm(tensors)
    factor = 1.0 if norm == 0 else min(1.0, clip_norm * SAFETY / norm)
    if not math.isfinite(norm) or factor < _LEAST_FACTOR:
        return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}, norm
    return {name: tensor * factor for name, tensor in tensors.items()}, norm
