"""What the folders of runs say about them."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest
from scipy.optimize import brentq

from homo_dp.config.load import load_config
from homo_dp.core.event_log import kept_events, log, told_errors
from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.sessions.crash_state import write_state
from homo_dp.federation.sessions.ledger_heads import LedgerHeads
from homo_dp.federation.sessions.members import Members
from homo_dp.federation.sessions.plan import PlanRefused
from homo_dp.privacy.accounting.accountants import renyi, renyi_epsilon
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
from homo_dp.privacy.accounting.events import to_json
from homo_dp.privacy.ledger import Budget, Ledger
from homo_dp.runs.run_status import HEADER, rows
from homo_dp.runs.run_status import status as status_of
from homo_dp.status import page
from tests.federation.queues import Post
from tests.privacy.ledger_parts import DELTA, release


def header(content: bytes) -> bytes:
    """A state file with these bytes as its header."""
    return len(content).to_bytes(8, "little") + content


def test_a_run_that_its_operator_refused_is_called_refused(tmp_path: Path) -> None:
    own = load_config(None, {"party.name": "party_1", "party.state_dir": str(tmp_path)})
    (tmp_path / "loans").mkdir()
    (tmp_path / "loans" / "lock").touch()
    for error, state in (
        (PlanRefused("operator", "no"), "refused"),
        (ValueError("no"), "ended with an error"),
    ):
        with (
            pytest.raises(ValueError, match="no"),
            kept_events(tmp_path / "loans"),
            told_errors(PlanRefused),
        ):
            raise error
        assert status_of(own)["runs"][0]["state"] == state


def test_a_run_that_was_told_to_end_is_stopped_and_not_in_error(tmp_path: Path) -> None:
    own = load_config(None, {"federation.state_dir": str(tmp_path)})
    (tmp_path / "loans").mkdir()
    (tmp_path / "loans" / "lock").touch()
    # the second is how Flower ends a ServerApp
    for error in (KeyboardInterrupt("SIGTERM"), SystemExit(0)):
        with pytest.raises(type(error)), kept_events(tmp_path / "loans"), told_errors():
            raise error
        assert status_of(own)["runs"][0]["state"] == "stopped"


def test_runs_that_were_heard_of_last_come_first(tmp_path: Path) -> None:
    own = load_config(None, {"federation.state_dir": str(tmp_path)})
    for run, hour in (("loans-1", 9), ("loans-10", 11), ("loans-2", 10)):
        (tmp_path / run).mkdir()
        (tmp_path / run / "lock").touch()
        event = {"time": f"2027-01-01T{hour:02}:00:00.000Z", "level": "INFO", "event": "replied"}
        (tmp_path / run / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert [run["run"] for run in status_of(own)["runs"]] == ["loans-10", "loans-2", "loans-1"]


def test_who_has_not_joined_is_missing_before_the_first_round(tmp_path: Path) -> None:
    own = load_config(
        None,
        {
            "federation.state_dir": str(tmp_path),
            "federation.parties.bank_a": "bank_a.pub",
            "federation.parties.bank_b": "bank_b.pub",
        },
    )
    (tmp_path / "loans").mkdir()
    (tmp_path / "loans" / "lock").touch()
    assert status_of(own)["runs"][0]["missing"] == ["bank_a", "bank_b"]
    heads = LedgerHeads(tmp_path / "heads.json")
    end = Post().end(AGGREGATOR)
    members = Members("loans", ["bank_a", "bank_b"], end, heads, lambda text: None)
    with kept_events(tmp_path / "loans"):
        assert members.join(Message("loans", 0, "bank_b", AGGREGATOR, "join", {}, {"rows": 9}))
    assert status_of(own)["runs"][0]["missing"] == ["bank_a"]
    (tmp_path / "loans" / "rounds.jsonl").write_text('{"round": 1, "missing": []}\n')
    assert status_of(own)["runs"][0]["missing"] == []


def test_a_run_is_over_after_all_of_its_rounds_not_after_those_that_train(tmp_path: Path) -> None:
    """Column scales and a second moment are rounds too."""
    own = load_config(None, {"federation.state_dir": str(tmp_path)})
    (tmp_path / "loans").mkdir()
    (tmp_path / "loans" / "lock").touch()
    facts = {"plan": {"train": {"rounds": 16}}, "rounds": 18}
    write_state(tmp_path / "loans" / "plan.safetensors", {}, facts, point="aggregator_plan")
    for number, state in ((16, "stopped"), (18, "over")):
        (tmp_path / "loans" / "rounds.jsonl").write_text(f'{{"round": {number}, "missing": []}}\n')
        found = status_of(own)["runs"][0]
        assert (found["state"], found["round"], found["rounds"]) == (state, number, 18)


def test_only_the_ends_of_long_files_are_read(tmp_path: Path) -> None:
    """A damaged file of 100 MB took a gigabyte of memory."""
    own = load_config(None, {"federation.state_dir": str(tmp_path)})
    (tmp_path / "loans").mkdir()
    (tmp_path / "loans" / "lock").touch()
    event = {"time": "2027-01-01T09:00:00.000Z", "level": "INFO", "event": "replied"}
    for name, line in (("rounds.jsonl", {"round": 7}), ("events.jsonl", event)):
        with open(tmp_path / "loans" / name, "wb") as file:
            file.truncate(100 << 20)
            file.seek(0, os.SEEK_END)
            file.write(b"\n" + json.dumps(line).encode() + b"\n")
    tracemalloc.start()
    (run,) = status_of(own)["runs"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (run["round"], run["last_event"]["event"]) == (7, "replied")
    assert peak < 50 << 20


def test_a_warning_is_no_error(tmp_path: Path) -> None:
    own = load_config(None, {"federation.state_dir": str(tmp_path)})
    (tmp_path / "loans").mkdir()
    (tmp_path / "loans" / "lock").touch()
    with kept_events(tmp_path / "loans"):
        log.warning("party bank_a cannot be reached")
    found = status_of(own)
    assert found["runs"][0]["last_error"] is None
    assert "cannot be reached" in found["runs"][0]["last_warning"]["event"]
    shown = dict(zip(HEADER, rows(found)[0], strict=True))
    assert shown["last error"] is None
    assert "cannot be reached" in str(shown["last warning"])


def test_what_is_left_is_composed_as_the_ledger_does(tmp_path: Path) -> None:
    ledger_path = tmp_path / "ledger.sqlite"
    budget = Budget(lifetime_epsilon=4.0, lifetime_delta=1e-5)
    with Ledger(ledger_path) as ledger:
        for number in range(1, 21):
            ledger.charge(release(number, dataset="clinic"), budget)
    own = load_config(
        None,
        {
            "party.name": "party_1",
            "party.state_dir": str(tmp_path / "runs"),
            "data.name": "clinic",
            "privacy.ledger": str(ledger_path),
            "privacy.lifetime_epsilon": 4.0,
            "privacy.lifetime_delta": 1e-5,
        },
    )
    found = status_of(own)["budget"]
    assert found["epsilon_left"] > 4.0 - found["epsilon_spent"]
    # a release of this epsilon is accepted, one of a little more is not
    fitting, too_much = (
        release(21, dataset="clinic", run="run-2", event=GaussianDpEvent(noise), sigma=noise)
        for noise in (_noise_for(factor * found["epsilon_left"]) for factor in (0.999, 1.001))
    )
    with Ledger(ledger_path) as ledger:
        assert ledger.would_exceed([too_much], budget) is not None
        assert ledger.would_exceed([fitting], budget) is None


def _noise_for(epsilon: float) -> float:
    """The noise multiplier of one Gaussian release of this epsilon by RDP."""
    found: float = brentq(
        lambda noise: renyi_epsilon(renyi({to_json(GaussianDpEvent(noise)): 1}), DELTA) - epsilon,
        0.1,
        1000.0,
    )
    return found


SHAPES: dict[str, list[bytes]] = {
    "rounds.jsonl": [
        b'{"round": 1e999}',
        b'{"round": true}',
        b'{"round": 1, "missing": 3}',
        b'{"round": 1, "epsilon": {}}',
        b"[" * 100_000,
        b'{"round": ' + b"9" * 5000 + b"}",
        b"\xff\0",
    ],
    "events.jsonl": [
        b'{"event": "replied", "party": {}, "round": 1}',
        b'{"event": "replied", "party": "a", "round": "x", "time": "t"}',
        b'{"event": 1, "time": 2, "level": "ERROR"}',
        b'{"level": "ERROR"}',
        b"[" * 100_000,
    ],
    "plan.safetensors": [
        header(b'{"__metadata__": {"facts": "[]"}}'),
        header(b'{"__metadata__": {"facts": "{\\"rounds\\": {\\"train\\": 3}}"}}'),
        header(b'{"__metadata__": 3}'),
        header(b"[" * 100_000),
        b"\xff" * 8,
    ],
    "asked.json": [
        b"[" * 100_000,
        b'{"given_away": 3, "plan": "x"}',
        b'{"given_away": {}, "plan": []}',
    ],
}


@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name in SHAPES for shape in SHAPES[name]]
)
def test_damaged_state_of_one_run_hides_no_other(tmp_path: Path, name: str, shape: bytes) -> None:
    own = load_config(None, {"federation.state_dir": str(tmp_path)})
    for run in ("good", "damaged"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "lock").touch()
    (tmp_path / "good" / "rounds.jsonl").write_text('{"round": 3, "missing": []}\n')
    (tmp_path / "damaged" / name).write_bytes(shape + b"\n")
    found = status_of(own)
    assert {run["run"]: run["round"] for run in found["runs"]}["good"] == 3
    rows(found)
    assert "good" in page(found)
    json.dumps(found, default=str)


def test_a_pipe_in_the_folder_of_a_run_keeps_nobody_waiting(tmp_path: Path) -> None:
    own = load_config(None, {"federation.state_dir": str(tmp_path)})
    (tmp_path / "loans").mkdir()
    (tmp_path / "loans" / "lock").touch()
    for name in SHAPES:
        os.mkfifo(tmp_path / "loans" / name)
    assert [run["run"] for run in status_of(own)["runs"]] == ["loans"]
