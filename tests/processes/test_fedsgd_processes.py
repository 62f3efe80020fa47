"""DP-FedSGD between processes: every party pays for its own gradients; shares of noise never
leave without masks.
"""

import contextlib
import json
from pathlib import Path

import pytest

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.events import compose, from_json
from tests.processes.parts import PARTIES, Cluster, ledger_rows
from tests.processes.surviving import Victim, survive
from tests.processes.test_masks_killed import with_a_dropout
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer


def test_parties_send_gradients_and_pay_for_each(tmp_path: Path, zygote: Zygote) -> None:
    with Cluster(tmp_path, zygote=zygote) as cluster:
        cluster.change(AGGREGATOR, "privacy", mechanism="dp_fedsgd")
        cluster.change(AGGREGATOR, "train", local_steps=1)
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    for party in PARTIES:
        assert [row.round for row in ledger_rows(tmp_path / party / "ledger.sqlite")] == [1, 2, 3]


def test_a_second_moment_is_asked_first_and_its_coordinates_come_with_the_weights(
    tmp_path: Path, zygote: Zygote
) -> None:
    with Cluster(tmp_path, zygote=zygote) as cluster:
        cluster.change(AGGREGATOR, "privacy", mechanism="dp_fedsgd", max_grad_norm=0.8)
        cluster.change(AGGREGATOR, "train", local_steps=1, solver="second_moment", row_norm=3.5)
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    for party in PARTIES:
        kinds = [row.kind for row in ledger_rows(tmp_path / party / "ledger.sqlite")]
        assert kinds == ["second_moment", "update", "update", "update"]


@pytest.mark.parametrize("transport", ["directory", "nats"])
def test_public_axes_come_with_the_weights_and_cost_nothing(
    tmp_path: Path, zygote: Zygote, transport: str
) -> None:
    with contextlib.ExitStack() as stack:
        server = (
            stack.enter_context(NatsServer(tmp_path / "nats", PARTIES))
            if transport == "nats"
            else None
        )
        cluster = stack.enter_context(Cluster(tmp_path, server, zygote=zygote))
        cluster.change(
            AGGREGATOR, "privacy", mechanism="dp_fedsgd", target_epsilon=0.5, max_grad_norm=0.8
        )
        solver = {"solver": "gradient", "row_norm": 3.5, "sample_rate": 1.0, "batch_size": None}
        cluster.change(AGGREGATOR, "train", local_steps=1, **solver)
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    for party in PARTIES:
        rows = ledger_rows(tmp_path / party / "ledger.sqlite")
        assert [row.kind for row in rows] == ["update"] * 3
        spent = epsilon(compose(*(from_json(row.event) for row in rows)), 1e-5).pld
        assert spent is not None
        assert 0.495 < spent <= 0.5


def test_scales_of_columns_are_asked_before_the_moment(tmp_path: Path, zygote: Zygote) -> None:
    with Cluster(tmp_path, zygote=zygote) as cluster:
        cluster.change(
            AGGREGATOR, "privacy", mechanism="dp_fedsgd", target_epsilon=2.0, max_grad_norm=0.8
        )
        moment = {
            "solver": "second_moment",
            "row_norm": 3.5,
            "column_share": 0.1,
            "moment_share": 0.2,
            "column_passes": 3,
        }
        cluster.change(
            AGGREGATOR, "train", local_steps=1, sample_rate=1.0, batch_size=None, **moment
        )
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    for party in PARTIES:
        rows = ledger_rows(tmp_path / party / "ledger.sqlite")
        assert [row.kind for row in rows] == ["columns"] * 3 + ["second_moment"] + ["update"] * 3
        spent = epsilon(compose(*(from_json(row.event) for row in rows)), 1e-5).pld
        assert spent is not None
        assert 1.99 < spent <= 2.0


@pytest.mark.parametrize("transport", ["directory", "nats"])
def test_without_privacy_the_moment_and_gradients_leave_as_they_are(
    tmp_path: Path, zygote: Zygote, transport: str
) -> None:
    with contextlib.ExitStack() as stack:
        server = (
            stack.enter_context(NatsServer(tmp_path / "nats", PARTIES))
            if transport == "nats"
            else None
        )
        cluster = stack.enter_context(Cluster(tmp_path, server, zygote=zygote))
        cluster.change(AGGREGATOR, "privacy", mechanism="none")
        cluster.configs[AGGREGATOR]["train"] = {}  # all by rule
        for party in PARTIES:
            cluster.change(party, "privacy", mechanism="none")
            cluster.change(party, "data", rows={party: 150})
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    rounds = json.loads((tmp_path / AGGREGATOR / "out" / "indicator.json").read_text())["rounds"]
    assert [row.get("asked") for row in rounds] == ["second_moment"] + [None] * 100
    for party in PARTIES:
        found = json.loads((tmp_path / party / "out" / "indicator.json").read_text())
        assert found["privacy"]["private"] is False
        assert "NOT PRIVATE" in found["privacy"]["statement"]
        assert "second moment of its rows, once, without noise" in found["privacy"]["releases"]


