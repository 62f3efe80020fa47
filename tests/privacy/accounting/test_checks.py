"""Every number of a guarantee has a range, and its refusal names the value and the range in one
line.
"""

import math
from collections.abc import Callable

import pytest

from homo_dp.privacy.accounting.checks import (
    check_delta,
    check_noise_multiplier,
    check_sample_rate,
    check_steps,
    check_target_epsilon,
    steps_for_epochs,
)
from homo_dp.privacy.errors import PrivacyError


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (lambda: check_delta(0.0), r"delta=0 .*\(0, 1\)"),
        (lambda: check_delta(-1e-5), r"delta=-1e-05 .*\(0, 1\)"),
        (lambda: check_delta(1.0), r"delta=1 .*\(0, 1\)"),
        (lambda: check_delta(math.nan), "delta=nan"),
        (lambda: check_delta(0.01, population=100), r"delta=0.01 .*\(0, 1/100\)"),
        (lambda: check_delta(0.5, population=100), r"delta=0.5 .*\(0, 1/100\)"),
        (lambda: check_delta(1e-5, population=0), "population=0"),
        (lambda: check_noise_multiplier(0.0), "noise_multiplier=0 must be > 0"),
        (lambda: check_noise_multiplier(-1.0), "noise_multiplier=-1 must be > 0"),
        (lambda: check_noise_multiplier(math.inf), "noise_multiplier=inf"),
        (
            lambda: check_noise_multiplier(1e300),
            r"noise_multiplier=1e\+300 must be in \[1e-09, 1e\+09\]",
        ),
        (
            lambda: check_noise_multiplier(1e-300),
            r"noise_multiplier=1e-300 must be in \[1e-09, 1e\+09\]",
        ),
        (lambda: check_steps(10**400), "steps=.* must be <= 1e"),
        (lambda: steps_for_epochs(1e300, 100, 10), "steps=.* must be <= 1e"),
        (lambda: check_sample_rate(0.0), r"sample_rate=0 .*\(0, 1\]"),
        (lambda: check_sample_rate(1.01), r"sample_rate=1.01 .*\(0, 1\]"),
        (lambda: check_steps(-3), "steps=-3 must be >= 1"),
        (lambda: check_steps(0, "rounds"), "rounds=0 must be >= 1"),
        (lambda: check_steps(2.5), "steps=2.5"),  # type: ignore[arg-type]
        (lambda: check_steps(True), "steps=True"),
        (lambda: check_target_epsilon(0.0), "target_epsilon=0 must be > 0"),
        (lambda: check_target_epsilon(math.nan), "target_epsilon=nan"),
        (lambda: steps_for_epochs(-1, 100, 10), "epochs=-1"),
        (lambda: steps_for_epochs(1, 100, 101), "sample_rate=1.01"),
    ],
)
def test_wrong_numbers_are_refused(check: Callable[[], None], says: str) -> None:
    with pytest.raises(PrivacyError, match=says) as refused:
        check()
    assert "\n" not in str(refused.value)


def test_steps_are_counted_without_rounding_errors() -> None:
    assert steps_for_epochs(1, 100, 10) == 10
    assert steps_for_epochs(3, 10, 3) == 10
    assert steps_for_epochs(0.1, 1000, 10) == 10  # 0.1 * 1000 / 10 in binary is a little above 10
    assert steps_for_epochs("60", 60_000, 256) == 14_063
