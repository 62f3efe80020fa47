"""Solver ``second_moment``: asks the second moment of the rows, and takes gradients in the
coordinates that follow from it.

Data walk: rows, clipped to ``train.row_norm`` -> sum of x x^T with noise -> aggregator: coordinates
in which rows are alike (``whitening.py``) -> sent to parties with the weights of every later round
-> gradients in these coordinates; in the last rounds, in those of scores (``calibration.py``). For
linear regression the target is one more column: the least-squares weights of the noisy moment
(AdaSSP) are where the gradient rounds start.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from homo_dp.config.privacy import RecordKeys, keys_of
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.protocol.messages import Signature
from homo_dp.federation.protocol.party_plan import FederationFacts
from homo_dp.federation.protocol.round_sums import RoundSum, RoundSums, share_noise
from homo_dp.federation.protocol.tensors import Weights
from homo_dp.privacy.gradients.row_sums import BELOW
from homo_dp.privacy.linear_rows import transformed_rows
from homo_dp.privacy.moments import moment_sum, second_moment, triangle_size
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.solvers.calibration import Calibration
from homo_dp.solvers.solver import (
    Gradients,
    LinearGradients,
    PartyRows,
    Solver,
    Step,
    as_table,
    as_weights,
    in_own_coordinates,
)
from homo_dp.solvers.standardisation import COLUMNS, Standardisation
from homo_dp.solvers.whitening import Whitening, least_squares

FIRST: Final = 1  # of the mechanism's own rounds: the one that asks it
MOMENT: Final = "second_moment"
TRANSFORM: Final = "solver.transform"  # the tensor that comes with the weights
MOST_WIDTH = 2000  # columns of a second moment: 2 million numbers
_SCALE, _SCALED = "solver.scale", "solver.scaled"


class SecondMoment(Solver):
    """Asks the second moment once, and keeps the coordinates that follow from it; the last rounds
    fit scores, where ``train.calibration_rounds`` says so.

    Guarantees:
        - a row moves the sum by at most ``row_norm ** 2``, and the event is that of its noise;
        - coordinates follow from the released sum alone.
    """

    def __init__(
        self,
        config: Config,
        facts: FederationFacts,
        share: NoiseShare | None,
        noise_of_mean: Callable[[], float],
    ) -> None:
        super().__init__(config, facts, share, noise_of_mean)
        self._first = len(facts.estimates) + FIRST  # of its rounds in the run
        self._with_target = config.model.task == "regression"
        self.whitening: Whitening | None = None
        self.columns = Standardisation(config, facts, share) if config.train.column_share else None
        self._scaled: Tensor | None = None  # rows times it are what the moment is asked of
        if self._width > MOST_WIDTH:
            raise ConfigError(
                f"train.solver=second_moment: rows have {self._width} numbers, at most "
                f"{MOST_WIDTH}; use gradient"
            )
        scores = facts.outputs == 1 and config.model.bias and not self._with_target
        if config.train.calibration_rounds and not scores:
            raise ConfigError(
                f"train.calibration_rounds={config.train.calibration_rounds}: is for two classes "
                "and a model with a bias, which have a score and its odds; leave it out"
            )

    @property
    def row_norm(self) -> float:
        """What rows are clipped to, the target included where it is one more column (its bounds
        are [-1, 1]).
        """
        asked = self._config.train.row_norm
        if asked is None:
            raise ConfigError(
                "train.row_norm: solver second_moment needs it; leave train.auto out, or give it"
            )
        return math.hypot(asked, 1.0) if self._with_target else asked

    @functools.cached_property
    def asked(self) -> RoundSum:
        """The question."""
        width = self._width + self._with_target
        rows = sum(party.rows for party in self._facts.parties.values())
        noise = share_noise(self._config, self._facts.rounds, self._config.train.moment_share)
        found = PrivateSum(triangle_size(width), self.row_norm**2, noise, rows, share=self._share)
        kind = "its own noise" if self._share is None else "noise that is shared, under masks"
        return RoundSum(
            MOMENT,
            found,
            f"second moment of rows clipped to {self.row_norm:.4g}, once, with {kind}",
        )

    @property
    def sums(self) -> RoundSums:
        """What is asked before the first gradient, by the number among these questions."""
        passes = () if self.columns is None else self.columns.passes
        return dict(enumerate((*passes, self.asked), start=FIRST))

    # --- at the party ---

    def row_sum(self, fit: PartyRows, asked: RoundSum) -> Tensor:
        """This party's part of one of the sums."""
        if self.columns is not None and asked.name == COLUMNS:
            return self.columns.row_sum(fit, asked, fit.start.get(TRANSFORM))
        rows = fit.linear_rows()
        if self.columns is not None:
            rows = transformed_rows(rows, fit.start[TRANSFORM])
        if self._with_target:
            rows = torch.cat(
                [rows, fit.labels.cpu().to(rows.dtype).reshape(-1, 1).clamp(-1.0, 1.0)], dim=1
            )
        # What sums round is left below the norm, as for gradients.
        return moment_sum(rows, self.row_norm * math.sqrt(BELOW))

    def gradients(self, fit: PartyRows) -> Gradients:
        """Those of a linear layer on rows in the coordinates that come with the weights."""
        return LinearGradients(fit, TRANSFORM, None)

    def signature(self, round_number: int) -> Signature:
        """Coordinates come with the weights once the first of the sums was asked."""
        if round_number <= self._first:
            return {}
        return {TRANSFORM: ((self._width, self._width), torch.float32)}

    # --- at the aggregator ---

    def take(
        self, asked: RoundSum, parts: Mapping[str, Tensor], current: Weights, round_number: int
    ) -> Weights:
        """Scales or coordinates from the released sums, and weights to start from."""
        if self.columns is not None and asked.name == COLUMNS:
            if round_number > self._first:
                self._scaled = self.columns.closer(parts, self._lying)
                return current
            found = self.columns.take(parts)
            self._scaled = found.transform
            return current if self._config.train.init_from else started(current, found.odds)
        rows = sum(self._facts.parties[name].rows for name in parts if name in self._facts.parties)
        # under masks: of all
        rows = rows or sum(party.rows for party in self._facts.parties.values())
        private_sum, width = self.asked.private_sum, self._width
        total = torch.stack(list(parts.values())).sum(0) / rows
        noise = private_sum.total_sigma * math.sqrt(len(parts)) / rows
        moment = second_moment(total, width + self._with_target)
        self.whitening = Whitening.of(moment[:width, :width], noise, self._scaled)
        if not self._with_target:
            return current
        weights = least_squares(moment, noise)
        weights = weights if self._scaled is None else self._scaled @ weights
        return as_weights(weights.reshape(1, -1), current)

    def tensors(self, weights: Weights, round_number: int, trains: int | None) -> Weights:
        """The columns that a round asks of, or coordinates of gradients."""
        if round_number <= self._first:
            return {}
        scores = self._scores(weights) if trains and self.starts_from_mean(trains) else None
        if scores is not None:
            return {TRANSFORM: scores.transform.float()}
        asks = round_number < self._first + len(self.sums)
        return {TRANSFORM: (self._lying if asks else self.found.transform).float()}

    def starts_from_mean(self, trains: int) -> bool:
        """The last rounds fit the scores of the mean of the models before them."""
        return trains > self._facts.rounds - self._config.train.calibration_rounds

    def step(self, total: Weights, expected: float, current: Weights, trains: int) -> Step:
        """Along the gradient; in the last rounds, the model with another spread and mean of its
        scores.
        """
        if not self.starts_from_mean(trains):
            return super().step(total, expected, current, trains)
        scores = self._scores(current)
        if scores is None:
            return Step(current, whole=True)
        moved = scores.moved(as_table(total)[0] / expected, self._noise_of_mean())
        return Step(as_weights(moved.reshape(1, -1), current), whole=True)

    def _back(self, total: Weights, current: Weights) -> Weights:
        return in_own_coordinates(self.found.back, total, current)

    def _scores(self, weights: Weights) -> Calibration | None:
        """Coordinates of the scores at these weights; None where no column or no moment was
        found.
        """
        if self._scaled is None or self.whitening is None:
            return None
        clip = keys_of(self._config.privacy, RecordKeys).max_grad_norm
        return Calibration.of(
            as_table(weights)[0],
            self._scaled,
            self.whitening.transform,
            self.whitening.scale,
            clip,
        )

    @property
    def _lying(self) -> Tensor:
        """The columns that sums are asked of; where a round was discarded, the rows' own."""
        return torch.eye(self._width, dtype=torch.float64) if self._scaled is None else self._scaled

    @property
    def found(self) -> Whitening:
        """The coordinates that gradients are in."""
        return self.whitening or Whitening.none(self._width, self.row_norm, self._scaled)

    def state(self) -> Weights:
        """What a restart needs."""
        scaled = {} if self._scaled is None else {_SCALED: self._scaled}
        if self.whitening is None:
            return scaled
        scale = torch.tensor([self.whitening.scale], dtype=torch.float64)
        return {**scaled, TRANSFORM: self.whitening.transform, _SCALE: scale}

    def restore(self, state: Weights) -> None:
        """Go on from what ``state`` gave."""
        if _SCALED in state:
            self._scaled = state[_SCALED].double()
        if TRANSFORM in state:
            self.whitening = Whitening(state[TRANSFORM].double(), float(state[_SCALE]))


def started(current: Weights, odds: Tensor) -> Weights:
    """Weights with the log odds of the classes as bias; as they are where a model has none."""
    return {
        name: odds.to(weight.dtype) if weight.dim() == 1 and weight.shape == odds.shape else weight
        for name, weight in current.items()
    }