def secure(folder: Path, zygote: Zygote, nats: NatsServer | None = None) -> Cluster:
    """A federation whose parties share the noise under masks, and list each other's keys."""
    cluster = Cluster(folder, nats, 2, zygote)
    cluster.change(AGGREGATOR, "privacy", mechanism="dp_fedsgd", secure_aggregation=True)
    cluster.change(AGGREGATOR, "train", local_steps=1)
    for party in PARTIES:
        cluster.change(party, "data", rows={party: 150})
        cluster.change(
            party, "federation", parties=cluster.configs[AGGREGATOR]["federation"]["parties"]
        )
    return cluster


def check_complete(folder: Path) -> None:
    """Every party has paid once for each round, and every round counted."""
    for party in PARTIES:
        rows = ledger_rows(folder / party / "ledger.sqlite")
        assert [row.round for row in rows] == [1, 2]
        assert all("shared by 3 parties" in row.noise for row in rows)
    indicators = json.loads((folder / AGGREGATOR / "out" / "indicator.json").read_text())
    assert indicators["rounds_counted"] == 2


def test_parties_share_noise_under_masks_over_nats(tmp_path: Path, zygote: Zygote) -> None:
    with (
        NatsServer(tmp_path / "nats", PARTIES) as server,
        secure(tmp_path, zygote, server) as cluster,
    ):
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    check_complete(tmp_path)


def test_killed_in_the_middle_of_masks_the_run_goes_on_with_the_same_bytes(
    tmp_path: Path, zygote: Zygote
) -> None:
    victims = [
        Victim(
            "party_1",
            [
                "sums.before_rename:2",
                "party.before_sums:2",
                "party.after_sums:3",
                "outbox.after_charge",
            ],
        ),
        Victim(AGGREGATOR, ["aggregator.received:5", "sums.after_rename", "aggregator.received:9"]),
    ]
    with secure(tmp_path, zygote) as cluster:
        survive(cluster, victims, 100)
    assert [victim.unused for victim in victims] == [[], []]
    check_complete(tmp_path)


@pytest.mark.faults
def test_masks_over_nats_with_kills(tmp_path: Path, zygote: Zygote) -> None:
    """A queue that leaves out what it has seen: what is asked again was answered before, and
    that answer was kept.
    """
    victims = [
        Victim("party_1", ["party.after_sums:2", "party.before_sums:3"]),
        Victim(
            AGGREGATOR, ["aggregator.received:5", "aggregator.received:9", "aggregator.before_save"]
        ),
    ]
    with (
        NatsServer(tmp_path / "nats", PARTIES) as server,
        secure(tmp_path, zygote, server) as cluster,
    ):
        survive(cluster, victims, 100)
    assert [victim.unused for victim in victims] == [[], []]
    check_complete(tmp_path)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("gone", ["never starts", "bent join"])
def test_a_run_begins_without_a_party_whose_rows_nobody_declared(
    tmp_path: Path, zygote: Zygote, gone: str, masked: bool
) -> None:
    """The aggregator ended with an error after `round_timeout`, though one may be missing."""
    with with_a_dropout(tmp_path, zygote, None, rounds=2) as cluster:
        cluster.change(AGGREGATOR, "federation", round_timeout=8, min_parties=2)
        if not masked:
            for name in (AGGREGATOR, *PARTIES):
                kept = cluster.configs[name]["privacy"].items()
                own = {key: value for key, value in kept if key in ("mechanism", "ledger")}
                cluster.configs[name] = {**cluster.configs[name], "privacy": own}
        if gone == "bent join":
            cluster.shims["party_3"] = {"bent_on_the_wire": [["join"]]}
            cluster.change("party_3", "party", patience=60)
        for name in (AGGREGATOR, *PARTIES):
            if name != "party_3" or gone == "bent join":
                cluster.start(name)
        for name in (AGGREGATOR, "party_1", "party_2"):
            assert cluster.processes[name].wait(90) == 0, cluster.log(name)
        assert "begins and goes on without party_3" in cluster.log(AGGREGATOR)
        # who comes late pays for nothing
        cluster.shims.clear()
        cluster.stop()
        cluster.change("party_3", "party", patience=10)
        assert cluster.start("party_3").wait(60) != 0
    indicators = json.loads((tmp_path / AGGREGATOR / "out" / "indicator.json").read_text())
    assert indicators["rounds_counted"] == 2
    assert set(indicators["privacy"]["parties"]) == {"party_1", "party_2"}
    for name in PARTIES[:2]:
        rows = ledger_rows(tmp_path / name / "ledger.sqlite")
        assert [row.round for row in rows if row.kind == "update"] == [1, 2]
    late = tmp_path / "party_3" / "ledger.sqlite"
    assert not late.exists() or ledger_rows(late) == []


@pytest.mark.parametrize("parties", [{}, {"party_1": None}])
def test_a_party_that_does_not_know_its_peers_refuses(
    tmp_path: Path, zygote: Zygote, parties: dict[str, str | None]
) -> None:
    with secure(tmp_path, zygote) as cluster:
        cluster.change("party_1", "federation", parties=parties)
        cluster.change(AGGREGATOR, "federation", round_timeout=20)
        cluster.start_all()
        assert cluster.processes["party_1"].wait(60) != 0
        assert cluster.processes[AGGREGATOR].wait(60) != 0
        assert "federation.parties" in cluster.log("party_1")
        assert "party_1" in cluster.log(AGGREGATOR)
