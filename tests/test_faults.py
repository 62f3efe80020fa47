"""Kill -9 at many points of a run of ten rounds, on both transports; the run ends, and no spend
is hidden.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.models.files import load_model
from homo_dp.privacy.ledger import Ledger
from tests.processes.parts import PARTIES, Cluster
from tests.processes.surviving import Victim, check_survivors, random_times, survive
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer

pytestmark = pytest.mark.faults
ROUNDS = 10

AGGREGATOR_POINTS = [
    "aggregator.joined",
    "aggregator.joined:2",
    "aggregator.before_plan",
    "aggregator_state.before_write",
    "aggregator_state.before_rename",
    "aggregator.after_plan",
    "aggregator.before_broadcast",
    "aggregator.mid_broadcast",
    "aggregator.mid_broadcast:2",
    "aggregator.after_broadcast",
    "heads.before_rename",
    "aggregator.received",
    "aggregator.received:2",
    "aggregator.received:3",
    "aggregator.before_save",
    "aggregator_state.before_fsync",
    "aggregator_state.after_rename",
    "aggregator_state.after_sync",
    "aggregator.after_save",
    "aggregator.after_done",
    "aggregator.received:5",
    "aggregator.before_finished",
    "aggregator.mid_finished",
    "aggregator.after_finished",
    "aggregator.written",
]
PARTY_POINTS = [
    "party.joined",
    "party.received",
    "party.before_plan",
    "party_plan.before_rename",
    "party.after_plan",
    "party.before_handle",
    "party.before_fit_state",
    "fit_state.before_fsync",
    "fit_state.before_rename",
    "fit_state.after_sync",
    "outbox.before_write",
    "outbox.before_rename",
    "outbox.after_rename",
    "outbox.after_put",
    "ledger.before_commit",
    "ledger.after_commit",
    "ledger.charged",
    "outbox.after_charge",
    "party.after_handle",
    "party.after_send",
    "party.after_done",
    "party.received:4",
    "ledger.after_commit:2",
    "party.before_final",
    "party_final.before_rename",
    "party.after_final",
    "party.written",
]


@pytest.fixture(params=["directory", "nats"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path, zygote: Zygote) -> Iterator[Cluster]:
    if request.param == "directory":
        with Cluster(tmp_path, rounds=ROUNDS, zygote=zygote) as made:
            yield made
        return
    with (
        NatsServer(tmp_path / "nats", PARTIES) as server,
        Cluster(tmp_path, server, ROUNDS, zygote) as made,
    ):
        yield made


def test_an_aggregator_killed_at_every_step_publishes_the_model(cluster: Cluster) -> None:
    victim = Victim(AGGREGATOR, list(AGGREGATOR_POINTS))
    survive(cluster, [victim])
    assert victim.unused == []
    check_survivors(cluster)


def test_a_party_killed_at_every_step_stays_within_its_budget(cluster: Cluster) -> None:
    victim = Victim(PARTIES[0], list(PARTY_POINTS))
    survive(cluster, [victim])
    assert victim.unused == []
    check_survivors(cluster)


def test_everybody_killed_at_random_times(cluster: Cluster) -> None:
    names = (AGGREGATOR, *PARTIES)
    cluster.change(AGGREGATOR, "train", rounds=40)
    cluster.rounds = 40
    victims = [Victim(name, random_times(seed, 6, 0.8)) for seed, name in enumerate(names)]
    survive(cluster, victims)
    assert sum(len(victim.killed_at) for victim in victims) >= 8
    check_survivors(cluster)


def test_an_aggregator_that_adds_the_noise_charges_what_it_publishes_once(
    tmp_path: Path, zygote: Zygote
) -> None:
    points = [
        "aggregator.before_charge",
        "ledger.before_commit",
        "ledger.after_commit",
        "ledger.charged",
    ]
    points += [
        "aggregator.before_save:2",
        "aggregator_state.before_rename:2",
        "aggregator.before_charge:2",
    ]
    user: dict[str, Any] = {
        "mechanism": "dp_fedavg",
        "unit": "user",
        "population": 3,
        "delta": 0.1,
        "sampling": "everyone",
        "noise_at": "server",
        "trust_aggregator": True,
    }
    with Cluster(tmp_path, rounds=ROUNDS, zygote=zygote) as cluster:
        ledger = tmp_path / "ledger.sqlite"
        cluster.change(AGGREGATOR, "privacy", **user, noise_multiplier=6.0, ledger=str(ledger))
        for name in PARTIES:
            # delta is one for users, so the party's own config asks to hide them; epsilon: up to 4
            cluster.change(name, "privacy", **user)
        victim = Victim(AGGREGATOR, [*points])
        survive(cluster, [victim])
    assert victim.unused == []
    with Ledger(ledger, read_only=True) as kept:
        kept.verify()
        assert [row.round for row in kept.rows()] == list(range(1, ROUNDS + 1))
    final = {
        load_model(tmp_path / name / "out" / "model.safetensors").module
        for name in (AGGREGATOR, *PARTIES)
    }
    weights = [
        torch.cat([tensor.flatten() for tensor in module.state_dict().values()]) for module in final
    ]
    assert all(weight.equal(weights[0]) for weight in weights)
