"""What an audit is asked for, and what its scores certify: lower bound, ceiling and point
estimate of epsilon.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homo_dp.core.errors import InputError
from homo_dp.evidence.attack import Attack
from homo_dp.evidence.estimators import clopper_pearson, f_dp_one_run, guesses_at, one_run
from homo_dp.evidence.tradeoff import Claim, Profile, gaussian_profile

Floats = NDArray[np.float64]
CONFIDENCE = 0.999  # so that hundreds of audits of sound mechanisms raise no false alarm
PILOT = 0.2  # of the runs, for a threshold where the law of the scores is not known beforehand
FEWEST = 20
ASSUMES = {
    "clopper_pearson": (
        "independent runs; threshold fixed beforehand; read by (epsilon, delta) and by the curve "
        "of the claimed mechanism with other noise"
    ),
    "f_dp_one_run": "canaries in or out by independent fair coins; the curve of a Gaussian",
}


# in the words of a screen; a ceiling is an expectation, which chance can exceed
FIGURES = {
    "claimed_epsilon": "claimed epsilon",
    "lower_bound": "lower bound of epsilon",
    "ceiling": "expected for a perfect attack",
    "ceiling_of_attack": "expected for this attack at best",
    "point_estimate": "point estimate",
    "confidence": "confidence of the bound",
    "delta": "delta",
    "runs": "runs",
}


@dataclass(frozen=True)
class Outcome:
    """What an audit found; other programs rely on the first seven fields."""

    claimed_epsilon: float
    lower_bound: float
    confidence: float
    ceiling: float | None
    point_estimate: float | None
    attack: str
    observer: str
    delta: float
    runs: int
    refuted: bool
    estimator: str
    assumes: str
    bound_by_epsilon_delta_alone: float
    threshold: float
    true_positives: int
    present: int
    false_positives: int
    absent: int
    mechanism: str | None = None
    ceiling_of_attack: float | None = None

    def to_json(self) -> dict[str, Any]:
        """With null for what is infinite or unknown."""
        return {key: _plain(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Scores:
    """One score a run, with and without the canary."""

    present: Floats
    absent: Floats


@dataclass(frozen=True)
class Wanted:
    """What is asked for: how many runs, or one with many canaries, and which attack (None: the
    strongest known).
    """

    runs: int = 400
    canaries: int | None = None
    attack: str | None = None
    observer: str | None = None
    confidence: float = CONFIDENCE
    jobs: int = 1

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise InputError(
                f"--confidence={self.confidence} is outside [0.5, 1); {CONFIDENCE} is usual"
            )


@dataclass(frozen=True)
class Audited:
    """An audit's outcome, with the scores and the claim that it rests on."""

    outcome: Outcome
    scores: Scores
    claim: Claim

    def roc(self) -> bytes:
        """The attack's ROC against the curve that the claim allows, as a PNG."""
        from homo_dp.evidence.roc_plot import roc_picture

        return roc_picture(self.outcome, self.scores, self.claim)

    def _repr_html_(self) -> str:
        from homo_dp.tracking.report.page import HtmlTable, render

        values = self.outcome.to_json()
        table = HtmlTable(
            [self.outcome.attack, self.outcome.observer],
            [[text, values[name]] for name, text in FIGURES.items() if values[name] is not None],
        )
        return render("plan.html", parties=table, texts=(self.verdict,))

    @property
    def verdict(self) -> str:
        """Whether the claim stands, in words."""
        if self.outcome.refuted:
            return "REFUTED: the claim cannot be true, with this confidence"
        return "not refuted; an audit can refute a claim and never prove one"


def judge(attack: Attack, scores: Scores, confidence: float) -> Outcome:
    """Bound, ceiling and point estimate from the scores of an attack."""
    threshold, kept = _threshold(attack, scores, confidence)
    guesses = guesses_at(kept.present, kept.absent, threshold)
    claim, profile, law = attack.claim, attack.claim.profile(), attack.law()
    bound = claim.lower_bound(guesses, confidence)

    def perfect(test: Profile | None) -> float | None:
        if test is None:
            return None
        _, expected = test.best_threshold(len(scores.present), len(scores.absent), confidence)
        return claim.lower_bound(expected, confidence)

    of_attack = perfect(law)
    return Outcome(
        claimed_epsilon=claim.epsilon,
        lower_bound=bound,
        confidence=confidence,
        ceiling=of_attack if profile is None else perfect(profile),
        point_estimate=claim.point_estimate(_separation(scores)),
        attack=attack.name,
        observer=attack.observer,
        delta=claim.delta,
        runs=len(scores.present) + len(scores.absent),
        refuted=bound > claim.epsilon
        or (profile is not None and profile.refuted_by(guesses, confidence)),
        estimator="clopper_pearson",
        assumes=ASSUMES["clopper_pearson"],
        bound_by_epsilon_delta_alone=clopper_pearson(guesses, claim.delta, confidence),
        threshold=threshold,
        true_positives=int(guesses.true_positives),
        present=guesses.present,
        false_positives=int(guesses.false_positives),
        absent=guesses.absent,
        ceiling_of_attack=of_attack,
    )


