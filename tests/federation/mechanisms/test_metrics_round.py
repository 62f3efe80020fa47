"""A release of metrics asks one sum of test rows, and its figures carry their noise."""

import pytest
import torch

from homo_dp.federation.mechanisms.metrics_round import MetricsRound
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.private_sum import NoiseShare
from tests.federation.small import small_config, small_mechanism

NOISED = {
    "metrics__release": "noised",
    "privacy__noise_multiplier": None,
    "privacy__target_epsilon": 4.0,
}


def test_a_release_has_its_part_of_the_share_of_all() -> None:
    once = small_mechanism(small_config(train__rounds=4, **NOISED), {"a": 2000})
    twice = small_mechanism(small_config(train__rounds=4, metrics__every=2, **NOISED), {"a": 2000})
    noise = [each.run.metrics.asked.private_sum.noise_multiplier for each in (once, twice)]
    assert noise[1] / noise[0] == pytest.approx(2**0.5)


def test_figures_of_parties_are_read_only_where_each_adds_its_own_noise() -> None:
    config = small_config(train__rounds=2, metrics__per_party=True, **NOISED)
    facts = small_mechanism(config, {"a": 2000, "b": 2000}).facts
    for share, seen in ((None, {"a", "b"}), (NoiseShare(2), set())):
        found = MetricsRound(config, facts, share)
        part = torch.ones(found.asked.dimension, dtype=torch.float64) * 100
        read = found.read(found.asked, {"a": part, "b": part})
        assert set(read.by_party) == seen
        assert {f"{name}_error" for name in read.figures if not name.endswith("_error")} <= set(
            read.figures
        )


def test_without_a_target_there_is_no_share_to_spend() -> None:
    config = small_config(train__rounds=2)
    found = MetricsRound(config, small_mechanism(config, {"a": 20}).facts, None)
    with pytest.raises(PrivacyError, match=r"needs privacy\.target_epsilon"):
        _ = found.asked
