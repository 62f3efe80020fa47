"""One run of a party that serves: its asker by the name of the run, and files of its own."""

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.served_run import asker_key, served_layer
from homo_dp.core.errors import ConfigError

SERVES = {
    "party.name": "bank_a",
    "party.aggregator_key": "single",
    "party.serve.approve": "ask",
    "party.serve.askers": [
        {"aggregator_key": "first", "runs": ["loans-*"]},
        {"aggregator_key": "second", "runs": ["cards-?", "loans-*"]},
    ],
}


def test_the_first_asker_whose_pattern_fits_is_believed() -> None:
    config = load_config(None, SERVES)
    assert (asker_key(config, "loans-7"), asker_key(config, "cards-1")) == ("first", "second")
    for name in ("cards-12", "LOANS-7", "other"):
        with pytest.raises(ConfigError, match=f"none of them may start run {name}"):
            asker_key(config, name)


def test_without_askers_the_one_aggregator_is_believed() -> None:
    assert asker_key(load_config(None, {"party.aggregator_key": "single"}), "any") == "single"


def test_two_runs_share_no_file() -> None:
    config = load_config(None, SERVES)
    layers = [served_layer(config, run, "key") for run in ("one", "two")]
    assert not {*layers[0]["output"].values()} & {*layers[1]["output"].values()}
    assert layers[0]["transport"]["flower"]["socket"] is None  # else both would listen at one path
