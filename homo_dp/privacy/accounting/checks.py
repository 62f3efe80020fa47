"""Ranges of the numbers that a guarantee is made of; each refusal names the value, the range and
the next step.
"""

import math
from fractions import Fraction

from homo_dp.privacy.errors import PrivacyError

# beyond these, rounding errors of floats would decide the answer
LEAST_NOISE, MOST_NOISE = 1e-9, 1e9
MOST_STEPS = 10**15


def check_delta(delta: float, population: int | None = None) -> None:
    """Refuse a delta that promises nothing: at 1/population, publishing a random record would be
    allowed.

    >>> check_delta(1e-5, population=60_000)
    """
    _finite("delta", delta)
    if population is not None and population < 1:
        raise PrivacyError(
            f"population={population} must be >= 1; give the number of records or users"
        )
    if population is not None and not 0 < delta < 1 / population:
        raise PrivacyError(
            f"delta={delta:g} must be in (0, 1/{population}) = (0, {1 / population:.3g}); "
            "choose it well below one over the number of records or users"
        )
    if not 0 < delta < 1:
        raise PrivacyError(
            f"delta={delta:g} must be in (0, 1); choose it well below one over the number of "
            "records"
        )


def most_rows(delta: float) -> int:
    """The most records for which a delta is below one over their number.

    >>> most_rows(1e-5), most_rows(0.3)
    (99999, 3)
    """
    check_delta(delta)
    found = math.floor(1 / delta)
    return found if delta < 1 / found else max(1, found - 1)


def check_noise_multiplier(noise_multiplier: float) -> None:
    """Refuse zero, negative, non-finite and absurd noise."""
    _finite("noise_multiplier", noise_multiplier)
    if noise_multiplier <= 0:
        raise PrivacyError(
            f"noise_multiplier={noise_multiplier:g} must be > 0; without noise there is no privacy"
        )
    if not LEAST_NOISE <= noise_multiplier <= MOST_NOISE:
        raise PrivacyError(
            f"noise_multiplier={noise_multiplier:g} must be in [{LEAST_NOISE:g}, {MOST_NOISE:g}]; "
            "common: 0.5 to 10"
        )


def check_sample_rate(sample_rate: float) -> None:
    """Refuse what is not the probability of being in a draw."""
    _finite("sample_rate", sample_rate)
    if not 0 < sample_rate <= 1:
        raise PrivacyError(
            f"sample_rate={sample_rate:g} must be in (0, 1]; give batch size over rows"
        )


def check_steps(steps: int, name: str = "steps") -> None:
    """Refuse fractions, zero, negative and absurd counts."""
    if isinstance(steps, bool) or not hasattr(steps, "__index__"):
        raise PrivacyError(f"{name}={steps!r} must be a whole number >= 1; give a whole number")
    if steps < 1:
        raise PrivacyError(f"{name}={steps} must be >= 1; give a whole number of one or more")
    if steps > MOST_STEPS:
        raise PrivacyError(
            f"{name}=about 10**{len(str(steps)) - 1} must be <= {MOST_STEPS:.0e}; give a smaller "
            "number"
        )


def check_target_epsilon(target_epsilon: float) -> None:
    """Refuse a target that no noise reaches or that promises nothing."""
    _finite("target_epsilon", target_epsilon)
    if target_epsilon <= 0:
        raise PrivacyError(
            f"target_epsilon={target_epsilon:g} must be > 0; common values are 0.5 to 10"
        )


def steps_for_epochs(epochs: float | str, rows: int, batch_size: int) -> int:
    """Draws of expected size ``batch_size`` that add up to ``epochs`` passes: ceil(epochs / q) with
    q exactly.

    >>> steps_for_epochs(60, rows=60_000, batch_size=256)
    14063
    """
    check_steps(rows, "rows")
    check_steps(batch_size, "batch_size")
    check_sample_rate(batch_size / rows)
    _finite("epochs", float(epochs))
    if float(epochs) <= 0:
        raise PrivacyError(
            f"epochs={epochs} must be > 0; give how many passes over the rows are made"
        )
    steps = exact_steps(epochs, Fraction(batch_size, rows))
    check_steps(steps)
    return steps


def exact_steps(epochs: float | str, sample_rate: Fraction) -> int:
    """Ceil(epochs / q) without rounding: in floats, 1 / (10 / 490) is above 49."""
    return math.ceil(Fraction(str(epochs)) / sample_rate)


def _finite(name: str, value: float) -> None:
    if isinstance(value, bool) or not hasattr(value, "__float__") or not math.isfinite(value):
        raise PrivacyError(f"{name}={value!r} must be a finite number; give a number")
