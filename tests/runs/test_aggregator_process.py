"""An aggregator's process and its parties, in threads of one process over a shared folder."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from homo_dp.config.load import config_from
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.models.files import read_card
from homo_dp.runs.aggregator_process import AggregatorProcess
from homo_dp.runs.party_process import PartyProcess
from tests.processes.parts import PARTIES, Cluster, ledger_rows


def _aggregator(cluster: Cluster) -> AggregatorProcess:
    return AggregatorProcess(config_from(cluster.configs[AGGREGATOR]), Screen(quiet=True))


def test_a_run_from_its_first_join_to_its_files(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, rounds=2)
    codes: dict[str, int] = {}

    def party(name: str) -> None:
        codes[name] = PartyProcess(config_from(cluster.configs[name]), Screen(quiet=True)).run()

    threads = [threading.Thread(target=party, args=[name], daemon=True) for name in PARTIES]
    for thread in threads:
        thread.start()
    codes[AGGREGATOR] = _aggregator(cluster).run()
    for thread in threads:
        thread.join(60)
    assert codes == dict.fromkeys((AGGREGATOR, *PARTIES), 0)
    indicators = json.loads((tmp_path / AGGREGATOR / "out" / "indicator.json").read_text())
    assert [row["round"] for row in indicators["rounds"]] == [1, 2]
    assert set(indicators["ledger_heads"]) == set(PARTIES)
    assert indicators["privacy"]["epsilon"] <= 4.0
    assert indicators["test_acc"] is None  # it sees no rows, and no table is declared public
    assert (
        read_card(tmp_path / AGGREGATOR / "out" / "model.safetensors").architecture.name
        == "logistic_regression"
    )
    for name in PARTIES:
        assert [row.round for row in ledger_rows(tmp_path / name / "ledger.sqlite")] == [1, 2]
    cluster.change(AGGREGATOR, "train", rounds=5)
    with pytest.raises(ConfigError, match="was started with other settings"):
        _aggregator(cluster).run()


def test_a_message_may_be_as_large_as_the_model_needs(tmp_path: Path) -> None:
    assert _aggregator(Cluster(tmp_path)).sealer.limits.bytes <= 64 << 20


def test_an_aggregator_needs_columns_parties_and_a_key(tmp_path: Path) -> None:
    for section, keys, words in (
        ("federation", {"parties": []}, "federation.parties"),
        ("federation", {"run": None}, "federation.run"),
        ("data", {"columns_from": None, "files": {"a": "a.csv"}}, "data.columns"),
    ):
        cluster = Cluster(tmp_path / words)
        cluster.change(AGGREGATOR, section, **keys)
        with pytest.raises(ValueError, match=words):
            _aggregator(cluster)