def judge_one_run(
    scores: Floats,
    present: NDArray[np.bool_],
    claim: Claim,
    attack: str,
    observer: str,
    confidence: float,
) -> Outcome:
    """The same for one run with many canaries."""
    profile = claim.profile()
    if profile is None:
        raise InputError(
            "privacy.sampling: one run needs a claim with a curve; audit poisson or everyone"
        )
    canaries = len(scores)
    threshold, ceiling = _one_run_threshold(profile, claim.delta, canaries, confidence)
    guesses = guesses_at(scores[present], scores[~present], threshold)
    guessed, correct = (
        int(guesses.true_positives + guesses.false_positives),
        int(guesses.true_positives),
    )
    bound = f_dp_one_run(canaries, guessed, correct, claim.delta, confidence)
    return Outcome(
        claimed_epsilon=claim.epsilon,
        lower_bound=bound,
        confidence=confidence,
        ceiling=ceiling,
        point_estimate=claim.point_estimate(_separation(Scores(scores[present], scores[~present]))),
        attack=attack,
        observer=observer,
        delta=claim.delta,
        runs=1,
        refuted=bound > claim.epsilon,
        estimator="f_dp_one_run",
        assumes=ASSUMES["f_dp_one_run"],
        bound_by_epsilon_delta_alone=one_run(canaries, guessed, correct, claim.delta, confidence),
        threshold=threshold,
        true_positives=correct,
        present=int(present.sum()),
        false_positives=guessed - correct,
        absent=int((~present).sum()),
    )


def _one_run_threshold(
    profile: Profile, delta: float, canaries: int, confidence: float
) -> tuple[float, float]:
    """The threshold with the largest expected bound, and that bound; of equal ones the most
    balanced.

    Where no bound can be expected, the threshold is 0: only there does noise that is missing
    altogether show.
    """
    best = (0.0, -math.inf, 0.0)
    inside = np.flatnonzero((profile.in_rate > 1e-6) & (profile.in_rate < 1 - 1e-6))
    for at in inside[:: max(1, len(inside) // 25)]:
        right, wrong = (
            canaries / 2 * float(rate[at]) for rate in (profile.in_rate, profile.out_rate)
        )
        guessed, loss = round(right + wrong), float(profile.losses[at])
        if guessed:
            bound = f_dp_one_run(canaries, guessed, min(guessed, round(right)), delta, confidence)
            best = max(best, (bound, -abs(loss), loss))
    return (best[2] if best[0] > 0 else 0.0), best[0]


def _threshold(attack: Attack, scores: Scores, confidence: float) -> tuple[float, Scores]:
    """A threshold that does not depend on the scores it is applied to, and those scores."""
    law = attack.law() if attack.scores_are_losses else None
    if law is not None:
        return law.best_threshold(len(scores.present), len(scores.absent), confidence)[0], scores
    first, second = (
        max(FEWEST // 2, int(PILOT * len(each))) for each in (scores.present, scores.absent)
    )
    pilot = Scores(scores.present[:first], scores.absent[:second])
    kept = Scores(scores.present[first:], scores.absent[second:])
    spread = math.sqrt((float(np.var(pilot.present)) + float(np.var(pilot.absent))) / 2) or 1e-12
    distance = min(
        max((float(pilot.present.mean()) - float(pilot.absent.mean())) / spread, 1e-3), 30.0
    )
    loss, _ = gaussian_profile(distance).best_threshold(
        len(kept.present), len(kept.absent), confidence
    )
    return float(pilot.absent.mean()) + spread * (loss / distance + distance / 2), kept


def _separation(scores: Scores) -> float:
    spread = math.sqrt((float(np.var(scores.present)) + float(np.var(scores.absent))) / 2)
    gap = float(scores.present.mean() - scores.absent.mean())
    return gap / spread if spread else (math.inf if gap > 0 else 0.0)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
