"""Attack on the low bits of sums, which tell something where noise lies on a float32 lattice."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from homo_dp.core.errors import InputError
from homo_dp.data.rows import Table
from homo_dp.evidence.record_attacks import (
    LENGTH,
    MECHANISM,
    CanaryGradient,
    PartyOfAttack,
    Recipe,
    first_weight,
    made_up_rows,
)
from homo_dp.evidence.tradeoff import Profile

Floats = NDArray[np.float64]


class LowBits(CanaryGradient):
    """Reads low bits only: which small numbers of a sum are a multiple of 2**-24 sigma, as float32
    rounds it.

    Half of the small normals of a float32 four-fold sum are. The canary's gradient uses all bits of
    all columns, so that it takes what it is added to off that lattice.
    """

    name = "low_bits"
    scores_are_losses = False

    def __init__(self, recipe: Recipe, mechanism: MECHANISM | None = None) -> None:
        if recipe.config.privacy.mechanism != "dp_fedsgd":
            raise InputError("privacy.mechanism: low_bits reads the sums of dp_fedsgd")
        super().__init__(recipe, mechanism)
        if self.masked:
            raise InputError(
                "privacy.secure_aggregation=true: totals are integers and have no low bits; use "
                "canary_sum"
            )

    def law(self) -> Profile:
        """Which multiples of the grid are released tells nothing."""
        return Profile(np.zeros(1), np.ones(1), np.ones(1))

    def rows(self, clip_norm: float, *, canary: bool) -> Table:
        """Rows of zeros, and the canary, which points nowhere in particular."""
        made = made_up_rows(self.recipe, clip_norm, canary=canary)
        features = made.features.reshape(len(made.features), -1)
        features[:] = 0.0
        if canary:
            direction = torch.randn(self.recipe.inputs, generator=torch.Generator().manual_seed(5))
            features[-1] = direction * LENGTH * max(1.0, clip_norm)
            features[-1, 1] = 1.0
        return made

    def scores(self, present: bool, runs: int) -> Floats:
        party, rounds = self.attacked(present), self.facts.rounds
        shares = [self._off_lattice(party, number) for number in range(1, runs * rounds + 1)]
        scores: Floats = np.array(shares).reshape(runs, -1).sum(axis=1)
        return scores

    def _off_lattice(self, party: PartyOfAttack, number: int) -> float:
        released, sigma = (
            party.round(number)[first_weight(party.fit.model)].float(),
            self.plan.sigma,
        )
        # in larger ones float32 has no finer steps
        small = released[released.abs() < sigma / 16].double()
        nearest = (small / sigma * 2.0**24).round() / 2.0**24 * sigma
        return float((nearest.float() != small.float()).double().mean()) if small.numel() else 0.0
