"""Statistics between processes: each party pays for what it answers; killed processes go on with the same answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from homo_dp.federation.protocol.ids import AGGREGATOR
from tests.processes.parts import PARTIES, Cluster, ledger_rows
from tests.processes.surviving import Victim, survive
from tests.processes.zygote import Zygote


def asking(folder: Path, zygote: Zygote, *, masked: bool) -> Cluster:
    cluster = Cluster(folder, zygote=zygote)
    cluster.change(AGGREGATOR, "privacy", mechanism="statistics", target_epsilon=2.0, secure_aggregation=masked)
    cluster.change(AGGREGATOR, "statistics", ask=["rows", "means", "second_moments"])
    if masked:
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
            cluster.change(party, "federation", parties=cluster.configs[AGGREGATOR]["federation"]["parties"])
    return cluster


def found(folder: Path) -> Any:
    return json.loads((folder / AGGREGATOR / "out" / "indicator_statistics.json").read_text())


@pytest.mark.parametrize("masked", [False, True])
def test_parties_answer_and_pay(tmp_path: Path, zygote: Zygote, masked: bool) -> None:
    with asking(tmp_path, zygote, masked=masked) as cluster:
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    for party in PARTIES:
        rows = ledger_rows(tmp_path / party / "ledger.sqlite")
        assert [row.kind for row in rows] == ["rows", "means", "second_moments"]
        assert rows[-1].epsilon <= 2.0
        indicators = json.loads((tmp_path / party / "out" / "indicator.json").read_text())
        assert indicators["privacy"]["epsilon"] == pytest.approx(rows[-1].epsilon, rel=1e-3)
    answers = found(tmp_path)["questions"]
    error = answers["rows"]["standard_errors"]["rows"]
    assert abs(answers["rows"]["values"]["rows"] - 455) < 6 * error
    assert ("parties" in answers["rows"]) is not masked


def test_killed_processes_go_on_and_pay_once(tmp_path: Path, zygote: Zygote) -> None:
    victims = [
        Victim("party_1", ["outbox.after_charge", "party.after_send"]),
        Victim(AGGREGATOR, ["aggregator.before_save", "aggregator.after_save"]),
    ]
    with asking(tmp_path, zygote, masked=False) as cluster:
        survive(cluster, victims, 100)
    assert [victim.unused for victim in victims] == [[], []]
    for party in PARTIES:
        assert [row.kind for row in ledger_rows(tmp_path / party / "ledger.sqlite")] == [
            "rows",
            "means",
            "second_moments",
        ]
    assert set(found(tmp_path)["questions"]) == {"rows", "means", "second_moments"}


def test_the_aggregator_sees_metrics_that_parties_release(tmp_path: Path, zygote: Zygote) -> None:
    with Cluster(tmp_path, zygote=zygote, rounds=2) as cluster:
        cluster.change(AGGREGATOR, "privacy", target_epsilon=8.0)
        cluster.change(AGGREGATOR, "metrics", release="noised", every=1)
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    indicators = json.loads((tmp_path / AGGREGATOR / "out" / "indicator.json").read_text())
    assert [row.get("asked") for row in indicators["rounds"]] == [None, "metrics", None, "metrics"]
    assert indicators["test_acc"] is None
    assert 0 <= indicators["released_metrics"]["acc"]["value"] <= 1
    assert indicators["released_metrics"]["acc"]["error"] > 0
    for party in PARTIES:
        rows = ledger_rows(tmp_path / party / "ledger.sqlite")
        assert [row.kind for row in rows] == ["update", "metrics", "update", "metrics"]
        own = json.loads((tmp_path / party / "out" / "indicator.json").read_text())
        assert own["privacy"]["epsilon"] == pytest.approx(rows[-1].epsilon, rel=1e-3)
