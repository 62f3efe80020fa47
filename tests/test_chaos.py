"""Federations of real processes under kills, freezes, SIGTERMs, failing shares, full disks, clutter
in their folders, bent messages and kills of the queue's server: ``make test-chaos``.

Each must end with the same model everywhere and with ledgers that hold every update that was used.
Seeds make the plan of blows repeatable; which line of code a blow meets is up to the clock, so that
every run tries other ones. ``CHAOS_RUNS`` says how many federations there are.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from homo_dp.privacy.ledger import Ledger
from tests.processes.chaos import Chaos
from tests.processes.parts import PARTIES, Cluster
from tests.processes.surviving import check_survivors
from tests.processes.test_masks_killed import check, with_a_dropout
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer

pytestmark = pytest.mark.chaos
RUNS = int(os.environ.get("CHAOS_RUNS", "100"))
ROUNDS, BLOWS = 40, 10
MANY = tuple(f"party_{number}" for number in range(1, 31))
MEETING = ("sum_keys", "sum_sealed", "sum_ready")
KINDS = [(masked, transport) for masked in (False, True) for transport in ("directory", "nats")]


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_federation_comes_through(
    tmp_path: Path,
    zygote: Zygote,
    record_property: Callable[[str, object], None],
    seed: int,
) -> None:
    masked, transport = KINDS[seed % len(KINDS)]
    chaos = Chaos(seed, BLOWS)
    with contextlib.ExitStack() as stack:
        server = (
            stack.enter_context(NatsServer(tmp_path / "nats", PARTIES))
            if transport == "nats"
            else None
        )
        cluster = stack.enter_context(
            with_a_dropout(tmp_path, zygote, server)
            if masked
            else Cluster(tmp_path, server, ROUNDS, zygote)
        )
        if masked:
            # party_2 bends its answers: once, so that it is asked again, or always
            times = 1 if seed // 4 % 2 else 1000
            kind = MEETING[seed // 8 % len(MEETING)]
            cluster.shims["party_2"] = {"bent_answers": [[kind, times]]}
            chaos.dealt["bent"] += 1
        chaos.survive(cluster)
        if masked:
            check(tmp_path)
        else:
            check_survivors(cluster)
    record_property("blows", dict(chaos.dealt))  # summed up at the end, see conftest.py


@pytest.mark.parametrize("transport", ["directory", "nats"])
def test_thirty_parties_come_through(tmp_path: Path, zygote: Zygote, transport: str) -> None:
    with contextlib.ExitStack() as stack:
        server = (
            stack.enter_context(NatsServer(tmp_path / "nats", MANY))
            if transport == "nats"
            else None
        )
        cluster = stack.enter_context(Cluster(tmp_path, server, 3, zygote, parties=MANY))
        Chaos(30 if server is None else 31, BLOWS).survive(cluster)
        check_survivors(cluster)


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
