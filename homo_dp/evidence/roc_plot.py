"""The attack's ROC against the curve that the claim allows."""

from __future__ import annotations

import numpy as np

from homo_dp.evidence.audit import Outcome, Scores, claimed_rates, rates
from homo_dp.evidence.tradeoff import Claim
from homo_dp.tracking.report.plot_style import COLOURS, GREY, new_figure, png


def roc_picture(outcome: Outcome, scores: Scores, claim: Claim) -> bytes:
    """A PNG; the attack may lie below the curves, never clearly above them."""
    figure, (axes,) = new_figure()
    false, true = rates(scores)
    axes.step(false, true, where="post", color=COLOURS[1], label=f"attack: {outcome.attack}, {outcome.runs} runs")
    grid = np.linspace(0, 1, 400)
    said = f"epsilon {claim.epsilon:.3g}, delta {claim.delta:g}: most that is allowed"
    axes.plot(grid, claimed_rates(claim, grid), color=GREY, label=said)
    profile = claim.profile()
    if profile is not None:
        axes.plot(*profile.curve(), color=COLOURS[0], label="the claimed mechanism: most that is allowed")
    axes.plot(
        [outcome.false_positives / outcome.absent],
        [outcome.true_positives / outcome.present],
        "o",
        color=COLOURS[1],
        label="threshold fixed beforehand",
    )
    axes.set_xlabel("false-positive rate")
    axes.set_ylabel("true-positive rate")
    axes.set_title(f"lower bound {outcome.lower_bound:.3g} of a claimed epsilon of {claim.epsilon:.3g}")
    axes.legend(loc="lower right", fontsize=8)
    return png(figure)
