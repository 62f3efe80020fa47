"""Which round was best, and when to stop: by figures that anybody may see, released with noise
or of public rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.data.declared import label_of
from homo_dp.federation.protocol.round_sums import METRICS

LOWER_IS_BETTER = ("loss", "mse", "mae")
# what is looked at where no figure is named: the first of them that rounds have
FIRST = ("acc", "r2", "loss")
OF_TASK = {
    "binary": ("acc", "auc", "ks", "precision", "recall", "loss"),
    "multiclass": ("acc", "loss"),
    "regression": ("r2", "mse", "mae"),
}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class BestRound:
    """Looks at one figure of the rounds so far.

    Guarantees:
        - no figure of private rows without noise is looked at, so the choice of a round, and the
          round in which a run stops, cost nothing beyond what was released.

    >>> rows = [{"round": 2, "released_acc": 0.7}, {"round": 4, "released_acc": 0.9}, {"round": 6, "released_acc": 0.8}]
    >>> judge = BestRound("released_", patience=1)
    >>> judge.best(rows)["round"], judge.stops(rows[:2]), judge.stops(rows)
    (4, False, True)
    """

    prefix: str  # of the figures: released_, or test_ of public rows
    metric: str | None = None
    patience: int | None = None
    min_delta: float = 0.0
    keeps: bool = False  # whether the model of the best round is published, instead of the last

    def name(self, rows: Sequence[Row]) -> str | None:
        """The figure that is looked at, as rows call it; None if no row has one."""
        names = FIRST if self.metric is None else (self.metric,)
        full = (self.prefix + name for name in names)
        return next((name for name in full if any(row.get(name) is not None for row in rows)), None)

    def best(self, rows: Sequence[Row]) -> Row | None:
        """The row of the best figure; a later one has to be better by more than ``min_delta``."""
        return self._walk(rows)[0]

    def stops(self, rows: Sequence[Row]) -> bool:
        """Whether the last ``patience`` figures were no better than one before."""
        return self.patience is not None and self._walk(rows)[1] >= self.patience

    def _walk(self, rows: Sequence[Row]) -> tuple[Row | None, int]:
        """The best row, and how many figures came after it."""
        name = self.name(rows)
        best, since = None, 0
        for row in rows:
            if name is None or row.get(name) is None:
                continue
            gain = 0.0 if best is None else float(row[name]) - float(best[name])
            if name.removeprefix(self.prefix) in LOWER_IS_BETTER:
                gain = -gain
            best, since = (row, 0) if best is None or gain > self.min_delta else (best, since + 1)
        return best, since


def best_round_of(config: Config) -> BestRound | None:
    """What a config asks for; None where every round is run and the last model is published."""
    train, rule = config.train, config.train.early_stopping
    if rule is None and train.keep == "last":
        return None
    noised = config.metrics.release == "noised"
    metric = None if rule is None else rule.metric
    if metric is not None:
        kind = _task(config)
        names = (
            OF_TASK[kind]
            if noised
            else tuple(name for name in ("acc", "auc", "loss") if kind != "regression")
        )
        known = names or ("loss",)
        if metric not in known:
            released = "released with noise" if noised else "of public rows"
            raise ConfigError(
                f"train.early_stopping.metric={metric}: figures {released} of a {kind} task are "
                f"{', '.join(known)}; take one of them"
            )
    prefix = "released_" if noised else "test_"
    if rule is None:
        return BestRound(prefix, keeps=True)
    return BestRound(prefix, metric, rule.patience, rule.min_delta, keeps=train.keep == "best")


def _task(config: Config) -> str:
    classes = label_of(config).classes or ()
    return "regression" if not classes else "binary" if len(classes) == 2 else "multiclass"


def is_of_released(row: Row) -> bool:
    """Whether the figures of a row are of the model as it would be published then, averaging
    included.
    """
    return row.get("asked") == METRICS
