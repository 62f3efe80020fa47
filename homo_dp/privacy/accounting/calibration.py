"""From a target epsilon back to the noise: search with a rough accountant, finish with the exact
one.
"""

import math
from collections.abc import Callable

from homo_dp.privacy.errors import PrivacyError

LEAST, MOST = 1e-4, 1e7  # noise multipliers that are tried
# shares of the target: below it, so that a sum in another order stays below as well
ACCEPTED = (0.9965, 0.9998)
AIM = 0.999
_NEAR = 1e-5  # of a noise multiplier's logarithm


def smallest_noise(
    exact: Callable[[float], float], rough: Callable[[float], float], target_epsilon: float
) -> float:
    """A noise multiplier whose exact epsilon is between 99.5 % of the target and the target.

    Where epsilon jumps across the target there is none: then the smallest noise past the jump.

    ``rough`` is a cheap stand-in that falls with the noise as ``exact`` does; only ``exact``
    decides.

    >>> round(smallest_noise(lambda z: 2 / z, lambda z: 2.01 / z, target_epsilon=1.0), 3)
    2.002
    """
    ratio, noise = 1.0, 1.0  # exact over rough, near the solution
    for _ in range(6):
        noise = _solve(rough, AIM * target_epsilon / ratio, noise, target_epsilon)
        spent = exact(noise)
        if _accepted(spent, target_epsilon):
            return noise
        stand_in = rough(noise)
        if not (0 < spent < math.inf and 0 < stand_in < math.inf):
            break
        ratio = spent / stand_in
    noise = _solve(exact, AIM * target_epsilon, noise, target_epsilon)
    # RDP can jump to zero at the solution: take the safe side of the jump
    while exact(noise) > target_epsilon:
        noise *= 1 + 1e-4
    return noise


def _accepted(spent: float, target_epsilon: float) -> bool:
    return ACCEPTED[0] * target_epsilon <= spent <= ACCEPTED[1] * target_epsilon


def _solve(
    spent: Callable[[float], float], goal: float, start: float, target_epsilon: float
) -> float:
    """Where ``spent`` crosses ``goal``, by secants on the logarithms, in which it is nearly a
    straight line.
    """

    def excess(log_noise: float) -> float:
        value = spent(math.exp(log_noise))
        return min(math.log(value) - math.log(goal), 50.0) if value > 0 else -50.0

    at = math.log(start)
    here = excess(at)
    step = math.copysign(min(max(abs(here), 1e-3), 3.0), here)  # noise up if too much is spent
    while True:
        after = min(max(at + 1.2 * step, math.log(LEAST)), math.log(MOST))
        there = excess(after)
        if here * there <= 0:
            break
        if after == at:
            raise PrivacyError(_unreachable(at > 0, spent, target_epsilon))
        at, here, step = after, there, 1.5 * step
    return math.exp(_root(excess, (at, here), (after, there)))


def _root(
    excess: Callable[[float], float], one: tuple[float, float], other: tuple[float, float]
) -> float:
    """A root to 1e-5 between two points of different sign, by the Illinois method.

    That is regula falsi in which an end that stays twice counts half; scipy's Brent takes as many
    evaluations here and a fifth of a second to import.
    """
    (a, f_a), (b, f_b) = one, other  # b is the newer point
    if f_a == 0 or f_b == 0:
        return a if f_a == 0 else b
    for turn in range(200):
        # Where the curve is far from a straight line, bisection steps bound the number of
        # iterations.
        c = (a + b) / 2 if turn % 8 == 7 else b - f_b * (b - a) / (f_b - f_a)
        f_c = excess(c)
        if f_c * f_b < 0:
            a, f_a = b, f_b
        else:
            f_a /= 2
        moved, b, f_b = abs(c - b), c, f_c
        if f_c == 0 or abs(b - a) < _NEAR or moved < _NEAR:
            break
    return b


def _unreachable(too_little: bool, spent: Callable[[float], float], target_epsilon: float) -> str:
    if too_little:
        return (
            f"target_epsilon={target_epsilon:g} must be > {spent(MOST):.4g}, the cost of the other "
            "releases whatever the noise; raise the target or release less"
        )
    return (
        f"target_epsilon={target_epsilon:g} promises nothing: it is met with hardly any noise; "
        "choose one below 100"
    )
