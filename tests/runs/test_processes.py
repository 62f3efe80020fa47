"""Aggregator and parties as processes: the same job, each with its own files; stopped, killed
and refused.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml

import homo_dp.commands.aggregator as aggregator
import homo_dp.commands.party as party
from homo_dp.core.errors import ConfigError, InputError
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.models.files import load_model
from homo_dp.transport.keys import new_key_pair, read_public_key
from homo_dp.transport.sealing import Sealer
from tests.processes.parts import PARTIES, Cluster
from tests.processes.surviving import Victim, check_survivors, survive
from tests.processes.zygote import Zygote
from tests.transport.nats_server import NatsServer


@pytest.fixture
def cluster(tmp_path: Path, zygote: Zygote) -> Iterator[Cluster]:
    with Cluster(tmp_path, zygote=zygote) as made:
        yield made


def indicators(cluster: Cluster, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        (cluster.folder / name / "out" / "indicator.json").read_text()
    )
    return found


def until(condition: Callable[[], bool], cluster: Cluster, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, {
            name: cluster.log(name)[-1000:] for name in cluster.processes
        }
        time.sleep(0.02)


def test_the_commands_run_the_job_and_everybody_keeps_its_own_files(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        victim = Victim(AGGREGATOR, ["aggregator.after_save"])
        survive(cluster, [victim])
        assert victim.killed_at == ["aggregator.after_save"]
        check_survivors(cluster)
        seen = indicators(cluster, AGGREGATOR)
        assert all(
            value is None for key, value in seen.items() if key.startswith(("train_", "test_"))
        )
        assert all(seen[key] for key in ("version", "finished", "model", "data"))
        assert seen["privacy"]["parties"]["party_1"]["rows"] is None  # type: ignore[index]
        assert not (tmp_path / AGGREGATOR / "out" / "predict.csv").exists()
        own = indicators(cluster, "party_1")
        assert own["test_acc"] is not None
        assert "test_acc" in own["local_only"]  # type: ignore[operator]
        assert (
            len(json.loads((tmp_path / "party_1" / "out" / "indicator_ledger.json").read_text()))
            == cluster.rounds
        )
        assert "epsilon" in cluster.log("party_1")


def test_a_queue_that_dies_in_mid_run_is_waited_for(tmp_path: Path, zygote: Zygote) -> None:
    with (
        NatsServer(tmp_path / "nats", PARTIES) as server,
        Cluster(tmp_path, server, 5, zygote) as cluster,
    ):
        cluster.start_all()
        until(lambda: "round 1/" in cluster.log(AGGREGATOR), cluster)
        server.kill()
        server.start()
        assert set(cluster.wait().values()) == {0}
        check_survivors(cluster)


@pytest.mark.parametrize("transport", ["directory", "nats"])
def test_killed_and_started_again_it_continues(
    tmp_path: Path, zygote: Zygote, transport: str
) -> None:
    server = NatsServer(tmp_path / "nats", PARTIES) if transport == "nats" else None
    victims = [
        Victim(AGGREGATOR, ["aggregator.received:2", "aggregator_state.before_rename:2"]),
        Victim("party_1", ["ledger.after_commit"]),
    ]
    try:
        if server is not None:
            server.start()
        with Cluster(tmp_path, server, 4, zygote) as cluster:
            survive(cluster, victims)
            check_survivors(cluster)
    finally:
        if server is not None:
            server.kill()
    assert [victim.unused for victim in victims] == [[], []]


def test_rounds_count_although_a_power_cut_took_their_rows(cluster: Cluster) -> None:
    """The rows of rounds are not synced one by one; what was spent is not counted by them."""
    cluster.start_all({AGGREGATOR: "aggregator.after_save:2"})
    assert cluster.processes[AGGREGATOR].wait(60) == -signal.SIGKILL
    (cluster.folder / "state-aggregator" / cluster.run / "rounds.jsonl").unlink()
    cluster.start(AGGREGATOR)
    assert set(cluster.wait().values()) == {0}
    seen = indicators(cluster, AGGREGATOR)
    assert seen["rounds_done"] == cluster.rounds
    assert [row["round"] for row in seen["rounds"]] == [3]  # type: ignore[attr-defined]


def test_metrics_of_the_aggregator_come_from_a_public_table_only(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Path(__file__).parents[2] / "data" / "breast_cancer_party_1_test.csv"
    cluster.change(AGGREGATOR, "data", test_file=str(table), public_test=True)
    cluster.start_all()
    assert set(cluster.wait().values()) == {0}
    seen = indicators(cluster, AGGREGATOR)
    assert seen["test_acc"] is not None
    assert seen["train_acc"] is None
    party.main(["--config", str(cluster.folder / "party_1.yaml"), "--dry-run"])
    assert "from the aggregator's plan" in capsys.readouterr().out


def test_a_party_refuses_what_passes_its_caps_and_the_others_go_on(cluster: Cluster) -> None:
    cluster.change("party_3", "party", caps={"rounds": 2})
    cluster.change(AGGREGATOR, "federation", min_parties=2)
    cluster.start_all()
    assert cluster.wait() == {AGGREGATOR: 0, "party_1": 0, "party_2": 0, "party_3": 3}
    assert "refused: party.caps.rounds=2: the plan has 3 rounds" in cluster.log("party_3")
    seen = indicators(cluster, AGGREGATOR)
    assert seen["refused"] == {"party_3": "rounds_cap"}
    assert seen["rounds"][0]["replied"] == ["party_1", "party_2"]  # type: ignore[index]


def test_a_party_refuses_a_model_beyond_its_limit_before_it_takes_memory_for_it(
    cluster: Cluster,
) -> None:
    cluster.change(AGGREGATOR, "model", name="mlp", layers=[5000])
    cluster.change(AGGREGATOR, "federation", min_parties=2)
    cluster.change("party_3", "transport", max_message_bytes=100_000)
    cluster.start_all()
    assert cluster.wait() == {AGGREGATOR: 0, "party_1": 0, "party_2": 0, "party_3": 3}
    assert (
        "refused: transport.max_message_bytes=100000: the plan's model has 640004 bytes"
        in cluster.log("party_3")
    )
    assert indicators(cluster, AGGREGATOR)["refused"] == {"party_3": "model"}


def test_a_party_that_comes_after_the_end_gets_the_model_and_has_spent_nothing(
    cluster: Cluster,
) -> None:
    cluster.change(AGGREGATOR, "federation", min_parties=2, round_timeout=5)
    for name in (AGGREGATOR, "party_1", "party_2"):
        cluster.start(name)
    assert set(cluster.wait().values()) == {0}
    cluster.start("party_3")
    assert cluster.wait()["party_3"] == 0
    seen = indicators(cluster, "party_3")
    assert seen["privacy"]["epsilon"] == 0  # type: ignore[index]
    assert [(row["round"], row["epsilon"]) for row in seen["rounds"]] == [(3, 0)]  # type: ignore[attr-defined]
    one, other = (
        cluster.folder / name / "out" / "model.safetensors" for name in ("party_1", "party_3")
    )
    for tensors in zip(
        *(load_model(path).module.state_dict().values() for path in (one, other)), strict=True
    ):
        assert torch.equal(*tensors)


def test_a_run_that_too_many_refuse_stops_and_loses_no_round_that_others_paid_for(
    cluster: Cluster,
) -> None:
    cluster.change("party_3", "party", caps={"releases": ["statistics"]})
    cluster.change(AGGREGATOR, "federation", round_timeout=8)
    cluster.start_all()
    until(lambda: cluster.processes[AGGREGATOR].poll() is not None, cluster)
    assert cluster.processes[AGGREGATOR].wait() == 2
    assert "refused by party_3 (releases_cap)" in cluster.log(AGGREGATOR)
    cluster.change("party_3", "party", caps={})
    cluster.change(AGGREGATOR, "federation", round_timeout=60)
    for name in (AGGREGATOR, "party_3"):
        cluster.start(name)
    assert set(cluster.wait().values()) == {0}
    check_survivors(cluster)
    rounds = indicators(cluster, AGGREGATOR)["rounds"]
    assert [row["counted"] for row in rounds] == [True, True, True]  # type: ignore[attr-defined]


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(cluster: Cluster) -> None:
    for name in (AGGREGATOR, "party_1", "party_2"):  # the third is missing, so that the run waits
        cluster.start(name)
    until(lambda: "party party_2 joined" in cluster.log(AGGREGATOR), cluster)
    until(lambda: "awaited" in cluster.log("party_1"), cluster)
    for name in (AGGREGATOR, "party_1"):
        cluster.processes[name].send_signal(signal.SIGINT)
        assert cluster.processes[name].wait(30) == 130
        assert "start the same command again" in cluster.log(name).splitlines()[-1]
    for name in (AGGREGATOR, "party_1", "party_3"):
        cluster.start(name)
    assert set(cluster.wait().values()) == {0}
    check_survivors(cluster)


def test_a_full_disk_stops_with_a_message_and_the_run_goes_on_after(cluster: Cluster) -> None:
    cluster.start(AGGREGATOR, largest_file=1000)
    for name in PARTIES[1:]:
        cluster.start(name)
    cluster.start("party_1", largest_file=30_000)
    assert cluster.processes[AGGREGATOR].wait(60) == 2
    assert "the run continues" in cluster.log(AGGREGATOR).splitlines()[-1]
    cluster.start(AGGREGATOR)
    code = cluster.processes["party_1"].wait(60)
    if code:  # at which write the limit is met depends on SQLite
        assert code in (2, 3)
        assert "Traceback" not in cluster.log("party_1")
        cluster.start("party_1")
    assert set(cluster.wait().values()) == {0}
    check_survivors(cluster)


@pytest.mark.parametrize(
    ("name", "place", "code"),
    [
        (AGGREGATOR, "state-aggregator/run-1", 2),
        ("party_1", "exchange/run-1/aggregator/from/party_1", 2),
        # nothing leaves without it, as without the ledger
        ("party_1", "party_1/state/run-1/outbox", 3),
    ],
)
def test_a_missing_permission_stops_with_a_line_and_the_run_goes_on_after(
    cluster: Cluster, name: str, place: str, code: int
) -> None:
    """Folders that may be read and not written to, for one of the processes, from before the
    first round on.
    """
    closed = cluster.folder / place
    closed.mkdir(parents=True, mode=0o700)
    closed.chmod(0o500)
    for other in (AGGREGATOR, *PARTIES):
        cluster.start(other, bound=other == name)
    assert cluster.processes[name].wait(60) == code
    *_, last = cluster.log(name).splitlines()
    assert "Permission denied" in last or "may not write there" in last
    assert last.startswith(("error: ", "refused: "))
    assert "Traceback" not in cluster.log(name)
    closed.chmod(0o700)
    cluster.start(name, bound=True)
    assert set(cluster.wait().values()) == {0}
    check_survivors(cluster)


def test_garbage_strangers_and_forgers_are_named_and_the_run_goes_on(cluster: Cluster) -> None:
    known = read_public_key(cluster.folder / "keys" / "aggregator.pub")
    mallory = new_key_pair("party_1")  # another key under a name that is listed
    box = cluster.exchange / cluster.run / AGGREGATOR
    box.mkdir(parents=True)
    for name, sender in (("party_1", mallory), ("stranger", new_key_pair("stranger"))):
        update = Message(
            cluster.run, 1, name, AGGREGATOR, "update", {"linear.weight": torch.ones(1, 30)}
        )
        sealed = Sealer(sender, {AGGREGATOR: known}).seal(update)
        (box / f"1-update-{name}-{sealed.tag}.msg").write_bytes(b"".join(sealed.pieces))
    (box / f"1-update-party_2-{'0' * 32}.msg").write_bytes(b"garbage" * 1000)
    with open(box / f"1-update-party_3-{'0' * 32}.msg", "wb") as huge:
        huge.truncate(2 << 30)  # takes no disk
    cluster.start_all()
    assert set(cluster.wait().values()) == {0}
    check_survivors(cluster)
    said = cluster.log(AGGREGATOR)
    assert "not that of 'party_1'" in said
    assert "'stranger' is not on the allow-list" in said
    assert "not a sealed homo_dp message" in said
    assert "allowed 67108864" in said


def test_two_runs_in_one_folder_do_not_mix(tmp_path: Path, zygote: Zygote) -> None:
    exchange = tmp_path / "exchange"
    with (
        Cluster(tmp_path / "one", zygote=zygote, run="one", exchange=exchange) as one,
        Cluster(tmp_path / "two", zygote=zygote, run="two", exchange=exchange, rounds=2) as two,
    ):
        one.start_all()
        two.start_all()
        assert set(one.wait().values()) | set(two.wait().values()) == {0}
        check_survivors(one)
        check_survivors(two)


def test_a_dry_run_shows_the_price_and_leaves_nothing_behind(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(cluster.folder)
    cluster.change("party_1", "data", columns_from="breast_cancer")
    path = cluster.folder / "party_1.yaml"
    path.write_text(yaml.safe_dump(cluster.configs["party_1"]))
    before = sorted(cluster.folder.rglob("*"))
    assert party.main(["--config", str(path), "--dry-run"]) == 0
    assert sorted(cluster.folder.rglob("*")) == before
    shown = capsys.readouterr().out
    assert all(
        text in shown
        for text in ("epsilon (PLD)", "update", "most epsilon of a run", "trusts the aggregator")
    )


@pytest.mark.parametrize(
    ("name", "section", "values", "said"),
    [
        (AGGREGATOR, "federation", {"run": None}, "federation.run"),
        (AGGREGATOR, "federation", {"parties": []}, "federation.parties"),
        (AGGREGATOR, "federation", {"key_file": None}, "homo_dp.keys new aggregator"),
        (AGGREGATOR, "federation", {"parties": ["party_1"]}, "public_key"),
        (AGGREGATOR, "transport", {"kind": "memory"}, "directory, nats or flower"),
        ("party_1", "party", {"name": None}, "party.name"),
        ("party_1", "party", {"name": "party_2"}, "is the key of party_1"),
        ("party_1", "party", {"aggregator_key": None}, "party.aggregator_key"),
        ("party_1", "data", {"files": {"party_1": "nowhere.csv"}}, "no such file"),
        ("party_1", "data", {"test_file": {"party_1": "nowhere.csv"}}, "no such file"),
        ("party_1", "transport", {"kind": "memory"}, "directory, nats or flower"),
    ],
)
def test_wrong_settings_are_one_line(
    cluster: Cluster,
    name: str,
    section: str,
    values: dict[str, object],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(cluster.folder)
    cluster.change(name, section, **values)
    path = cluster.folder / "wrong.yaml"
    path.write_text(yaml.safe_dump(cluster.configs[name]))
    main = aggregator.main if name == AGGREGATOR else party.main
    with pytest.raises((ConfigError, InputError)) as caught:
        main(["--config", str(path)])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_settings_under_the_same_run_and_a_second_process_are_refused(
    cluster: Cluster,
) -> None:
    cluster.start(AGGREGATOR, "aggregator.after_plan")
    for name in PARTIES:
        cluster.start(name)
    assert cluster.processes[AGGREGATOR].wait(60) == -signal.SIGKILL
    cluster.change(AGGREGATOR, "train", rounds=9)
    cluster.start(AGGREGATOR)
    assert cluster.processes[AGGREGATOR].wait(60) == 2
    assert "train.rounds=3 became 9" in cluster.log(AGGREGATOR)
    cluster.change(AGGREGATOR, "train", rounds=3)
    listed = cluster.configs[AGGREGATOR]["federation"]["parties"]
    cluster.change(
        AGGREGATOR, "federation", parties=listed | {"party_4": new_key_pair("party_4").public.line}
    )
    cluster.start(AGGREGATOR)
    assert cluster.processes[AGGREGATOR].wait(60) == 2
    assert "became party_1, party_2, party_3, party_4" in cluster.log(AGGREGATOR)
    first = cluster.processes["party_1"]
    cluster.start("party_1")
    assert cluster.processes["party_1"].wait(60) == 2
    assert "another process" in cluster.log("party_1")
    cluster.processes["first"] = first


def test_help_is_quick() -> None:
    code = (
        "import sys\nimport homo_dp.commands.aggregator, homo_dp.commands.party\n"
        "for command in (homo_dp.commands.aggregator, homo_dp.commands.party):\n"
        "    try:\n        command.main(['--help'])\n    except SystemExit:\n        pass\n"
        "print({'torch', 'pandas', 'mlflow', 'opacus', 'dp_accounting', 'nats'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
