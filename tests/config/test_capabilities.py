"""A record answers questions about a config by its settings alone."""

from homo_dp.config.capabilities import Capabilities, has
from homo_dp.config.load import load_config

TRUSTED = {"privacy.trust_aggregator": True, "privacy.mechanism": "nbafl"}


def test_settings_hold_only_together() -> None:
    config = load_config(None, TRUSTED | {"nbafl.noise_at_upload": False})
    assert has(config, {})
    assert has(config, {"nbafl.noise_at_upload": False, "privacy.secure_aggregation": False})
    assert not has(config, {"nbafl.noise_at_upload": False, "nbafl.mu": 7.0})


def test_noise_is_left_to_the_aggregator_by_declared_settings() -> None:
    config = load_config(None, TRUSTED | {"nbafl.noise_at_upload": False})
    left = Capabilities("a", noise_at_aggregator={"nbafl.noise_at_upload": False})
    assert left.leaves_noise_to_aggregator(config)
    assert not left.leaves_noise_to_aggregator(load_config(None, TRUSTED))
    assert not Capabilities("a").leaves_noise_to_aggregator(config)


def test_the_setting_that_needs_row_counts_is_named() -> None:
    config = load_config(None, TRUSTED)
    needs = Capabilities("a", needs_rows={"nbafl.min_dataset_size": None})
    assert needs.rows_are_needed(config) == "nbafl.min_dataset_size=null"
    assert Capabilities("a", needs_rows={}).rows_are_needed(config) == "privacy.mechanism=nbafl"
    assert Capabilities("a").rows_are_needed(config) is None


def test_what_is_not_declared_is_not_promised() -> None:
    record = Capabilities("a")
    assert not any((record.metrics, record.estimates_first, record.masks, record.one_sum))
    assert (record.unit, record.works_on, record.solvers) == ("record", "rows", ("sgd",))
