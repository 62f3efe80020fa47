"""Masked sums that are killed at every named point of the protocol, with a dropout allowed, on
both transports.
"""

import contextlib
import json
from pathlib import Path
from urllib.parse import unquote

import pytest

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.privacy.ledger.rows import SIGNED
from tests.processes.parts import PARTIES, RUN, Cluster, ledger_rows
from tests.processes.surviving import Victim, survive
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer

ROUNDS = 10
# Keys, sealed secrets and ready, then for each round a signature and an opening: one answer each.
ANSWERS = [f"party.{when}_sums:{number}" for number in (1, 2, 3) for when in ("before", "after")]
KEPT = [
    f"sums.{when}" for when in ("before_write", "before_fsync", "before_rename", "after_rename")
]
PAID = [
    "party.before_handle",
    "outbox.after_put",
    "ledger.before_commit",
    "outbox.after_charge",
    "party.after_handle",
]
ASKED = [
    f"aggregator.{when}_broadcast:{number}"
    for number in (1, 2, 3)
    for when in ("before", "mid", "after")
]
HEARD = [f"aggregator.received:{number}" for number in (2, 4, 6, 8)]
CLOSED = ["aggregator.before_save", "aggregator.after_save", "aggregator.after_done"]


@pytest.mark.faults
@pytest.mark.parametrize("transport", ["directory", "nats"])
@pytest.mark.parametrize("killed", ["party", "aggregator"])
def test_every_step_may_be_the_last_of_a_process(
    killed: str, transport: str, tmp_path: Path, zygote: Zygote
) -> None:
    points: list[str | float] = (
        [*ANSWERS, *KEPT, *PAID] if killed == "party" else [*ASKED, *KEPT, *HEARD, *CLOSED]
    )
    victim = Victim("party_2" if killed == "party" else AGGREGATOR, points)
    with contextlib.ExitStack() as stack:
        server = (
            stack.enter_context(NatsServer(tmp_path / "nats", PARTIES))
            if transport == "nats"
            else None
        )
        cluster = stack.enter_context(with_a_dropout(tmp_path, zygote, server))
        survive(cluster, [victim], 240)
    assert victim.unused == []
    assert check(tmp_path)


def with_a_dropout(
    folder: Path, zygote: Zygote, nats: NatsServer | None, rounds: int = ROUNDS
) -> Cluster:
    """Three parties of whom one may be missing and none colludes: the smallest with every
    message of the protocol.
    """
    cluster = Cluster(folder, nats, rounds, zygote)
    masks = {
        "mechanism": "dp_fedsgd",
        "secure_aggregation": True,
        "tolerated_dropouts": 1,
        "tolerated_colluders": 0,
    }
    cluster.change(AGGREGATOR, "privacy", **masks)
    cluster.change(AGGREGATOR, "train", local_steps=1)
    for party in PARTIES:
        cluster.change(party, "privacy", **masks)
        cluster.change(party, "data", rows={party: 150})
        cluster.change(
            party, "federation", parties=cluster.configs[AGGREGATOR]["federation"]["parties"]
        )
    return cluster


def check(folder: Path) -> dict[str, set[str]]:
    """Every round is paid for once by everybody who is in it, and all who signed a round signed
    one set; the sets by round, none where nobody may be missing.
    """
    found = json.loads((folder / AGGREGATOR / "out" / "indicator.json").read_text())
    assert [row["round"] for row in found["rounds"]] == list(range(1, ROUNDS + 1))
    sets: dict[str, set[str]] = {}
    for party in PARTIES:
        rows = ledger_rows(folder / party / "ledger.sqlite")
        paid = [row.round for row in rows if row.kind == "update"]
        marked = [row.round for row in rows if row.kind == SIGNED]
        assert len(paid) == len(set(paid))
        assert len(marked) == len(set(marked))
        assert len(paid) + len(marked) == len(rows)
        assert {row["round"] for row in found["rounds"] if party in row["replied"]} <= set(paid)
        for path in (folder / party / "state" / RUN / "sums").iterdir():
            if (name := unquote(path.name)).startswith("agreed "):
                signed = bytes.fromhex(json.loads(path.read_bytes())["set"]["set"]).decode()
                sets.setdefault(name, set()).add(signed)
    assert all(len(signed) == 1 for signed in sets.values())
    assert found["rounds_counted"] == ROUNDS  # everybody came back, so no sum was lost either
    return sets
