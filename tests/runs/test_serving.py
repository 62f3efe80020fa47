"""A party that serves: a run that calls is started, waits for its operator, and is shown by
`homo-dp status`.
"""

import fcntl
import json
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
import yaml

from homo_dp import status
from homo_dp.commands.party import main as party_command
from homo_dp.config.load import load_config
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError, TransportError
from homo_dp.core.event_log import kept_events, told_errors
from homo_dp.core.files import is_locked
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.privacy.errors import BudgetExceeded, LedgerError, PrivacyError
from homo_dp.runs.run_status import status as status_of
from homo_dp.runs.serving import PartyServer
from homo_dp.transport.flower.envelopes import SealedQuestion
from homo_dp.transport.flower.relay import PartyPlace, carry
from homo_dp.transport.keys import new_key_pair, write_key_pair
from tests.processes.parts import BOUNDED, PARTIES, RUN, Cluster, ledger_rows, served
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer, aggregator_permissions, party_permissions


def until(condition: Callable[[], bool], cluster: Cluster, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, {
            name: cluster.log(name)[-1500:] for name in cluster.processes
        }
        time.sleep(0.05)


def test_a_run_that_calls_waits_for_the_operator_and_then_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(tmp_path, rounds=2) as cluster:
        cluster.change("party_1", "party", serve={"approve": "ask", "mechanisms": ["dp_sgd"]})
        cluster.configs["party_1"].pop("federation")
        (cluster.exchange / "made-up" / "party_1").mkdir(parents=True)  # a folder is no call
        serving = cluster.start("party_1", arguments=["--serve", "--log-format", "json"])
        for name in (AGGREGATOR, "party_2", "party_3"):
            cluster.start(name)
        state = tmp_path / "party_1" / "state"
        until(lambda: (state / RUN / "asked.json").exists(), cluster)
        assert not (tmp_path / "party_1" / "ledger.sqlite").exists() or not ledger_rows(
            tmp_path / "party_1" / "ledger.sqlite"
        )
        config = ["--config", str(tmp_path / "party_1.yaml")]
        assert status.main([*config, "--json"]) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        assert (run["run"], run["state"]) == (RUN, "waits for approval")
        assert run["waits_for_approval"]["given_away"]["rounds"] == 2
        assert party_command(["approve", RUN, *config]) == 0
        assert "epsilon" in capsys.readouterr().out
        codes = {
            name: process.wait(120)
            for name, process in cluster.processes.items()
            if name != "party_1"
        }
        assert codes == {AGGREGATOR: 0, "party_2": 0, "party_3": 0}
        out = tmp_path / "party_1" / "out" / RUN / "indicator.json"  # a folder a run
        own = load_config(tmp_path / "party_1.yaml")
        until(lambda: out.exists() and status_of(own)["runs"][0]["state"] == "over", cluster)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 130
        assert [row.round for row in ledger_rows(tmp_path / "party_1" / "ledger.sqlite")] == [1, 2]
        assert not (state / "made-up").exists()
        check_views(tmp_path, cluster)


def test_a_killed_run_and_a_killed_server_go_on_where_they_were(tmp_path: Path) -> None:
    with Cluster(tmp_path, rounds=3) as cluster:
        key = cluster.configs["party_1"]["party"].pop("aggregator_key")
        rules = {"approve": "always", "askers": [{"aggregator_key": key, "runs": ["run-*"]}]}
        cluster.change("party_1", "party", serve=rules)
        cluster.bound_lifetime("party_1")
        cluster.configs["party_1"].pop("federation")
        # Each process of the run kills itself when it has sent its second update.
        serving = cluster.start(
            "party_1", crash_at="party.after_send:2", arguments=["--serve", "--log-format", "json"]
        )
        for name in (AGGREGATOR, "party_2", "party_3"):
            cluster.start(name)
        until(lambda: "it is started again" in cluster.log("party_1"), cluster)
        until(lambda: cluster.log("party_1").count("started as process") == 2, cluster)
        # the second process may stay, and nobody may start a third beside it
        serving.send_signal(signal.SIGKILL)
        serving.wait(30)
        serving = cluster.start("party_1", arguments=["--serve", "--log-format", "json"])
        codes = {
            name: process.wait(120)
            for name, process in cluster.processes.items()
            if name != "party_1"
        }
        assert codes == {AGGREGATOR: 0, "party_2": 0, "party_3": 0}, cluster.log("party_1")
        folder = tmp_path / "party_1" / "state" / RUN
        until(lambda: not (folder / "served.yaml").exists(), cluster)
        assert (tmp_path / "party_1" / "out" / RUN / "indicator.json").exists()
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 130
        assert [row.round for row in ledger_rows(tmp_path / "party_1" / "ledger.sqlite")] == [
            1,
            2,
            3,
        ]
        assert "another process runs from it" not in cluster.log("party_1")
        lines = [json.loads(line) for line in cluster.log("party_1").splitlines()]
        assert {line["run"] for line in lines if "process" in line["event"]} == {RUN}
        (run,) = status_of(load_config(tmp_path / "party_1.yaml"))["runs"]
        assert list(run["replied"]) == ["party_1"]


def test_a_run_on_a_real_nats_server_is_noticed_and_served(tmp_path: Path, zygote: Zygote) -> None:
    # and what docs/transports.md adds for a party that serves
    allowed = party_permissions("homo_dp", "party_1")
    allowed["publish"]["allow"] += [
        "$JS.API.STREAM.NAMES",
        "$JS.API.DIRECT.GET.*.homo_dp.*.to.party_1.>",
    ]
    rights = {name: party_permissions("homo_dp", name) for name in PARTIES} | {"party_1": allowed}
    rights[AGGREGATOR] = aggregator_permissions("homo_dp")
    users = [
        {"user": name, "password": f"pw-{name}", "permissions": each}
        for name, each in rights.items()
    ]
    with (
        NatsServer(
            tmp_path / "nats", PARTIES, settings={"authorization": {"users": users}}
        ) as server,
        Cluster(tmp_path, server, rounds=1, zygote=zygote) as cluster,
    ):
        cluster.change("party_1", "party", serve={"approve": "always"})
        cluster.bound_lifetime("party_1")
        cluster.configs["party_1"].pop("federation")
        serving = cluster.start("party_1", arguments=["--serve"])
        for name in (AGGREGATOR, "party_2", "party_3"):
            cluster.start(name)
        codes = {
            name: process.wait(120)
            for name, process in cluster.processes.items()
            if name != "party_1"
        }
        assert codes == {AGGREGATOR: 0, "party_2": 0, "party_3": 0}, cluster.log("party_1")
        out = tmp_path / "party_1" / "out" / RUN / "indicator.json"
        until(lambda: out.exists() and f"run {RUN}: is over" in cluster.log("party_1"), cluster)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 130
        assert [row.round for row in ledger_rows(tmp_path / "party_1" / "ledger.sqlite")] == [1]


def check_views(tmp_path: Path, cluster: Cluster) -> None:
    """What status shows of the aggregator, as a page and over HTTP; and that every line of the
    log is an event.
    """
    found = status_of(load_config(tmp_path / "aggregator.yaml"))
    (run,) = found["runs"]
    assert (run["state"], run["round"], run["rounds"]) == ("over", 2, 2)
    assert set(run["replied"]) == {"party_1", "party_2", "party_3"}
    page = tmp_path / "status.html"
    assert (
        status.main(["--config", str(tmp_path / "party_1.yaml"), "--page", str(page), "--quiet"])
        == 0
    )
    assert RUN in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "epsilon_left" in page.read_text()
    lines = [json.loads(line) for line in cluster.log("party_1").splitlines()]
    assert {"time", "level", "run", "round", "party", "event"} == set(lines[0])
    assert any(
        line["run"] == RUN and line["round"] == 2 and line["party"] == "party_1" for line in lines
    )


def test_the_server_shows_and_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"federation: {{state_dir: {tmp_path / 'state'}}}\n")
    with status.server(load_config(path), 0) as serving:
        thread = Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        host, port = serving.server_address[:2]
        assert host == "127.0.0.1"
        address, other_user = serving.address(), f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(serving.address("/status.json"), timeout=10) as reply:
            assert json.loads(reply.read())["side"] == "aggregator"
        with urllib.request.urlopen(address, timeout=10) as reply:
            assert b"No runs yet" in reply.read()
        elsewhere = urllib.request.Request(address, headers={"Host": "evil.example"})
        wrong: list[tuple[str | urllib.request.Request, int]] = [
            *(
                (elsewhere, 403),
                (serving.address("/x"), 404),
                (urllib.request.Request(address, b"x"), 501),
            ),
            *(
                (other_user, 403),
                (f"{other_user}/status.json", 403),
                (f"{other_user}/status.json?word=%ff", 403),
            ),
        ]
        for request, code in wrong:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=10)
            assert refused.value.code == code
            refused.value.close()
        serving.shutdown()
        thread.join(10)


