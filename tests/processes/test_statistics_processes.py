"""Statistics between processes: each party pays for what it answers; killed processes go on with
the same answers.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.sessions.crash_state import read_state
from tests.processes.parts import PARTIES, Cluster, ledger_rows
from tests.processes.surviving import Victim, survive
from tests.processes.zygote import Zygote


def asking(folder: Path, zygote: Zygote, *, masked: bool) -> Cluster:
    cluster = Cluster(folder, zygote=zygote)
    cluster.change(
        AGGREGATOR, "privacy", mechanism="statistics", target_epsilon=2.0, secure_aggregation=masked
    )
    cluster.change(AGGREGATOR, "statistics", ask=["rows", "means", "second_moments"])
    if masked:
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
            cluster.change(
                party, "federation", parties=cluster.configs[AGGREGATOR]["federation"]["parties"]
            )
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


def test_a_run_stops_early_and_publishes_its_best_round(tmp_path: Path, zygote: Zygote) -> None:
    """By released figures, over a kill of the aggregator; what was not asked any more is not
    paid for.
    """
    victims = [Victim(AGGREGATOR, ["aggregator.after_save", "aggregator.before_finished"])]
    with Cluster(tmp_path, zygote=zygote, rounds=6) as cluster:
        cluster.change(AGGREGATOR, "privacy", target_epsilon=8.0)
        cluster.change(AGGREGATOR, "metrics", release="noised", every=1, per_party=True)
        # nothing gets better by 10: the first release stays the best
        stopping = {"patience": 1, "min_delta": 10.0}
        train = {
            "rounds": 6,
            "local_steps": 2,
            "batch_size": 50,
            "keep": "best",
            "early_stopping": stopping,
        }
        cluster.change(AGGREGATOR, "train", **train)
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
        survive(cluster, victims, 100)
    assert [victim.unused for victim in victims] == [[]]
    indicators = json.loads((tmp_path / AGGREGATOR / "out" / "indicator.json").read_text())
    assert indicators["stopped_early"] == {
        "rounds_of_training": 2,
        "planned": 6,
        "by": "released_acc",
    }
    assert (indicators["best_round"]["round"], indicators["best_round"]["kept"]) == (2, True)
    assert set(indicators["released_parties"]) == set(PARTIES)
    final = load_file(tmp_path / AGGREGATOR / "out" / "model.safetensors")
    for party in PARTIES:
        rows = ledger_rows(tmp_path / party / "ledger.sqlite")
        assert [row.kind for row in rows] == ["update", "metrics"] * 2
        own = json.loads((tmp_path / party / "out" / "indicator.json").read_text())
        assert own["privacy"]["epsilon"] == pytest.approx(rows[-1].epsilon, rel=1e-3)
        # the target of 8 was for six rounds
        assert rows[-1].epsilon <= indicators["privacy"]["epsilon"] < 6
        kept = load_file(tmp_path / party / "out" / "model.safetensors")
        assert all(torch.equal(final[name], kept[name]) for name in final)
    last, _ = read_state(tmp_path / "state-aggregator" / "run-1" / "state.safetensors") or ({}, {})
    assert all(torch.equal(last[f"best.{name}"], tensor) for name, tensor in final.items())
    assert not all(torch.equal(last[f"weights.{name}"], tensor) for name, tensor in final.items())
