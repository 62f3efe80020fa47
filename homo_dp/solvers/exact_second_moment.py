"""The solver ``second_moment`` without privacy: the same two questions as under DP-FedSGD, answered
without noise.

Data walk: rows -> mean of x x^T, once -> aggregator: its inverse -> mean gradients of all rows,
every round -> the inverse times their mean is the step. The loss of a linear model is nowhere more
curved than a multiple of the second moment (1/4 of it for two classes, 1/2 for several, twice for
squared errors; Boehning 1992). So a step of up to twice the inverse of that multiple lowers the
loss from any weights: nothing diverges, on separable tables neither. Bounds that are far wider than
the values cost nothing, as the inverse brings every column to its own scale.

``train.weight_decay`` keeps weights from learning rows by heart. Where ``train.column_share`` is
above 0 it is a penalty on weights of columns as ``standardisation.py`` has them, without noise:
numbers of spread 1, levels as they are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.protocol.messages import Signature
from homo_dp.federation.protocol.party_plan import FederationFacts
from homo_dp.federation.protocol.round_sums import ExactSum, RoundSum, RoundSums
from homo_dp.federation.protocol.tensors import Weights
from homo_dp.privacy.gradients.losses import output_gradient
from homo_dp.privacy.moments import as_vector, second_moment, triangle_size
from homo_dp.solvers.plain import TrainedWeights
from homo_dp.solvers.second_moment import FIRST, MOMENT, MOST_WIDTH
from homo_dp.solvers.solver import PartyRows, as_table, as_weights

_log = logging.getLogger(__name__)
# of a row: columns and pixels are within [-1, 1], what a model makes of an image is not far from it
_MOST_VALUE = 1e3
# its square fits float32; a column that is not rounding (LEAST_SPREAD) has a far smaller one
_MOST_WEIGHT = 1e12
# of a column, squared, or of the longest direction's: what is below is rounding
LEAST_SPREAD = 1e-12
_INVERSE: Final = "solver.inverse"
_PENALTY: Final = "solver.penalty"
_PIECE = 16_384  # rows in hand at a time


class ExactSecondMoment(TrainedWeights):
    """Asks parties for their mean second moment, then for mean gradients; takes the steps. NOT
    PRIVATE.
    """

    sends = "mean gradient of its rows"
    parties_step = False

    def __init__(
        self, config: Config, facts: FederationFacts, party_weights: Mapping[str, float]
    ) -> None:
        super().__init__(config, facts, party_weights)
        self._width = facts.parameters // facts.outputs
        self._held: tuple[PartyRows, Tensor] | None = None
        self._inverse: Tensor | None = None
        self._penalty = torch.zeros(self._width, dtype=torch.float64)
        if self._width > MOST_WIDTH:
            raise ConfigError(
                f"train.solver=second_moment: rows have {self._width} numbers, at most "
                f"{MOST_WIDTH}; use sgd"
            )

    @property
    def sums(self) -> RoundSums:
        """What is asked before the first gradient."""
        asked = ExactSum(triangle_size(self._width), longest=self._longest_row**2)
        return {FIRST: RoundSum(MOMENT, asked, "second moment of its rows, once, without noise")}

    @property
    def _longest_row(self) -> float:
        """A norm that no row reaches, with its 1 for the bias; that of a mean of x x^T is at
        most its square.
        """
        return _MOST_VALUE * math.sqrt(self._width)

    def longest(self, weights: Weights) -> float:
        """A norm that no mean gradient at these weights reaches: that of a row times that of its
        errors.

        Errors of classes are at most sqrt(2) long; that of a target, which is within [-1, 1], is 2
        (w x - y).
        """
        row = self._longest_row
        squared = self._config.model.task == "regression"
        return 2 * row * (1 + (row * float(as_table(weights).norm()) if squared else 0.0))

    def signature(self, weights: Weights) -> Signature:
        """Gradients are float64: the inverse makes rounding of narrow columns large."""
        return {name: (tuple(tensor.shape), torch.float64) for name, tensor in weights.items()}

    # --- at the party ---

    def row_sum(self, fit: PartyRows, asked: RoundSum) -> Tensor:
        """The mean of x x^T over this party's rows."""
        rows = self._rows(fit)
        return as_vector(rows.t() @ rows / max(1, len(rows)))

    def update(self, fit: PartyRows) -> Weights:
        """The mean gradient of this party's rows at the weights of the round, under the names of
        the weights.
        """
        rows, labels, weights = self._rows(fit), fit.labels.cpu(), fit.weights()
        table = as_table(weights)
        total = torch.zeros_like(table)
        for piece, truth in zip(
            torch.split(rows, _PIECE), torch.split(labels, _PIECE), strict=True
        ):
            total.addmm_(
                output_gradient(fit.loss, piece @ table.t(), truth).reshape(len(piece), -1).t(),
                piece,
            )
        like = {name: weight.double() for name, weight in weights.items()}
        return as_weights(total / max(1, len(rows)), like)

    def _rows(self, fit: PartyRows) -> Tensor:
        """This party's rows with a 1 for the bias, float64; made once."""
        if self._held is None or self._held[0] is not fit:
            self._held = fit, fit.linear_rows().double()
        return self._held[1]

    # --- at the aggregator ---

    def take(self, parts: Mapping[str, Tensor], current: Weights) -> Weights | None:
        """The inverse of the mean second moment of all rows, by the weights of the parties.

        A party that did not answer may have all of its rows in one direction, as long as numbers of
        at most 1 let them be. Directions in which there are no rows stay as they are. Where there
        is no inverse (parts are finite, but need not be of rows), steps are those of a run in which
        nobody answered.
        """
        heard = sum(self._weights[name] for name in parts)
        vector = sum(
            (part.double() * (self._weights[name] / heard) for name, part in parts.items()),
            torch.zeros(()),
        )
        unheard = 1 - heard / sum(self._weights.values())
        longest = torch.eye(self._width, dtype=torch.float64) * self._width
        moment = (1 - unheard) * second_moment(vector, self._width) + unheard * longest
        columns, lengths = self._columns(moment)
        penalty = self._config.train.weight_decay * lengths
        scaled = (
            columns.t() @ (moment + self._config.train.learning_rate * penalty.diag()) @ columns
        )
        inverse = _inverse(scaled, columns)
        if inverse is None:
            _log.warning(
                "the second moment of the parties has no inverse and is left out: steps are short "
                "ones"
            )
            return None
        self._inverse, self._penalty = inverse, penalty
        return current

    def _columns(self, moment: Tensor) -> tuple[Tensor, Tensor]:
        """The matrix that brings rows to columns of mean 0 and spread 1 (not levels), and what a
        penalty counts.

        A weight w of a column that is divided by s is s w there, so its penalty counts s^2; the
        bias has none.
        """
        bias, width = self._config.model.bias, self._width
        found, lengths = (
            torch.eye(width, dtype=torch.float64),
            torch.ones(width, dtype=torch.float64),
        )
        last = width - bias
        if self._config.train.column_share:
            numbers = torch.ones(last, dtype=torch.bool)
            numbers[[place for place in self._facts.levels if place < last]] = False
            means = moment[-1, :last] if bias else torch.zeros(last, dtype=torch.float64)
            variances = (moment.diagonal()[:last] - means**2).clamp(min=0.0)
            lengths[:last] = torch.where(numbers, variances, 1.0)
            scales = torch.where(
                variances > LEAST_SPREAD, lengths[:last].clamp(min=LEAST_SPREAD).rsqrt(), 0.0
            )
            found[range(last), range(last)] = scales
            if bias:
                found[-1, :last] = -means * scales
        lengths[last:] = 0.0
        return found, lengths

    def moved(self, mean: Weights, current: Weights, round_number: int) -> Weights:
        """A step on the mean gradient; the penalty is part of gradient and curvature."""
        train = self._config.train
        rate = train.schedule.rate(
            train.learning_rate, round_number - 1, self._facts.rounds, train.weight_decay
        )
        table = as_table(current)
        gradient = as_table(mean) + self._penalty * table
        moved = table - rate * gradient @ self._steps()
        if not float(moved.abs().max()) <= _MOST_WEIGHT:
            _log.warning(
                "round %d: a weight passed %g and is cut to it", round_number, _MOST_WEIGHT
            )
        return as_weights(moved.clamp(-_MOST_WEIGHT, _MOST_WEIGHT), current)

    def _steps(self) -> Tensor:
        """What gradients are multiplied with; if nobody answered the first round, for numbers of
        at most 1.
        """
        if self._inverse is not None:
            return self._inverse
        return torch.eye(self._width, dtype=torch.float64) / self._width

    def state(self) -> Weights:
        """What a restart needs."""
        return {} if self._inverse is None else {_INVERSE: self._inverse, _PENALTY: self._penalty}

    def restore(self, state: Weights) -> None:
        """Go on from what ``state`` gave."""
        if _INVERSE in state:
            self._inverse, self._penalty = state[_INVERSE].double(), state[_PENALTY].double()


def _inverse(scaled: Tensor, columns: Tensor) -> Tensor | None:
    """The inverse of a moment that was asked of ``columns``, in the rows' own; None where
    numbers do not allow one.
    """
    try:
        values, directions = torch.linalg.eigh(scaled)
    except RuntimeError:
        # LinAlgError, which torch does not export to type checkers: no eigenvalues were found
        return None
    inverses = torch.where(values > LEAST_SPREAD * values[-1], 1 / values, 0.0)
    turned = columns @ directions
    found = (turned * inverses) @ turned.t()
    return found if bool(found.isfinite().all()) else None