def test_only_the_file_that_is_locked_is_called_so(tmp_path: Path) -> None:
    names = [tmp_path / str(number) for number in range(20)]
    for path in names:
        path.touch()
    with names[0].open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [is_locked(path) for path in names] == [True] + [False] * 19
    assert not is_locked(names[0])


def test_what_a_run_left_is_taken_again_and_what_failed_rests(tmp_path: Path) -> None:
    write_key_pair(new_key_pair("party_1"), tmp_path)
    settings = {
        **served(
            approve="always",
            askers=[{"aggregator_key": new_key_pair(AGGREGATOR).public.line, "runs": ["a-*"]}],
        ),
        "party.key_file": str(tmp_path / "party_1.key"),
        "party.state_dir": str(tmp_path / "state"),
        "transport.kind": "directory",
        "transport.directory": str(tmp_path / "exchange"),
    }
    server = PartyServer(load_config(None, settings), [], Screen(quiet=True))
    for run in ("a-1", "a-2", "b-1"):  # of b-1 no asker may speak any more
        (tmp_path / "state" / run).mkdir(parents=True)
        (tmp_path / "state" / run / "served.yaml").touch()
    (tmp_path / "state" / "a-2" / "lock").touch()
    try:
        # its process outlived the server before
        with (tmp_path / "state" / "a-2" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            server.turn()
            assert list(server._running) == []
        server.turn()
        assert list(server._running) == ["a-1"]
        assert server._running["a-1"].wait(60) == 2  # it has no config to start from
        server.turn()
        assert list(server._running) == ["a-2"]
        assert not (tmp_path / "state" / "a-1" / "served.yaml").exists()
        assert server._is_known("a-1")
        server._rests.clear()
        assert not server._is_known("a-1")  # and is taken when it calls
    finally:
        server._stop()


def test_a_run_that_failed_after_a_while_is_taken_again_within_seconds_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that was away cost a party ten minutes, while the others paid for rounds."""
    server, said = on_flower(tmp_path), list[str]()
    monkeypatch.setattr(server, "_say", lambda run, text: said.append(text))

    def fail() -> str:
        server._starts["a-1"], server._began["a-1"] = 1, time.monotonic()
        server._ended("a-1", 2)
        return said[-1].split("after ")[1]

    waits = [fail() for _ in range(3)]
    assert waits == ["5 s, if it calls", "10 s, if it calls", "20 s, if it calls"]
    monkeypatch.setattr("homo_dp.runs.serving._LASTED", 0.0)  # each has lasted for long enough
    assert [fail() for _ in range(3)] == ["5 s, if it calls"] * 3


def test_a_run_that_fails_at_once_for_want_of_its_transport_is_taken_again_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that was mounted read-only for some minutes cost a party ten more."""
    server, said = on_flower(tmp_path), list[str]()
    monkeypatch.setattr(server, "_say", lambda run, text: said.append(text))
    for run, error in (("a-1", TransportError("read-only")), ("a-2", ConfigError("no table"))):
        folder = tmp_path / "state" / run
        folder.mkdir(parents=True)
        refused = pytest.raises(ValueError, match=r"read-only|no table")
        with refused, kept_events(folder), told_errors(BudgetExceeded):
            raise error
        for _ in range(8):
            server._starts[run], server._began[run] = 1, time.monotonic()
            server._ended(run, 2)
    assert [text.split("after ")[1].split(" s")[0] for text in said[7::8]] == ["30", "600"]


def test_a_run_whose_ledger_could_not_be_written_is_taken_again_and_one_refused_is_not(
    tmp_path: Path,
) -> None:
    """A disk that was full for a moment ended the run for as long as the server lived."""
    server = on_flower(tmp_path)
    for run, error in (("a-1", LedgerError("full")), ("a-2", BudgetExceeded("spent"))):
        folder = tmp_path / "state" / run
        folder.mkdir(parents=True)
        with pytest.raises(PrivacyError), kept_events(folder), told_errors(BudgetExceeded):
            raise error
        server._starts[run] = 1
        server._ended(run, 3)
    assert server._settled == {"a-2"}
    server._rests.clear()
    assert not server._is_known("a-1")


def on_flower(folder: Path) -> PartyServer:
    write_key_pair(new_key_pair("party_1"), folder)
    settings = {
        **served(
            approve="always",
            askers=[{"aggregator_key": new_key_pair(AGGREGATOR).public.line, "runs": ["a-*"]}],
        ),
        "party.key_file": str(folder / "party_1.key"),
        "party.state_dir": str(folder / "state"),
        "transport.kind": "flower",
        "transport.flower": {"socket": str(folder / "party.sock")},
    }
    return PartyServer(load_config(None, settings), [], Screen(quiet=True))


def test_a_call_that_came_while_its_run_ended_starts_it_no_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting ClientApp asks ten times a second: between two lines of a turn, too."""
    server, told = on_flower(tmp_path), list[str]()
    ended = server._ended

    def asked(run: str, code: int) -> None:
        told.append(server._word(run))
        ended(run, code)
        told.append(server._word(run))

    monkeypatch.setattr(server, "_ended", asked)
    (tmp_path / "state" / "a-1").mkdir(parents=True)
    try:
        server._running["a-1"] = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
        server._starts["a-1"], server._called = 1, {"a-1": None}
        server._running["a-1"].wait(60)
        server.turn()
        assert (told, server._running, server._word("a-1")) == (
            ["starting", "starting"],
            {},
            "ended",
        )
        server._rests.clear()
        assert server._word("a-1") == "starting"
        server.turn()
        assert list(server._running) == ["a-1"]  # taken again when it calls after its rest
    finally:
        server._stop()


def test_on_flower_a_clientapp_calls_runs_that_an_asker_may_use(tmp_path: Path) -> None:
    server = on_flower(tmp_path)
    place = PartyPlace(tmp_path / "party.sock")
    try:
        with server._door():
            assert carry(SealedQuestion("made-up"), place).state == "failed"
            assert not server._called
            asking = Thread(target=carry, args=(SealedQuestion("a-1"), place), daemon=True)
            asking.start()
            while not server._called:
                time.sleep(0.01)
            server.turn()
            assert list(server._running) == ["a-1"]
            layer = yaml.safe_load((tmp_path / "state" / "a-1" / "served.yaml").read_text())
            assert layer["transport"]["flower"]["socket"] is None  # its own, in its folder
            assert carry(SealedQuestion("a-2"), place).state == "other_run"  # one at once
            assert server._running["a-1"].wait(60) == 2  # it has no config to start from
            server.turn()
            assert carry(SealedQuestion("a-1"), place).state == "ended"
            asking.join(60)
            assert not asking.is_alive()
    finally:
        server._stop()


def test_serving_needs_rules_and_a_transport_that_shows_runs() -> None:
    with pytest.raises(ConfigError, match=r"party\.serve: is not given"):
        PartyServer(load_config(None, {"party.name": "party_1"}), [], Screen(quiet=True))
    with pytest.raises(ConfigError, match=r"transport\.kind=memory"):
        PartyServer(load_config(None, served(approve="ask")), [], Screen(quiet=True))
    with pytest.raises(ConfigError, match=r"transport\.flower\.socket: is not given"):
        PartyServer(
            load_config(None, {**served(approve="ask"), "transport.kind": "flower"}),
            [],
            Screen(quiet=True),
        )


@pytest.mark.parametrize("approve", ["always", "within_caps"])
def test_serving_without_a_lifetime_budget_is_refused(approve: str) -> None:
    """It answered any number of runs at the cap of one run each."""
    unbounded = served(approve=approve) | {
        "privacy.lifetime_epsilon": None,
        "party.caps.epsilon": 1.0,
        "transport.kind": "directory",
    }
    with pytest.raises(ConfigError, match=r"privacy\.lifetime_epsilon: is not given"):
        PartyServer(load_config(None, unbounded), [], Screen(quiet=True))
    with pytest.raises(ConfigError, match=r"party\.key_file"):  # what comes next
        PartyServer(load_config(None, unbounded | BOUNDED), [], Screen(quiet=True))
    with pytest.raises(ConfigError, match=r"party\.key_file"):
        PartyServer(
            load_config(None, unbounded | {"party.serve": {"approve": "ask"}}),
            [],
            Screen(quiet=True),
        )
