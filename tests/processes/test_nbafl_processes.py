"""NbAFL between processes: the schedule that everybody computes for itself, and either ledger."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from homo_dp.federation.protocol.ids import AGGREGATOR
from tests.federation.nbafl_parts import closed_form
from tests.processes.parts import PARTIES, Cluster, ledger_rows
from tests.processes.surviving import Victim, survive
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer

# 4 rounds > 2 exposures x sqrt(3 parties): there is download noise, and nobody takes part in every
# round
SETTINGS: dict[str, Any] = {
    "epsilon": 10.0,
    "clip_norm": 3.0,
    "exposures": 2,
    "min_dataset_size": 100,
}
ROUNDS = {"party_1": [1, 2], "party_2": [3, 4], "party_3": [1, 2]}


@pytest.mark.parametrize("trusted", [False, True])
def test_each_party_uploads_as_often_as_planned_and_says_what_it_spent(
    trusted: bool, tmp_path: Path, zygote: Zygote
) -> None:
    with Cluster(tmp_path, rounds=4, zygote=zygote) as cluster:
        ledger = tmp_path / AGGREGATOR / "ledger.sqlite"
        cluster.change(
            AGGREGATOR, "privacy", mechanism="nbafl", trust_aggregator=trusted, ledger=str(ledger)
        )
        cluster.change(AGGREGATOR, "nbafl", **SETTINGS, noise_at_upload=not trusted)
        for party in PARTIES:
            cluster.change(party, "privacy", trust_aggregator=trusted)
            cluster.change(party, "party", caps={"epsilon": 1e9})
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    rounds = json.loads((tmp_path / AGGREGATOR / "out" / "indicator.json").read_text())["rounds"]
    assert [row["replied"] for row in rounds] == [["party_1", "party_3"]] * 2 + [["party_2"]] * 2
    if trusted:
        rows = ledger_rows(ledger)
        assert {
            party: [row.round for row in rows if row.party == party] for party in PARTIES
        } == ROUNDS
    for party in PARTIES:
        own = ledger_rows(tmp_path / party / "ledger.sqlite")
        privacy = json.loads((tmp_path / party / "out" / "indicator.json").read_text())["privacy"]
        assert [row.round for row in own] == ([] if trusted else ROUNDS[party])
        sigma = privacy["download_sigma"] if trusted else privacy["upload_sigma"]
        assert privacy["epsilon"] == pytest.approx(
            closed_form(sigma / (2 * 3.0), 2, 1e-5), rel=1e-6
        )
        assert privacy["accounted_epsilon"] == privacy["epsilon"]
        assert "the nominal epsilon 10 is the paper's" in cluster.log(party)


@pytest.mark.parametrize("transport", ["directory", pytest.param("nats", marks=pytest.mark.faults)])
def test_under_masks_nobody_trusts_the_aggregator_and_kills_change_nothing(
    tmp_path: Path, zygote: Zygote, transport: str
) -> None:
    victims = [
        Victim("party_1", ["outbox.after_charge:3", "party.before_sums:2"]),
        Victim(AGGREGATOR, ["aggregator.received:12"]),
    ]
    with contextlib.ExitStack() as stack:
        server = (
            stack.enter_context(NatsServer(tmp_path / "nats", PARTIES))
            if transport == "nats"
            else None
        )
        cluster = stack.enter_context(Cluster(tmp_path, server, rounds=4, zygote=zygote))
        cluster.change(AGGREGATOR, "privacy", mechanism="nbafl", secure_aggregation=True)
        cluster.change(AGGREGATOR, "nbafl", **SETTINGS, noise_at_upload=False)
        for party in PARTIES:
            cluster.change(
                party, "federation", parties=cluster.configs[AGGREGATOR]["federation"]["parties"]
            )
            cluster.change(party, "party", caps={"epsilon": 1e9, "secure_aggregation": "required"})
        survive(cluster, victims, 100)
    assert [victim.unused for victim in victims] == [[], []]
    for party in PARTIES:
        own = ledger_rows(tmp_path / party / "ledger.sqlite")
        assert [row.round for row in own] == [1, 2, 3, 4]
        assert [row.round for row in own if row.kind == "update"] == ROUNDS[party]
        privacy = json.loads((tmp_path / party / "out" / "indicator.json").read_text())["privacy"]
        assert privacy["epsilon"] == pytest.approx(
            closed_form(privacy["download_sigma"] / (2 * 3.0), 2, 1e-5), rel=1e-6
        )
        assert privacy["observers"]["aggregator"] == privacy["observers"]["model_reader"]
    found = json.loads((tmp_path / AGGREGATOR / "out" / "indicator.json").read_text())
    assert found["rounds_counted"] == 4
