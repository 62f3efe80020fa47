"""A party's process: what it checks before it joins, and what its own config keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from homo_dp.config.load import config_from, load_config
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError, DataError, InputError
from homo_dp.runs.party_process import PartyProcess
from homo_dp.runs.plan_cost import party_budget
from tests.processes.parts import Cluster

NAME = "party_1"


def _process(cluster: Cluster) -> PartyProcess:
    return PartyProcess(config_from(cluster.configs[NAME]), Screen(quiet=True))


def test_it_is_built_from_its_own_config_and_charges_nothing(tmp_path: Path) -> None:
    process = _process(Cluster(tmp_path))
    assert process.name == NAME
    assert process.ledger.rows() == []


def test_a_table_of_somebody_else_is_noticed_at_the_start(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    files = cluster.configs[NAME]["data"]["files"]
    cluster.change(NAME, "data", files={"another": files[NAME]}, test_file=None)
    with pytest.raises(ConfigError, match=r"has no table of party\.name=party_1"):
        _process(cluster)


def test_a_table_that_is_not_there_is_noticed_at_the_start(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.change(NAME, "data", files={NAME: str(tmp_path / "absent.csv")}, test_file=None)
    with pytest.raises(DataError, match="no such file"):
        _process(cluster)


def test_a_key_of_another_name_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.change(NAME, "party", key_file=str(tmp_path / "keys" / "party_2.key"))
    with pytest.raises(InputError, match="is the key of party_2, not of party_1"):
        _process(cluster)


def test_the_smaller_of_own_cap_and_agreed_target_counts() -> None:
    own = load_config(None, {"privacy.target_epsilon": 2.0, "party.caps.epsilon": 3.0})
    asked = load_config(None, {"privacy.target_epsilon": 1.0})
    more = load_config(None, {"privacy.target_epsilon": 50.0})
    assert party_budget(own, asked).epsilon == 1.0
    assert party_budget(own, more).epsilon == 3.0


def test_the_lifetime_budget_is_the_party_s_own() -> None:
    own = load_config(None, {"data.name": "t", "privacy.lifetime_epsilon": 5.0})
    agreed = load_config(None, {"data.name": "t", "privacy.lifetime_epsilon": 500.0})
    budget = party_budget(own, agreed)
    assert (budget.lifetime_epsilon, budget.lifetime_delta) == (5.0, own.delta)


def test_where_state_is_kept() -> None:
    assert load_config(None, {"party.name": "a"}).party.folder == Path("state/a")
    assert load_config(None, {"party.name": "a", "party.state_dir": "x"}).party.folder == Path("x")
