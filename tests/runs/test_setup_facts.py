"""Who ran what, as the indicators of a party and of the aggregator say it."""

from __future__ import annotations

from pathlib import Path

from homo_dp.config.load import config_from, load_config
from homo_dp.federation.protocol.messages import KINDS
from homo_dp.runs.processes import aggregator_sealer, party_sealer
from homo_dp.runs.setup_facts import aggregator_setup, bounds_facts, party_setup
from tests.processes.parts import Cluster


def test_a_party_names_the_key_of_its_aggregator_and_the_aggregator_its_own(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    own, central = (config_from(cluster.configs[name]) for name in ("party_1", "aggregator"))
    at_party = party_setup(own, party_sealer(own), 3)
    at_aggregator = aggregator_setup(central, aggregator_sealer(central, KINDS))
    assert (at_party["role"], at_party["party"], at_party["parties"]) == ("party", "party_1", 3)
    assert at_party["aggregator"] == at_aggregator["aggregator"]
    assert at_party["transport"] == at_aggregator["transport"] == "directory"
    assert at_aggregator["parties"] == len(cluster.configs["aggregator"]["federation"]["parties"])


def test_the_source_of_bounds_says_who_gave_it() -> None:
    shipped = load_config(None, {"data.columns_from": "digits"})
    silent = load_config(None, {"data.files.a": "a.csv", "data.columns_from": None})
    stated = load_config(None, {"data.columns": {"x": {"bounds": [0, 1], "source": "a law"}}})
    assert bounds_facts(shipped) == {"source": "public", "shipped": "digits"}
    assert bounds_facts(shipped, silent)["given_by"] == "plan"
    assert bounds_facts(shipped, shipped)["given_by"] == "own config"
    assert bounds_facts(stated) == {"source": "not stated", "columns": {"x": "a law"}}
