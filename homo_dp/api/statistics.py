"""``homo_dp.stats``: private statistics of tables, as ``homo-dp stats`` asks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from types import EllipsisType
from typing import Any

from homo_dp.api.settings import Settings
from homo_dp.api.tables import Parties
from homo_dp.api.training import Bounds, configured


def stats(
    parties: Parties | None = None,
    ask: str | Sequence[str] = ("rows", "classes"),
    *,
    epsilon: float,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    settings: Settings | None = None,
    bounds: Bounds | Mapping[str, Bounds] | None = None,
    classes: Sequence[Any] | None = None,
    party: str | None = None,
    ledger: str | PathLike[str] | EllipsisType | None = ...,
) -> dict[str, Any]:
    """Answer questions about the rows of all parties, with differential privacy; the same run as ``homo-dp stats``.

    Args:
        parties: as for ``homo_dp.train``.
        ask: some of rows, classes, means, variances, second_moments, histograms, levels, missing, quantiles.
        epsilon: what all questions together may cost each party.
        label: the label column; ``y`` unless settings say otherwise.
        columns: the columns that are asked about; fewer get less noise.
        settings: as for ``homo_dp.train``.
        bounds: public ``(low, high)`` of the numeric columns, or of each by name.
        classes: the values of the label; 0 and 1 need none.
        party: the column of one table that names the party of each row.
        ledger: the file that keeps what was spent on these data, as for ``homo_dp.train``.

    Returns:
        ``privacy`` (the statement, with ``epsilon``) and ``questions``: ``values`` and ``standard_errors`` of each.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.uniform(-1, 1, (400, 2)), rng.integers(0, 2, 400)
    >>> parties = {"a": (X[:200], y[:200]), "b": (X[200:], y[200:])}
    >>> found = stats(parties, "rows", epsilon=1, bounds=(-1, 1), ledger=None)
    >>> found["privacy"]["epsilon"] <= 1, abs(found["questions"]["rows"]["values"]["rows"] - 320) < 60
    (True, True)
    """
    from homo_dp.runs.statistics import ask_in_process, asking

    wanted = tuple(part.strip() for part in ask.split(",")) if isinstance(ask, str) else tuple(ask)
    with configured(
        parties,
        label=label,
        epsilon=epsilon,
        settings=settings,
        bounds=bounds,
        classes=classes,
        party=party,
        ledger=ledger,
        mechanism="statistics",
    ) as config:
        return ask_in_process(asking(config, wanted, None if columns is None else tuple(columns)))
