"""Everything a fit changes and a later fit reads: optimiser, step count, shuffles and the
mechanism's own state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from homo_dp.federation.mechanisms.base import Mechanism
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.privacy.engine.optimizer_state import pack_optimizer, unpack_optimizer


@dataclass(frozen=True)
class FitState:
    """A copy of what lives from round to round at a party; the weights are not in it, they come
    with each message.

    Guarantees:
        - ``put`` on a new fit and a new mechanism gives those of the moment of ``of``, and nothing
          that came after it;
        - what a mechanism keeps outside of ``state()`` is not carried over, on a disk or in memory.
    """

    optimizer: Mapping[str, Tensor]
    mechanism: Mapping[str, Tensor]
    generator: Tensor
    steps_done: int

    @classmethod
    def of(cls, fit: LocalFit, mechanism: Mechanism) -> FitState:
        """A copy of the state of now."""
        own = {name: tensor.detach().clone() for name, tensor in mechanism.state().items()}
        return cls(pack_optimizer(fit.optimizer), own, fit.generator.get_state(), fit.steps_done)

    def put(self, fit: LocalFit, mechanism: Mechanism) -> None:
        """Let a fit and a mechanism go on from here."""
        unpack_optimizer(fit.optimizer, self.optimizer)
        mechanism.restore(dict(self.mechanism))
        fit.generator.set_state(self.generator)
        fit.steps_done = self.steps_done
