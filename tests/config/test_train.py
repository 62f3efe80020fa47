"""The train section: learning rates over a run."""

import math

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import ScheduleConfig
from homo_dp.core.errors import ConfigError


def test_optimal_schedule_equals_scikit_learn() -> None:
    # scikit-learn's SGDClassifier(learning_rate="optimal"): eta = 1 / (alpha (t0 + t)), t0 = 1 /
    # (typw alpha) since the loss derivative at -typw is below 1, typw = sqrt(1 / sqrt(alpha));
    # PrimiHub's homo_lr copies it.
    alpha = 1e-4
    schedule = ScheduleConfig(kind="optimal")
    typw = math.sqrt(1 / math.sqrt(alpha))
    for step in (0, 1, 99):
        expected = 1 / (alpha * (1 / (typw * alpha) + step))
        assert schedule.rate(123.0, step, 100, alpha=alpha) == pytest.approx(expected, rel=1e-12)
    assert schedule.rate(1.0, 99, 100, alpha=alpha) == pytest.approx(9.099, abs=1e-3)


def test_other_schedules() -> None:
    assert ScheduleConfig().rate(0.5, 7, 10) == 0.5
    assert ScheduleConfig(kind="inverse_sqrt").rate(1.0, 3, 10) == 0.5
    step = ScheduleConfig(kind="step")
    assert [step.rate(1.0, s, 8) for s in range(8)] == [1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1]
    assert ScheduleConfig(kind="cosine").rate(1.0, 10, 10) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("key", "value", "named", "kind"),
    [
        ("averaging.tail", 0.2, "averaging.kind", "tail"),
        ("averaging.decay", 0.5, "averaging.kind", "ema"),
        ("server_optimizer.momentum", 0.5, "server_optimizer.name", "fedavgm"),
        ("server_optimizer.beta1", 0.5, "server_optimizer.name", "fedadam"),
    ],
)
def test_a_key_of_one_kind_asks_for_that_kind(
    key: str, value: float, named: str, kind: str
) -> None:
    """With the default kind it would be ignored, and the rules would leave the section alone."""
    section, name = named.split(".")
    given = {f"train.{key}": value}
    assert getattr(getattr(load_config(None, given).train, section), name) == kind
    default = getattr(getattr(load_config(None).train, section), name)
    written = load_config(None, {**given, f"train.{named}": default})
    assert getattr(getattr(written.train, section), name) == default


def test_keys_of_two_kinds_are_refused() -> None:
    keys = {"train.averaging.tail": 0.2, "train.averaging.decay": 0.5}
    answer = (
        r"train\.averaging: tail is of kind=tail and decay is of kind=ema; give train\.averaging"
    )
    with pytest.raises(ConfigError, match=answer):
        load_config(None, keys)
