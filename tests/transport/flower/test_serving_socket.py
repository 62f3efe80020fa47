"""A party that serves: one socket for all runs, a process for each, started for its askers
alone.
"""

import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from homo_dp.core.errors import ConfigError
from homo_dp.federation.protocol.messages import AGGREGATOR
from homo_dp.transport.flower import serving_socket
from homo_dp.transport.flower.envelopes import Answer, SealedQuestion
from homo_dp.transport.flower.node import NodeTransport
from homo_dp.transport.flower.relay import PartyPlace, carry
from homo_dp.transport.flower.unix_sockets import connect
from tests.transport.parts import join, sealer


def test_a_party_that_serves_is_started_for_its_askers_only_and_no_more_runs_than_it_serves(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bank_a.yaml"
    askers = [
        {"aggregator_key": "one.pub", "runs": "loans-*"},
        {"aggregator_key": "other.pub", "runs": "cards-*"},
    ]
    party = {
        "name": "bank_a",
        "state_dir": str(tmp_path / "state"),
        "serve": {"askers": askers, "approve": "ask"},
    }
    path.write_text(yaml.safe_dump({"party": party}))
    place = PartyPlace.of(str(path), "cards-7")
    assert yaml.safe_load(place.layer or b"")["party"] == {"aggregator_key": "other.pub"}
    with pytest.raises(ConfigError, match=r"none of them may start run made-up"):
        PartyPlace.of(str(path), "made-up")
    assert not (tmp_path / "state").exists()  # a name that somebody made up leaves nothing
    busy = tmp_path / "state" / "loans-1" / "party.pid"
    busy.parent.mkdir(parents=True)
    runs = [sys.executable, "-c", "print(flush=True); input()", "homo_dp.party"]
    with subprocess.Popen(runs, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"  # it is there
        busy.write_text(str(process.pid))
        assert carry(SealedQuestion("cards-7"), place) == Answer("other_run")
        process.communicate(b"\n")
    assert not (tmp_path / "state" / "cards-7").exists()
    ends = replace(place, command=(sys.executable, "-c", "raise SystemExit(2)"))
    assert carry(SealedQuestion("cards-7", (), "7"), ends) == Answer("ended")
    assert (tmp_path / "state" / "cards-7" / "served.yaml").read_bytes() == place.layer
    assert stat.S_IMODE((tmp_path / "state" / "cards-7").stat().st_mode) == 0o700


def test_one_door_leads_to_the_process_of_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the first is there as soon as it was asked for thrice
    monkeypatch.setattr(serving_socket, "_STARTS_WITHIN", 60.0)
    words, asked, started = (
        {"loans": "starting", "old": "over", "cards": "other_run"},
        list[str](),
        list[NodeTransport](),
    )

    def without_process(run: str) -> str:
        asked.append(run)
        if run == "loans" and asked.count("loans") == 3:  # as a server starts it
            started.append(NodeTransport(tmp_path / "loans.sock", "loans", sealer("bank_a")))
            started[0].send(replace(join(), run="loans"))
        return words.get(run, "failed")

    made = serving_socket.ServingSocket(
        tmp_path / "door.sock", None, 1 << 20, lambda run: tmp_path / f"{run}.sock", without_process
    )
    place = PartyPlace(tmp_path / "door.sock")
    try:
        assert stat.S_IMODE((tmp_path / "door.sock").stat().st_mode) == 0o600
        first = carry(SealedQuestion("loans"), place)
        assert (first.state, len(first.sealed)) == ("running", 1)
        assert sealer(AGGREGATOR).open_bytes(first.sealed[0]).run == "loans"
        assert [carry(SealedQuestion(run), place).state for run in ("old", "cards", "made-up")] == [
            *("over", "other_run", "failed")
        ]
        started[0].close()
        monkeypatch.setattr(serving_socket, "_STARTS_WITHIN", 0.2)
        assert carry(SealedQuestion("loans"), place).state == "starting"
        with connect(tmp_path / "door.sock", 5) as connection:
            connection.sendall(b"\xff\xff\xff\xff")
            assert connection.recv(10) == b""
    finally:
        made.close()
    assert not (tmp_path / "door.sock").exists()
    assert carry(SealedQuestion("loans"), place) == Answer("failed")
