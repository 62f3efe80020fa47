"""``homo_dp.audit``: attacks on what a training would claim, before or after it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from homo_dp.api.settings import Own, Settings
from homo_dp.api.tables import Parties
from homo_dp.api.training import Bounds, Categories, configured
from homo_dp.evidence.audit import CONFIDENCE, Audited, Wanted

if TYPE_CHECKING:
    from homo_dp.federation.mechanisms.base import Mechanism


def audit(
    parties: Parties | None = None,
    *,
    label: str | None = None,
    epsilon: float | None = None,
    settings: Settings | None = None,
    bounds: Bounds | Mapping[str, Bounds] | None = None,
    categories: Categories | None = None,
    classes: Sequence[Any] | None = None,
    party: str | None = None,
    model: Own | None = None,
    mechanism: str | type[Mechanism] | None = None,
    runs: int = 400,
    canaries: int | None = None,
    attack: str | None = None,
    observer: str | None = None,
    confidence: float = CONFIDENCE,
) -> Audited:
    """Try to refute the epsilon of ``homo_dp.fit`` with the same arguments, by real runs on
    made-up rows.

    Of the tables only shape and row counts are used; nothing is released and no ledger is charged.
    ``outcome`` has the figures, ``roc()`` a picture; docs/audit.md says how to read them and what
    an audit cannot show.

    >>> small = {"data.embedded": "breast_cancer", "train.rounds": 1, "train.sample_rate": 1.0}
    >>> audit(epsilon=4, settings=small, mechanism="dp_fedsgd", runs=40).outcome.refuted
    False
    """
    wanted = Wanted(runs, canaries, attack, observer, confidence)
    with configured(
        parties,
        label=label,
        epsilon=epsilon,
        settings=settings,
        bounds=bounds,
        categories=categories,
        classes=classes,
        party=party,
        ledger=None,
        model=model,
        mechanism=mechanism,
    ) as config:
        from homo_dp.evidence.run_audit import audited

        return audited(config, wanted, None, lambda _: None)
