"""An aggregator's process and its parties, in threads of one process over a shared folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from homo_dp.config.load import config_from
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.protocol.transport import Transport
from homo_dp.models.files import read_card
from homo_dp.privacy.errors import PrivacyError
from homo_dp.runs.aggregator_process import AggregatorProcess
from homo_dp.runs.party_process import PartyProcess
from homo_dp.runs.processes import open_transport, party_sealer
from tests.processes.parts import PARTIES, RUN, Cluster, ledger_rows
from tests.processes.test_masks_killed import with_a_dropout
from tests.processes.zygote import Zygote


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


def test_parties_are_told_when_a_run_fails_before_its_first_round(
    tmp_path: Path,
) -> None:
    """They waited for an hour (`party.patience`) for a process that had ended."""
    cluster = Cluster(tmp_path, rounds=2)
    users = {"mechanism": "dp_fedavg", "population": 20, "sample_rate": 0.5, "delta": 0.01}
    (tmp_path / "ledger.sqlite").write_bytes(b"damaged")
    own = {"trust_aggregator": True, "ledger": str(tmp_path / "ledger.sqlite")}
    cluster.change(AGGREGATOR, "privacy", **users, **own)
    joined = [
        open_transport(config, party_sealer(config), tmp_path / name)
        for name in PARTIES
        for config in (config_from(cluster.configs[name]),)
    ]
    for name, transport in zip(PARTIES, joined, strict=True):
        info = {"rows": None, "ledger_head": None}
        transport.send(Message(RUN, 0, name, AGGREGATOR, "join", {}, info))
    with pytest.raises(PrivacyError, match="ledger"):
        _aggregator(cluster).run()
    for transport in joined:
        assert [message.info["state"] for message in heard(transport)][-1] == "stopped"
        transport.close()


def heard(transport: Transport) -> Iterator[Message]:
    """The messages that are there."""
    while (message := transport.receive(0.0)) is not None:
        yield message
        transport.done(message)


def test_parties_that_may_be_missing_are_not_waited_for_unless_the_config_says_so(
    tmp_path: Path, zygote: Zygote
) -> None:
    """Whatever `tolerated_dropouts` said, a run waited for ever for a party that had been left out
    of the meeting.
    """
    cluster = with_a_dropout(tmp_path, zygote, None)
    assert _aggregator(cluster)._rules().min_parties == 2
    cluster.change(AGGREGATOR, "federation", min_parties=3)
    assert _aggregator(cluster)._rules().min_parties == 3
    cluster.change(AGGREGATOR, "federation", min_parties=1)  # whose sum could not be opened
    assert _aggregator(cluster)._rules().min_parties == 2


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
