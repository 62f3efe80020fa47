"""The rounds that ask how the columns lie within their bounds: their means and squares, and how
often a class occurs.

Data walk: rows x with their labels -> (x, x^2, label) clipped, summed, noised -> aggregator:
columns in which numbers have mean 0 and spread 1 -> the same again of rows in these columns
(``train.column_passes``) -> the second moment is asked in the columns that follow, and the model
starts from the odds of its classes. Each pass looks closer: what the noise of one hides the next
can see, at the same privacy in all. Wide bounds then cost little: a number that fills a hundredth
of its bounds is as long as any other, and what all rows have in common is in no row's length.
Places of levels (0 or 1) are centred and keep their length: a rare level says little, and would be
as long as a frequent one.

Where noise is much of what tells the classes apart (p (1 - p) for two of them), columns stay as
they are: then most of what can be learnt lies where columns are wide, and to lengthen the narrow
ones is to listen to noise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.protocol.party_plan import FederationFacts
from homo_dp.federation.protocol.round_sums import RoundSum, share_noise
from homo_dp.privacy.gradients.clipping import clip_factors, row_norms
from homo_dp.privacy.gradients.row_sums import BELOW
from homo_dp.privacy.linear_rows import transformed_rows
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.solvers.solver import PartyRows

COLUMNS: Final = "columns"
LABEL = 1.0  # length of a label beside a row of norm 1
WHOLE = 1.75  # length of all three parts together, if rows are of norm 1
MOST_NOISE = 0.25  # of a chance, for a start from it
MOST_SCALE = 1e4  # of a column in all passes: constant ones would grow with each
OWN_AXES = 1.0  # of p (1 - p): with more noise than this on a mean, columns keep their own scale
FLOOR = 0.3  # of the noise: what is added to the variance of a column
ROOM = 0.9  # the second moment clips rows at so much of their length by the released spreads
_PIECE = 16_384  # rows in hand at a time


@dataclass(frozen=True)
class ColumnScales:
    """What follows from the released sums: rows @ ``transform`` have about the asked norm; log
    odds of the classes.
    """

    transform: Tensor  # (width, width), float64
    odds: Tensor  # one an output, float64


class Standardisation:
    """Asks means, squares and labels, then means and squares of rows in the columns that follow,
    and again.

    Guarantees:
        - a row moves each sum by at most ``1.75 row_norm``, whatever its values, its label and the
          columns are;
        - scales follow from the released sums and from declared kinds of columns alone.
    """

    def __init__(self, config: Config, facts: FederationFacts, share: NoiseShare | None) -> None:
        self._config, self._facts, self._share = config, facts, share
        self._width = facts.parameters // facts.outputs
        self._bias = config.model.bias
        self._labels = 0 if config.model.task == "regression" else facts.outputs

    @functools.cached_property
    def passes(self) -> tuple[RoundSum, ...]:
        """The questions, in the order in which they are asked; each takes the same part of the
        share.
        """
        rows = sum(party.rows for party in self._facts.parties.values())
        train, norm = self._config.train, WHOLE * self._row_norm
        # a bias is the column of ones that tells how long rows are
        count = train.column_passes if self._bias else 1
        noise = share_noise(self._config, self._facts.rounds, train.column_share / count)
        kind = "its own noise" if self._share is None else "noise that is shared, under masks"
        times = "once" if count == 1 else f"{count} times"
        text = f"means and squares of columns, {times}, and counts of classes, once, with {kind}"
        sizes = [2 * self._width + self._labels * (number == 0) for number in range(count)]
        return tuple(
            RoundSum(COLUMNS, PrivateSum(size, norm, noise, rows, share=self._share), text)
            for size in sizes
        )

    @property
    def _row_norm(self) -> float:
        asked = self._config.train.row_norm
        if asked is None:
            raise ConfigError(
                "train.row_norm: solver second_moment needs it; leave train.auto out, or give it"
            )
        return asked

    # --- at the party ---

    def row_sum(self, fit: PartyRows, asked: RoundSum, columns: Tensor | None) -> Tensor:
        """What this party's rows add up to; in the columns that came with the weights, where some
        did.
        """
        private_sum = asked.private_sum
        rows = fit.linear_rows()
        rows = rows if columns is None else transformed_rows(rows, columns)
        total = torch.zeros(private_sum.dimension, dtype=torch.float64)
        # What sums round is left below the norm, as for gradients.
        most = private_sum.clip_norm * BELOW
        for piece, labels in zip(
            torch.split(rows, _PIECE), torch.split(fit.labels.cpu(), _PIECE), strict=True
        ):
            parts = self._parts(
                piece.double(), labels, with_labels=private_sum.dimension > 2 * self._width
            )
            factors = clip_factors(row_norms(parts), most).unsqueeze(1)
            total += torch.where(factors > 0, parts * factors, 0.0).sum(0)
        return total

    def _parts(self, rows: Tensor, labels: Tensor, with_labels: bool) -> Tensor:
        if not with_labels:
            return torch.cat([rows, rows.square()], dim=1)
        places = labels.reshape(-1, 1).long() == torch.arange(self._labels) + (self._labels == 1)
        return torch.cat([rows, rows.square(), places * (LABEL * self._row_norm)], dim=1)

    # --- at the aggregator ---

    def take(self, parts: Mapping[str, Tensor]) -> ColumnScales:
        """Scales from the first sums."""
        width, label = self._width, LABEL * self._row_norm
        total, noise = self._means(parts, ones=1.0)
        chances = total[2 * width :] / label
        odds = self._odds(chances, noise / label)
        if self._labels and noise > OWN_AXES * _apart(chances):
            return ColumnScales(torch.eye(width, dtype=torch.float64), odds)
        return ColumnScales(self._transform(total[:width], total[width : 2 * width], noise), odds)

    def closer(self, parts: Mapping[str, Tensor], columns: Tensor) -> Tensor:
        """Columns from the sums of a later pass, which rows in ``columns`` gave; own columns stay
        as they are.

        Places of levels keep what the first pass said: their spread follows from how often they
        are.
        """
        width, last, levels = self._width, self._width - 1, self._levels
        if columns.equal(torch.eye(width, dtype=columns.dtype)):
            return columns
        length, before = float(columns[-1, -1]), columns.diagonal()[:last]
        shares = -columns[-1, :last] / before
        total, noise = self._means(parts, ones=length)
        means = torch.where(levels, 0.0, total[:last] / length)
        variances = (total[width : width + last] / length**2 - means**2).clamp(min=0.0)
        scales = (variances + FLOOR * noise / length**2).rsqrt().clamp(min=1.0)
        scales = torch.where(
            levels, 1.0, torch.minimum(scales, (MOST_SCALE / before).clamp(min=1.0))
        )
        spread = torch.where(levels, (shares * (1 - shares)).clamp(min=0.0), variances * scales**2)
        step = torch.diag(torch.cat([scales, scales.new_ones(1)]))
        step[-1, :last] = -means * scales
        return (
            columns
            @ step
            * (self._row_norm / (ROOM * math.sqrt(float(spread.sum()) + 1.0) * length))
        )

    def _means(self, parts: Mapping[str, Tensor], ones: float) -> tuple[Tensor, float]:
        """Sums over rows, and their noise; rows that were clipped count as much as is left of
        their ``ones``.
        """
        rows = sum(self._facts.parties[name].rows for name in parts if name in self._facts.parties)
        # under masks: of all
        rows = rows or sum(party.rows for party in self._facts.parties.values())
        total = torch.stack(list(parts.values())).sum(0).double() / rows
        noise = self.passes[0].private_sum.total_sigma * math.sqrt(len(parts)) / rows
        counted = max(0.3, float(total[self._width - 1]) / ones) if self._bias else 1.0
        return total / counted, noise / counted

    @property
    def _levels(self) -> Tensor:
        """Which columns are places of levels."""
        last = self._width - self._bias
        found = torch.zeros(last, dtype=torch.bool)
        found[[place for place in self._facts.levels if place < last]] = True
        return found

    def _transform(self, means: Tensor, squares: Tensor, noise: float) -> Tensor:
        """Columns of mean 0 (where there is a bias, which stays) and, numbers only, of spread 1;
        then one length.
        """
        columns, levels = self._width - self._bias, self._levels
        means = means[:columns].clamp(-1.0, 1.0)
        means[levels] = means[levels].clamp(min=0.0)
        centres = means if self._bias else torch.zeros_like(means)
        variances = torch.where(
            levels & self._bias, means * (1 - means), squares[:columns] - centres**2
        ).clamp(min=0.0)
        scales = torch.where(levels, 1.0, (variances + FLOOR * noise + 1e-9).rsqrt())
        found = torch.zeros(self._width, self._width, dtype=torch.float64)
        found[range(columns), range(columns)] = scales
        length = float((variances * scales**2).sum())
        if self._bias:
            found[-1, :columns] = -centres * scales
            found[-1, -1] = 1.0
            length += 1.0
        return found * (self._row_norm / (ROOM * math.sqrt(max(length, 1e-9))))

    def _odds(self, chances: Tensor, noise: float) -> Tensor:
        """Log odds of the classes; none where noise could be most of them."""
        outputs = self._facts.outputs
        if not self._labels or noise > MOST_NOISE:
            return torch.zeros(outputs, dtype=torch.float64)
        least = max(2 * noise, 1e-3)
        if outputs == 1:
            return chances.clamp(least, 1 - least).logit()
        found = chances.clamp(min=least).log()
        return found - found.mean()


def _apart(chances: Tensor) -> float:
    """p (1 - p) of two classes, and the like of several: half of how often two rows are of
    different classes.

    >>> round(_apart(torch.tensor([0.1])), 6), round(_apart(torch.tensor([0.1, 0.9])), 6)
    (0.09, 0.09)
    """
    known = chances.double().clamp(0.0, 1.0)
    if len(known) == 1:
        known = torch.cat([known, 1 - known])
    return float(1 - (known / known.sum().clamp(min=1e-9)).square().sum()) / 2
