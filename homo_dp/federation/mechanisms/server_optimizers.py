"""Server optimisers: how the aggregator moves the global weights, given the mean of a round.

They see only released values, so they are post-processing and cost no privacy (Reddi et al. 2021,
Algorithm 2).
"""

from __future__ import annotations

from torch import Tensor

from homo_dp.config.schema import ServerOptimizerConfig
from homo_dp.federation.mechanisms.base import Weights


class ServerOptimizer:
    """FedAvg, FedAvgM or FedAdam on the pseudo-gradient ``mean - current``; FedAvg at rate 1
    takes the mean itself.
    """

    def __init__(self, config: ServerOptimizerConfig) -> None:
        self.config = config
        self._first: Weights = {}
        self._second: Weights = {}

    def step(self, current: Weights, mean: Weights) -> Weights:
        if self.config.name == "fedavg" and self.config.rate == 1.0:
            return mean
        return {name: self._step_tensor(name, current, mean) for name in current}

    def _step_tensor(self, name: str, current: Weights, mean: Weights) -> Tensor:
        if not current[name].is_floating_point():  # a public buffer that nobody trains
            return mean[name]
        config, delta = self.config, mean[name] - current[name]
        if config.name == "fedavg":
            return current[name] + config.rate * delta
        if config.name == "fedavgm":
            velocity = self._first[name] * config.momentum + delta if name in self._first else delta
            self._first[name] = velocity
            return current[name] + config.rate * velocity
        previous = self._first.get(name, delta.new_zeros(delta.shape))
        self._first[name] = config.beta1 * previous + (1 - config.beta1) * delta
        square = self._second.get(name, delta.new_full(delta.shape, config.tau**2))
        self._second[name] = config.beta2 * square + (1 - config.beta2) * delta**2
        return current[name] + config.rate * self._first[name] / (
            self._second[name].sqrt() + config.tau
        )

    def state(self) -> Weights:
        """The moments, named so that they fit one flat tensor file."""
        first = {f"first.{name}": tensor for name, tensor in self._first.items()}
        return first | {f"second.{name}": tensor for name, tensor in self._second.items()}

    def restore(self, state: Weights) -> None:
        """Continue from ``state()``."""
        self._first = {
            name[6:]: tensor for name, tensor in state.items() if name.startswith("first.")
        }
        self._second = {
            name[7:]: tensor for name, tensor in state.items() if name.startswith("second.")
        }
