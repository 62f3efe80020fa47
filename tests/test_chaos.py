"""Federations of real processes under kills, freezes, SIGTERMs and kills of the queue's server: ``make test-chaos``.

Each must end with the same model everywhere and with ledgers that hold every update that was used. Seeds make the plan
of blows repeatable; which line of code a blow meets is up to the clock, so that every run tries other ones.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from homo_dp.privacy.ledger import Ledger
from tests.processes.chaos import Chaos
from tests.processes.parts import PARTIES, Cluster
from tests.processes.surviving import check_survivors
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer

pytestmark = pytest.mark.chaos
ROUNDS, BLOWS = 75, 16  # on an idle machine 25 rounds were over after two blows


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("transport", ["directory", "nats"])
def test_a_federation_comes_through(
    tmp_path: Path,
    zygote: Zygote,
    record_property: Callable[[str, object], None],
    transport: str,
    seed: int,
) -> None:
    chaos = Chaos(seed if transport == "directory" else 100 + seed, BLOWS)
    if transport == "directory":
        with Cluster(tmp_path, None, ROUNDS, zygote) as cluster:
            chaos.survive(cluster)
            check_survivors(cluster)
    else:
        with (
            NatsServer(tmp_path / "nats", PARTIES) as server,
            Cluster(tmp_path, server, ROUNDS, zygote) as cluster,
        ):
            chaos.survive(cluster)
            check_survivors(cluster)
    assert sum(chaos.dealt.values()) >= BLOWS // 4
    record_property("blows", dict(chaos.dealt))  # summed up at the end, see conftest.py


def test_five_runs_at_once_share_one_queue_and_one_ledger_a_party(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", PARTIES) as server, Zygote() as zygote:
        clusters = [
            Cluster(tmp_path / f"run-{number}", server, 6, zygote, run=f"run-{number}")
            for number in range(1, 6)
        ]
        for cluster in clusters:
            for name in PARTIES:
                cluster.change(name, "privacy", ledger=str(tmp_path / f"{name}.sqlite"))
            cluster.start_all()
        try:
            codes = [cluster.wait(240) for cluster in clusters]
        finally:
            for cluster in clusters:
                cluster.stop()
    assert all(set(code.values()) == {0} for code in codes), codes
    for cluster in clusters:
        check_survivors(cluster)
    for name in PARTIES:
        with Ledger(tmp_path / f"{name}.sqlite", read_only=True) as ledger:
            assert (
                ledger.verify().count
                == sum(len(ledger.rows(cluster.run, name)) for cluster in clusters)
                == 30
            )
