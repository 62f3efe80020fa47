"""The cost of a search of which the best trial alone is published
(https://arxiv.org/abs/2110.03620).

All trials are the same private mechanism, settings drawn anew each time, and how many there are is
drawn at random and stays secret: from everybody who gets the winner, whatever else they get. A
ledger that had rows for each trial would tell it by its length, which a party shows with every
message. So a search is one event (``RepeatAndSelectDpEvent``), charged before the first trial. The
formulas are those of dp-accounting's RepeatAndSelectDpEvent,
at all orders at once; tests hold the two against each other.
"""

from __future__ import annotations

import math
import random
from typing import Final, Literal

import numpy as np

from homo_dp.privacy.accounting.renyi_bounds import ORDERS, Renyi
from homo_dp.privacy.errors import PrivacyError

Distribution = Literal["poisson", "geometric"]
MOST_MEAN: Final = 100.0


def selected(trial: Renyi, mean: float, distribution: Distribution) -> Renyi:
    """Divergence at every order of publishing the best of a random number of trials, from that of
    one trial.

    Guarantees:
        - an upper bound if the number is drawn by `secret_number`, nothing but the winner is
          published, and nothing that is published depends on the number: no count of rows, no
          total of a ledger, no time;
        - never less than one trial.

    >>> from homo_dp.privacy.accounting.renyi_bounds import gaussian_rdp
    >>> float(selected(gaussian_rdp(5.0, ORDERS), 8, "geometric")[-1].round(3))
    21.258
    """
    check_mean(mean)
    chosen = math.log(mean) / (ORDERS - 1)
    if distribution == "poisson":  # theorem 6
        bounds = [_delta(trial, math.log1p(1 / (order - 1))) for order in ORDERS]
        return trial + mean * np.array(bounds) + chosen
    # theorem 2 with eta = 1, where gamma is 1 / mean
    found = trial + chosen + 2 * float(np.min((1 - 1 / ORDERS) * trial + math.log(mean) / ORDERS))
    result: Renyi = np.minimum.accumulate(found[::-1])[::-1]  # divergence grows with the order
    return result


def distribution_of(shape: float) -> Distribution:
    """The distribution of an event: of shape 1 or infinite."""
    return "poisson" if shape == math.inf else "geometric"


def shape_of(distribution: Distribution) -> float:
    """The same the other way round.

    >>> distribution_of(shape_of("poisson")), shape_of("geometric")
    ('poisson', 1.0)
    """
    return math.inf if distribution == "poisson" else 1.0


def secret_number(mean: float, distribution: Distribution) -> int:
    """A number of trials from the operating system's entropy; geometric starts at 1, Poisson at
    0.
    """
    check_mean(mean)
    source, number = random.SystemRandom(), 0
    if distribution == "geometric":
        while source.random() >= 1 / mean:
            number += 1
        return number + 1
    passed = source.expovariate(1.0)
    while passed <= mean:
        number += 1
        passed += source.expovariate(1.0)
    return number


def check_mean(mean: float) -> None:
    """Refuse a mean for which there is no bound."""
    if not 1 <= mean <= MOST_MEAN:
        raise PrivacyError(
            f"--trials {mean:g}: the mean of a random number of trials must be 1 to {MOST_MEAN:g}"
        )


def _delta(divergence: Renyi, epsilon: float) -> float:
    """The smallest delta at epsilon over all orders."""
    with np.errstate(over="ignore", divide="ignore"):
        by_kl = 0.5 * np.log1p(-np.exp(-divergence))  # delta <= sqrt(1 - exp(-KL))
        by_order = (ORDERS - 1) * (divergence - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return min(
        1.0, float(np.exp(np.nanmin(np.minimum(by_kl, np.where(ORDERS > 1.01, by_order, np.inf)))))
    )
