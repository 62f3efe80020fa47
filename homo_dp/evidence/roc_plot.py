"""The attack's ROC against the curve that the claim allows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from homo_dp.tracking.report.plot_style import COLOURS, GREY, new_figure, png

if TYPE_CHECKING:
    from homo_dp.evidence.audit import Floats, Outcome, Scores
    from homo_dp.evidence.tradeoff import Claim


def roc_picture(outcome: Outcome, scores: Scores, claim: Claim) -> bytes:
    """A PNG; the attack may lie below the curves, never clearly above them."""
    figure, (axes,) = new_figure()
    false, true = rates(scores)
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
        axes.plot(
            *profile.curve(), color=COLOURS[0], label="the claimed mechanism: most that is allowed"
        )
    axes.plot(
        [outcome.false_positives / outcome.absent],
        [outcome.true_positives / outcome.present],
        "o",
        color=COLOURS[1],
        label="threshold fixed beforehand",
    )
    axes.set_xlabel("false-positive rate")
    axes.set_ylabel("true-positive rate")
    axes.set_title(
        f"lower bound {outcome.lower_bound:.3g} of a claimed epsilon of {claim.epsilon:.3g}"
    )
    axes.legend(loc="lower right", fontsize=8)
    return png(figure)


def rates(scores: Scores) -> tuple[Floats, Floats]:
    """The attack's ROC: false- and true-positive rates over all thresholds."""
    cuts = np.unique(np.concatenate([scores.present, scores.absent]))[::-1]
    cuts = cuts[:: max(1, len(cuts) // 2000)]
    false = np.array([float(np.mean(scores.absent >= cut)) for cut in cuts])
    true = np.array([float(np.mean(scores.present >= cut)) for cut in cuts])
    return np.append(0.0, false), np.append(0.0, true)


def claimed_rates(claim: Claim, false: Floats) -> Floats:
    """The true-positive rates that (epsilon, delta) alone allows."""
    e, d = math.exp(min(claim.epsilon, 600.0)), claim.delta
    return np.clip(np.minimum(e * false + d, 1 - (1 - d - false) / e), 0.0, 1.0)
