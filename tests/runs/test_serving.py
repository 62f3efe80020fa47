"""A party that serves: a run that calls is started, waits for its operator, and is shown by `homo-dp status`."""

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
from typing import Any

import pytest

from homo_dp import status
from homo_dp.config.load import load_config
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError, InputError
from homo_dp.core.events import about, kept_events, read_events
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.sessions.plan import PlanRefused
from homo_dp.party import main as party_command
from homo_dp.runs.approval import ROWS_TOLD, answer, check_rules, must_ask, wait_for_word
from homo_dp.runs.run_status import status as status_of
from homo_dp.runs.serving import PartyServer
from tests.processes.parts import PARTIES, RUN, Cluster, ledger_rows
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer, aggregator_permissions, party_permissions


def until(condition: Callable[[], bool], cluster: Cluster, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, {name: cluster.log(name)[-1500:] for name in cluster.processes}
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
        codes = {name: process.wait(120) for name, process in cluster.processes.items() if name != "party_1"}
        assert codes == {AGGREGATOR: 0, "party_2": 0, "party_3": 0}
        out = tmp_path / "party_1" / "out" / RUN / "indicator.json"  # a folder a run
        own = load_config(tmp_path / "party_1.yaml")
        until(lambda: out.exists() and status_of(own)["runs"][0]["state"] == "over", cluster)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 130
        assert [row.round for row in ledger_rows(tmp_path / "party_1" / "ledger.sqlite")] == [1, 2]
        assert not (state / "made-up").exists()
        check_views(tmp_path, cluster)


def test_a_run_on_a_real_nats_server_is_noticed_and_served(tmp_path: Path, zygote: Zygote) -> None:
    allowed = party_permissions("homo_dp", "party_1")  # and what docs/transports.md adds for a party that serves
    allowed["publish"]["allow"] += ["$JS.API.STREAM.NAMES", "$JS.API.DIRECT.GET.*.homo_dp.*.to.party_1.>"]
    rights = {name: party_permissions("homo_dp", name) for name in PARTIES} | {"party_1": allowed}
    rights[AGGREGATOR] = aggregator_permissions("homo_dp")
    users = [{"user": name, "password": f"pw-{name}", "permissions": each} for name, each in rights.items()]
    with (
        NatsServer(tmp_path / "nats", PARTIES, settings={"authorization": {"users": users}}) as server,
        Cluster(tmp_path, server, rounds=1, zygote=zygote) as cluster,
    ):
        cluster.change("party_1", "party", serve={"approve": "always"})
        cluster.configs["party_1"].pop("federation")
        serving = cluster.start("party_1", arguments=["--serve"])
        for name in (AGGREGATOR, "party_2", "party_3"):
            cluster.start(name)
        codes = {name: process.wait(120) for name, process in cluster.processes.items() if name != "party_1"}
        assert codes == {AGGREGATOR: 0, "party_2": 0, "party_3": 0}, cluster.log("party_1")
        out = tmp_path / "party_1" / "out" / RUN / "indicator.json"
        until(lambda: out.exists() and f"run {RUN}: is over" in cluster.log("party_1"), cluster)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 130
        assert [row.round for row in ledger_rows(tmp_path / "party_1" / "ledger.sqlite")] == [1]


def check_views(tmp_path: Path, cluster: Cluster) -> None:
    """What status shows of the aggregator, as a page and over HTTP; and that every line of the log is an event."""
    found = status_of(load_config(tmp_path / "aggregator.yaml"))
    (run,) = found["runs"]
    assert (run["state"], run["round"], run["rounds"]) == ("over", 2, 2)
    assert set(run["replied"]) == {"party_1", "party_2", "party_3"}
    page = tmp_path / "status.html"
    assert status.main(["--config", str(tmp_path / "party_1.yaml"), "--page", str(page), "--quiet"]) == 0
    assert RUN in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "epsilon_left" in page.read_text()
    lines = [json.loads(line) for line in cluster.log("party_1").splitlines()]
    assert {"time", "level", "run", "round", "party", "event"} == set(lines[0])
    assert any(line["run"] == RUN and line["round"] == 2 and line["party"] == "party_1" for line in lines)


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
            *((elsewhere, 403), (serving.address("/x"), 404), (urllib.request.Request(address, b"x"), 501)),
            *((other_user, 403), (f"{other_user}/status.json", 403), (f"{other_user}/status.json?word=%ff", 403)),
        ]
        for request, code in wrong:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=10)
            assert refused.value.code == code
            refused.value.close()
        serving.shutdown()
        thread.join(10)


