"""Attack on statistics: every answer is looked at along what one row, at the upper end of its
columns, adds to it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from homo_dp.config.schema import Config
from homo_dp.core.errors import InputError
from homo_dp.evidence.attack import Attack
from homo_dp.evidence.sum_attacks import AlongCanary, total_seen
from homo_dp.evidence.tradeoff import claim_of
from homo_dp.federation.mechanisms.statistics import Statistics
from homo_dp.federation.protocol.round_sums import SUM, RoundSum, events_of
from homo_dp.federation.sessions.build import build_mechanism, federation_facts, noise_source
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.gradients.clipping import clip_rows
from homo_dp.statistics.questions import ColumnsQuestion

Floats = NDArray[np.float64]
OTHERS = 8  # made-up rows beside the canary


class CanaryAnswers(Attack):
    """All answers of a run: a party's own, or under masks the total of the parties that an
    aggregator does not know.
    """

    name = "canary_answers"
    scores_are_losses = True

    def __init__(self, config: Config, rows: dict[str, int]) -> None:
        made = build_mechanism(config, federation_facts(config, rows, 1), noise_source(config))
        if not isinstance(made, Statistics):
            raise InputError(
                f"privacy.mechanism={made.name}: {self.name} attacks statistics; write statistics"
            )
        self.mechanism, self.observer = made, "aggregator"
        spent = events_of(made.run.sums)
        if spent is None:
            raise InputError("statistics.ask: is empty, so nothing is released; ask a question")
        self.claim = claim_of(compose(spent), config.delta)
        self._worlds = {present: self._table(present=present) for present in (True, False)}
        self._along = {number: self._canary(asked) for number, asked in made.run.sums.items()}

    def scores(self, present: bool, runs: int) -> Floats:
        return np.array([self._run(present) for _ in range(runs)])

    def _run(self, present: bool) -> float:
        score = 0.0
        for number, asked in self.mechanism.run.sums.items():
            share = asked.private_sum.share
            honest = 1 if share is None else share.sharers
            along = AlongCanary(asked.private_sum, *self._along[number], honest)
            attacked = self._worlds[present]
            nobody = _Rows(attacked.features[:0], attacked.labels[:0])
            rows = [attacked, *[nobody] * (honest - 1)]
            answers = [self.mechanism.run.answer(each, asked).tensors[SUM] for each in rows]  # type: ignore[arg-type]
            score += along.loss(total_seen(asked.private_sum, answers))
        return score

    def _canary(self, asked: RoundSum) -> tuple[Tensor, Tensor]:
        """The sum of the other rows, which the attacker knows, and what the canary adds to it."""
        sums = {}
        for present, rows in self._worlds.items():
            parts = torch.cat([part.double() for part in self.mechanism.row_parts(rows, asked)])  # type: ignore[arg-type]
            sums[present] = clip_rows(parts, asked.private_sum.clip_norm).sum(0)
        return sums[False], sums[True] - sums[False]

    def _table(self, *, present: bool) -> _Rows:
        """Rows with nothing in them, and the canary at the upper end of every column."""
        ends: dict[int, float] = {}
        for question in self.mechanism.questions:
            if isinstance(question, ColumnsQuestion):
                ends |= dict(zip(question.places, question.highs, strict=True))
        width = 1 + max(ends, default=0)
        for question in self.mechanism.questions:
            width = max(width, 1 + max(getattr(question, "places", ()), default=0))
        features = torch.full((OTHERS + present, width), float("nan"), dtype=torch.float64)
        if present:
            features[-1] = torch.tensor(
                [ends.get(place, 0.0) for place in range(width)], dtype=torch.float64
            )
        return _Rows(features, torch.zeros(OTHERS + present, dtype=torch.int64))


class _Rows:
    """Stands in for the local fit of a party: a statistic reads its rows and labels and nothing
    else.
    """

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels
