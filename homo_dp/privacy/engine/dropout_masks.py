"""Random numbers of layers (dropout), drawn from a secret state of torch's generator.

Which mask a row gets depends on its place in the batch. Under masks that an observer could work
out, leaving one row out would give all rows after it other masks, and move the sum by more than C;
under masks that are independent and unknown, rows after it get masks as likely as before. torch
starts every process with the same seed, a run with the seed of its config, and
``torch.manual_seed`` keeps 32 bits of what it is given: all of them can be known or tried.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.noise.source import NoiseSource

# torch's state of the Mersenne Twister: seed, words left, a flag, the next word, 624 words of 32
# bits in 64, normals.
_LENGTH, _LEFT, _NEXT, _FIRST, _WORDS = 5056, 8, 16, 24, 624


@contextmanager
def secret_masks(noise: NoiseSource) -> Iterator[None]:
    """Draw what layers draw from a secret state while the block runs; the program's own state comes
    back after it.

    With noise that can be repeated (NOT PRIVATE, for tests) masks are left as repeatable as the
    program made them.
    """
    if not noise.private:
        yield
        return
    outside = torch.get_rng_state()
    torch.set_rng_state(secret_state())
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(secrets.randbits(63))
    try:
        yield
    finally:
        torch.set_rng_state(outside)


def secret_state() -> Tensor:
    """A state of torch's generator with 19,968 bits from the operating system."""
    state = torch.Generator().get_state().numpy().copy()
    if len(state) != _LENGTH:
        raise PrivacyError(
            f"torch {torch.__version__} keeps its random state in another form; use the pinned "
            "torch"
        )
    words = np.frombuffer(os.urandom(4 * _WORDS), dtype=np.uint32).astype(np.uint64)
    state[_FIRST : _FIRST + 8 * _WORDS] = words.view(np.uint8)
    # all used up: mix before the first draw
    state[_LEFT : _LEFT + 4] = np.array([1], dtype=np.int32).view(np.uint8)
    state[_NEXT : _NEXT + 8] = 0
    return torch.from_numpy(state)


def may_draw(module: nn.Module) -> bool:
    """Whether a forward pass may take random numbers: it has dropout, or code of somebody's own.

    >>> may_draw(nn.Linear(2, 2)), may_draw(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    (False, True)
    """
    chain, _ = chain_of(module)
    draws = any(
        isinstance(layer, nn.modules.dropout._DropoutNd | nn.RReLU) for layer in module.modules()
    )
    return draws or chain is None or chain.has_foreign_code


class SecretMasks:
    """The same for the forward passes of a loop that is not ours, by hooks on the module that it
    calls.
    """

    def __init__(self, wrapped: nn.Module) -> None:
        self._inside = secret_state()
        self._outside: Tensor | None = None
        self._process = os.getpid()
        wrapped.register_forward_pre_hook(self._before, prepend=True)
        wrapped.register_forward_hook(self._after, always_call=True)

    def _before(self, module: nn.Module, _: Any) -> None:
        if not module.training:
            return
        if self._process != os.getpid():  # a forked process must not draw what its parent draws
            self._inside, self._process = secret_state(), os.getpid()
        self._outside = torch.get_rng_state()
        torch.set_rng_state(self._inside)

    def _after(self, module: nn.Module, _: Any, __: Any) -> None:
        if self._outside is not None:
            self._inside = torch.get_rng_state()
            torch.set_rng_state(self._outside)
            self._outside = None