def test_the_page_escapes_what_others_wrote_and_keeps_an_undeclared_row_count_out(tmp_path: Path) -> None:
    event = {"time": "2027-01-01T00:00:00Z", "event": "<script>alert(1)</script>"}
    asked = {"given_away": {ROWS_TOLD: "no", "rows": 98765, "releases": "<b>update</b>"}}
    run = {"run": "loans", "state": "running", "round": 1, "rounds": 2, "replied": {}, "missing": [], "epsilon": None}
    found: dict[str, Any] = {"side": "party", "name": "party_1", "asked": "now", "budget": None}
    found |= {"runs": [run | {"waits_for_approval": asked, "last_event": event, "last_error": event}]}
    text = status.page(found)
    assert "98765" not in text
    assert "<script>alert" not in text
    assert "<b>update" not in text
    asked["given_away"][ROWS_TOLD] = 98765
    assert "98765" in status.page(found)


def served(**rules: Any) -> dict[str, Any]:
    return {"party.name": "party_1", "party.serve": rules}


def test_rules_say_which_plans_wait_and_which_mechanisms_are_refused() -> None:
    assert not must_ask(load_config(None, {"party.name": "party_1"}))
    assert not must_ask(load_config(None, served(approve="always")))
    assert must_ask(load_config(None, served(approve="within_caps")))  # no cap on epsilon: nothing to be within
    assert not must_ask(load_config(None, {**served(approve="within_caps"), "party.caps.epsilon": 2.0}))
    assert must_ask(load_config(None, {**served(approve="ask"), "party.caps.epsilon": 2.0}))
    own = load_config(None, served(mechanisms=["dp_fedsgd"]))
    with pytest.raises(PlanRefused) as refused:
        check_rules(own, load_config(None, {"privacy.mechanism": "dp_sgd"}))
    assert refused.value.reason == "mechanism"


def test_an_approval_is_for_one_plan_and_a_refusal_ends_it(tmp_path: Path) -> None:
    screen, plan = Screen(quiet=True), {"train": {"rounds": 2}}
    with pytest.raises(InputError, match="no plan waits"):
        answer(tmp_path, "loans", "approve", screen)
    waiting = Thread(target=wait_for_word, args=(tmp_path, plan, {"rounds": 2}, "loans", screen), daemon=True)
    waiting.start()
    while not (tmp_path / "asked.json").exists():
        time.sleep(0.01)
    answer(tmp_path, "loans", "approve", screen)
    waiting.join(30)
    assert not waiting.is_alive()
    wait_for_word(tmp_path, plan, {}, "loans", screen)  # started again: approved before
    other = Thread(target=wait_for_word, args=(tmp_path, {"train": {"rounds": 9}}, {}, "loans", screen), daemon=True)
    other.start()
    other.join(1)
    assert other.is_alive()  # another plan is another question
    answer(tmp_path, "loans", "approve", screen)
    other.join(30)
    assert not other.is_alive()
    (tmp_path / "refused.json").write_bytes((tmp_path / "approved.json").read_bytes())
    with pytest.raises(PlanRefused, match="refused by this party's operator"):
        wait_for_word(tmp_path, {"train": {"rounds": 9}}, {}, "loans", screen)


def test_serving_needs_rules_and_a_transport_that_shows_runs() -> None:
    with pytest.raises(ConfigError, match=r"party\.serve: is not given"):
        PartyServer(load_config(None, {"party.name": "party_1"}), [], Screen(quiet=True))
    with pytest.raises(ConfigError, match=r"transport\.kind=memory"):
        PartyServer(load_config(None, served(approve="ask")), [], Screen(quiet=True))


def test_events_of_a_run_are_kept_small_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homo_dp.core.events._MOST_BYTES", 2000)
    with kept_events(tmp_path):
        about(run="loans", round=1, party="party_1")
        for number in range(100):
            Screen(quiet=True).line(f"line {number}")
    about(run=None, round=None, party=None)
    events = read_events(tmp_path)
    assert events[-1]["event"] == "line 99"
    assert (events[-1]["run"], events[-1]["round"], events[-1]["party"]) == ("loans", 1, "party_1")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 6000
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_status_is_quick_to_start() -> None:
    code = "import sys; import homo_dp.runs.run_status, homo_dp.status; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
