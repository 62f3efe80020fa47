"""Audits that lie beside the outputs of a run, as its report shows them: what was tried to
refute the claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from homo_dp.core.errors import InputError
from homo_dp.core.untrusted_text import Foreign
from homo_dp.tracking.report.page import HtmlTable
from homo_dp.tracking.report.run_files_schema import FilePart, Number, Whole

LARGEST = 1 << 20  # bytes of an audit.json
LARGEST_PICTURE = 10 << 20
SAME = 0.02  # of epsilon, within which an audit is one of this run's claim
CANNOT_SHOW = (
    (
        "that the claim is true: an audit can refute an epsilon and never prove one, and another "
        "attack may do better"
    ),
    (
        "anything about side channels, stolen keys, other releases of the same rows, or code that "
        "the audited recipe does not run"
    ),
    "what a person in several parties' tables risks: the audited unit is in one party",
)
NONE_FOUND = (
    "No audit lies beside these outputs. python -m homo_dp.audit with this run's configuration and "
    "--out in this folder runs attacks on its mechanism and adds what they found here."
)


class Audit(FilePart):
    """What ``audit.json`` must hold."""

    claimed_epsilon: float
    lower_bound: float
    confidence: Annotated[float, Field(gt=0, lt=1)]
    ceiling: Number = None
    point_estimate: Number = None
    attack: str
    observer: str
    delta: float
    runs: Whole
    refuted: bool
    mechanism: str | None = None


@dataclass(frozen=True)
class AuditOnFile:
    """An audit and the picture of its ROC, where there is one."""

    audit: Audit
    picture: bytes | None

    def of_this(self, privacy: Mapping[str, object]) -> bool:
        """Whether it audited the claim of this run: the same mechanism, and the same epsilon but
        for rounding.
        """
        epsilon = privacy.get("epsilon")
        same = self.audit.mechanism in (None, privacy.get("mechanism"))
        return (
            same
            and isinstance(epsilon, float)
            and abs(self.audit.claimed_epsilon / epsilon - 1) <= SAME
        )


def audits_in(folder: Path) -> tuple[AuditOnFile, ...]:
    """Audits in a folder of outputs and in its subfolders: ``audit.json``, with ``roc.png``
    beside it.
    """
    found = []
    for path in [*folder.glob("audit.json"), *sorted(folder.glob("*/audit.json"))]:
        file = Foreign(
            str(path), "the file is damaged or not of an audit: audit again", InputError, LARGEST
        )
        audit = file.check(Audit, file.json(file.read(path)))
        picture = path.with_name("roc.png")
        fits = picture.is_file() and picture.stat().st_size <= LARGEST_PICTURE
        found.append(AuditOnFile(audit, picture.read_bytes() if fits else None))
    return tuple(found)


def audit_table(audits: Sequence[AuditOnFile], privacy: Mapping[str, object]) -> HtmlTable | None:
    """A row for each audit; None where there is none."""
    header = [
        "attack",
        "observer",
        "claim",
        "lower bound",
        "confidence",
        "expected for a perfect attack",
        "estimate",
        "runs",
        "outcome",
    ]
    rows = [
        [
            *(
                each.audit.attack,
                each.audit.observer,
                each.audit.claimed_epsilon,
                each.audit.lower_bound,
            ),
            *(
                each.audit.confidence,
                each.audit.ceiling,
                each.audit.point_estimate,
                each.audit.runs,
            ),
            ("REFUTED" if each.audit.refuted else "not refuted")
            + ("" if each.of_this(privacy) else " (of another claim than this run's)"),
        ]
        for each in audits
    ]
    return HtmlTable(header, rows) if rows else None
