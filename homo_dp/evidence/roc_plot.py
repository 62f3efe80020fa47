"""The attack's ROC against the curve that the claim allows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from homo_dp.tracking.report.plot_style import COLOURS, GREY, new_figure, png

if TYPE_CHECKING:
    from homo_dp.evidence.audit import Floats, Outcome, Scores
    from homo_dp.evidence.tradeoff import Claim


def roc_picture(outcome: Outcome, scores: Scores, claim: Claim) -> bytes:
    """A PNG: the attack with its confidence band, and what the claim allows.

    By chance the attack may be above a curve that is allowed; its lower edge may not, at the
    threshold that was fixed beforehand.
    """
    figure, (axes,) = new_figure()
    false, true = rates(scores)
    axes.fill_between(
        *band(scores, outcome.confidence),
        color=COLOURS[1],
        alpha=0.2,
        linewidth=0,
        label=f"{100 * outcome.confidence:g} % confidence at each threshold",
    )
    axes.step(
        false,
        true,
        where="post",
        color=COLOURS[1],
        label=f"attack: {outcome.attack}, {outcome.runs} runs",
    )
    grid = np.linspace(0, 1, 400)
    said = f"epsilon {claim.epsilon:.3g}, delta {claim.delta:g}: most that is allowed"
    axes.plot(grid, claimed_rates(claim, grid), color=GREY, label=said)
    profile = claim.profile()
    if profile is not None:
        axes.plot(*profile.curve(), color=COLOURS[0], label="expected for a perfect attack")
    axes.plot(
        [outcome.false_positives / outcome.absent],
        [outcome.true_positives / outcome.present],
        "o",
        color=COLOURS[1],
        label="threshold fixed beforehand",
    )
    axes.set_xlabel("false-positive rate")
    axes.set_ylabel("true-positive rate")
    verdict = "REFUTED" if outcome.refuted else "not refuted"
    axes.set_title(
        f"claimed epsilon {claim.epsilon:.3g}, lower bound {outcome.lower_bound:.3g}: {verdict}"
    )
    axes.legend(loc="lower right", fontsize=8)
    return png(figure)


def band(scores: Scores, confidence: float) -> tuple[Floats, Floats, Floats]:
    """False-positive rates, and between which true-positive rates the attack's are at them.

    At each threshold both rates are bounded by Clopper and Pearson, together with ``confidence`` on
    either side, as for the lower bound of epsilon.
    """
    cuts = _cuts(scores)
    tail = (1 - confidence) / 2
    false, true = (
        np.array([np.sum(each >= cut) for cut in cuts]) for each in (scores.absent, scores.present)
    )
    absent, present = len(scores.absent), len(scores.present)
    least_true = _bound(true, present - true + 1, tail)
    most_true = _bound(true + 1, present - true, 1 - tail)
    least_false = _bound(false, absent - false + 1, tail)
    most_false = _bound(false + 1, absent - false, 1 - tail)
    grid = np.linspace(0, 1, 400)
    # a threshold that nobody passes certifies no rate, and all are below one that everybody passes
    lower = np.interp(grid, np.append(0.0, most_false), np.append(0.0, least_true))
    upper = np.interp(grid, np.append(least_false, 1.0), np.append(most_true, 1.0))
    return grid, lower, upper


def _bound(first: Floats, second: Floats, level: float) -> Floats:
    """Quantiles of beta distributions; 0 or 1 where a parameter is 0."""
    inner = stats.beta.ppf(level, np.maximum(first, 1e-9), np.maximum(second, 1e-9))
    return np.where(first <= 0, 0.0, np.where(second <= 0, 1.0, inner))


def _cuts(scores: Scores) -> Floats:
    """Thresholds, descending, at most about 2,000."""
    cuts = np.unique(np.concatenate([scores.present, scores.absent]))[::-1]
    return cuts[:: max(1, len(cuts) // 2000)]


def rates(scores: Scores) -> tuple[Floats, Floats]:
    """The attack's ROC: false- and true-positive rates over all thresholds."""
    cuts = _cuts(scores)
    false = np.array([float(np.mean(scores.absent >= cut)) for cut in cuts])
    true = np.array([float(np.mean(scores.present >= cut)) for cut in cuts])
    return np.append(0.0, false), np.append(0.0, true)


def claimed_rates(claim: Claim, false: Floats) -> Floats:
    """The true-positive rates that (epsilon, delta) alone allows."""
    e, d = math.exp(min(claim.epsilon, 600.0)), claim.delta
    return np.clip(np.minimum(e * false + d, 1 - (1 - d - false) / e), 0.0, 1.0)
