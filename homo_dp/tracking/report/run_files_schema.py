"""What the files of a run must hold for a report to be made of them; whatever else stands in them
is shown as it is.

The checks are strict (a number is not text), so that the report can read the files as they were
after them.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, Strict, TypeAdapter, model_validator

from homo_dp.core.untrusted_text import Schema
from homo_dp.privacy.accounting.events import from_json
from homo_dp.privacy.errors import PrivacyError

Number = float | None
Whole = Annotated[int, Strict(), Field(ge=0, le=2**63)]
RoundNumber = Annotated[int, Strict(), Field(ge=0, le=10**9)]
MOST_ROUNDS, MOST_ROWS, MOST_NAMES = 10**5, 10**6, 10**5
Bar = Annotated[float, Field(ge=0, le=1)]
MOST_POINTS = 10_000  # of a curve
Delta = Annotated[float, Field(gt=0, lt=1)]


class FilePart(Schema):
    """A part of a file of ours: known keys have their types, others may be anything."""

    model_config = ConfigDict(
        frozen=True, extra="allow", strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )


class StatedParty(FilePart):
    """What the statement says about one party."""

    rows: Number = None
    steps: Number = None
    sample_rate: Number = None
    noise_multiplier: Number = None
    applied_sigma: Number = None
    epsilon_pld: Number = None
    epsilon_rdp: Number = None
    delta: Number = None


class Observer(FilePart):
    """What holds towards one observer."""

    epsilon: Number = None


class Statement(FilePart):
    """The privacy statement."""

    mechanism: str
    private: bool = False
    statement: str = ""
    unit: str | None = None
    neighbouring_relation: str | None = None
    epsilon: Number = None
    delta: Delta | None = None
    quoted_observer: str | None = None
    observers: dict[str, Observer] | None = None
    parties: Annotated[dict[str, StatedParty], Field(max_length=MOST_NAMES)] | None = None
    releases: list[str] | None = None
    notes: list[str] | None = None


class Round(FilePart):
    """The row of a round; every metric in it is a number."""

    round: RoundNumber
    replied: Annotated[list[str], Field(max_length=MOST_NAMES)] = Field(default_factory=list)
    epsilon: Number = None

    @model_validator(mode="after")
    def _metrics_are_numbers(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if name.startswith(("train_", "test_")) and not isinstance(value, int | float | None):
                raise ValueError(f"{name} must be a number")
        return self


class Dataset(FilePart):
    """What all runs on a dataset have cost."""

    dataset: str
    epsilon_sum: float
    epsilon_this_run: float
    runs: Whole = 1
    epsilon_together: Number = None
    lifetime_epsilon: Number = None


class Summary(FilePart):
    """Where the ledger ended."""

    head: str | None = None
    releases: Whole | None = None
    datasets: list[Dataset] | None = None


class LedgerHead(FilePart):
    """The head of a party's ledger, as the aggregator was shown it."""

    count: Whole
    hash: str


class PlainFit(FilePart):
    """The test metrics of a fit without privacy."""

    what: str
    test_acc: Number = None


class Setup(FilePart):
    """Who ran what: one process with all rows, a party, or the aggregator."""

    role: Literal["simulation", "party", "aggregator"] | None = None
    transport: str = "memory"
    parties: Whole | None = None
    party: str | None = None
    fingerprint: str | None = None
    aggregator: str | None = None


class Bounds(FilePart):
    """Where bounds and levels come from."""

    source: str
    shipped: str | None = None
    given_by: Literal["plan", "own config"] | None = None
    columns: dict[str, str] | None = None


class ReleasedRoc(FilePart):
    """A ROC curve read off noisy histograms."""

    fpr: list[float]
    tpr: list[float]
    fpr_error: list[Bar]
    tpr_error: list[Bar]


class ReleasedCalibration(FilePart):
    """Shares of class 1 by bin of score, read off noisy histograms."""

    score: list[float]
    share: list[float]
    share_error: list[Bar]


class ReleasedCurves(FilePart):
    """Curves of two classes, whose points have bars."""

    roc: ReleasedRoc
    calibration: ReleasedCalibration

    @model_validator(mode="after")
    def _points_have_bars(self) -> Self:
        for curve in (self.roc, self.calibration):
            lengths = {
                len(values) for values in curve.model_dump().values() if isinstance(values, list)
            }
            if len(lengths) != 1 or lengths.pop() > MOST_POINTS:
                raise ValueError(
                    f"curves must have as many bars as points, and at most {MOST_POINTS}"
                )
        return self


class Indicators(FilePart):
    """The indicators of a training."""

    run: str
    privacy: Statement
    rounds: Annotated[list[Round], Field(max_length=MOST_ROUNDS)]
    ledger: Summary | None = None
    ledger_heads: dict[str, LedgerHead | None] | None = None
    local_only: list[str] = Field(default_factory=list)
    classes: list[str] | None = None
    bounds: Bounds | None = None
    setup: Setup | None = None
    plain_fit: PlainFit | None = None
    test_majority: Number = None
    test_auc: Number = None
    test_fpr: Annotated[list[float], Field(max_length=MOST_ROWS)] | None = None
    test_tpr: Annotated[list[float], Field(max_length=MOST_ROWS)] | None = None
    test_confusion_matrix: Annotated[list[list[Whole]], Field(max_length=1000)] | None = None
    released_curves: ReleasedCurves | None = None

    @model_validator(mode="after")
    def _curves_fit(self) -> Self:
        if len(self.test_fpr or ()) != len(self.test_tpr or ()):
            raise ValueError("test_fpr and test_tpr must have as many points as each other")
        matrix = self.test_confusion_matrix or []
        if any(len(row) != len(matrix) for row in matrix):
            raise ValueError("test_confusion_matrix must be square")
        return self


class ExtractRow(FilePart):
    """A row of the ledger, with its event as a tree."""

    row: Whole
    run: str
    party: str
    round: RoundNumber
    kind: str
    event: dict[str, Any]
    delta: Delta
    epsilon: Number = None
    epsilon_pld: Number = None
    epsilon_rdp: Number = None
    sigma: Number = None
    previous_hash: str
    hash: str

    @model_validator(mode="after")
    def _event_is_one(self) -> Self:
        try:
            from_json(json.dumps(self.event))
        except PrivacyError as error:
            raise ValueError(f"its event cannot be read ({error})") from None
        if self.epsilon is not None and self.epsilon_rdp is None:
            raise ValueError("epsilon is given without epsilon_rdp")
        return self


class PartyNorms(FilePart):
    """The histogram of one party's gradient norms."""

    counts: list[Whole]
    fraction_clipped: Annotated[float, Field(ge=0, le=1)]


class Norms(FilePart):
    """Histograms of gradient norms."""

    edges: Annotated[list[float], Field(min_length=2, max_length=10_000)]
    clip_norm: Annotated[float, Field(gt=0)]
    parties: dict[str, PartyNorms]

    @model_validator(mode="after")
    def _as_many_counts_as_bins(self) -> Self:
        if any(len(party.counts) != len(self.edges) - 1 for party in self.parties.values()):
            raise ValueError("each party needs one count for each bin between the edges")
        return self


class ConfigFacts(FilePart):
    """What a report reads of the resolved configuration."""

    class Privacy(FilePart):
        """Its `privacy` section."""

        ledger: str | None = None
        target_epsilon: Number = None

    privacy: Privacy = Field(default_factory=Privacy)


EXTRACT = TypeAdapter(Annotated[list[ExtractRow], Field(max_length=MOST_ROWS)])
