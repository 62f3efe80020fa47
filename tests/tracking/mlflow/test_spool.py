"""The spool: files as they were, and who may send what was left behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from homo_dp.tracking.mlflow import sender
from homo_dp.tracking.mlflow.run_log import RunLog
from homo_dp.tracking.mlflow.spool import (
    ADDRESS,
    Spool,
    State,
    address_of,
    discard,
    locked,
    spool_name,
    unsent,
)


def test_a_kept_file_stays_as_it_was(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "unsent" / "one", "sqlite:///x.db", "x")
    output = tmp_path / "model"
    output.write_text("first")
    assert spool.keep(output) == "files/model"
    (tmp_path / "new").write_text("second")
    os.replace(tmp_path / "new", output)
    assert (spool.folder / "files" / "model").read_text() == "first"
    assert spool.keep(tmp_path / "not there") is None
    assert spool.keep(Path("/dev/null")) is None


def test_names_sort_as_they_were_given_even_within_a_second() -> None:
    """The newest spool of a run says how the run ended, and a killed process may be back in no
    time.
    """
    names = [spool_name() for _ in range(50)]
    assert names == sorted(names)


def test_names_sort_as_they_were_given_when_clocks_go_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = []
    try:
        for zone in ("UTC-2", "UTC-1"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            names.append(spool_name())
    finally:
        monkeypatch.undo()
        time.tzset()
    assert names == sorted(names)


def test_a_spool_in_use_is_not_left_behind(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "one", "sqlite:///x.db", "x")
    spool.add("run", key="a")
    assert unsent(tmp_path) == []
    spool.close()
    assert unsent(tmp_path) == [spool.folder]
    with locked(spool.folder) as mine, locked(spool.folder) as second:
        assert mine
        assert not second


def test_a_spool_of_a_dead_writer_is_left_behind_whoever_has_its_number_now(
    tmp_path: Path,
) -> None:
    """In a container that is started again, the new process often has the number of the one that
    was killed.
    """
    writer = (
        "import os; from homo_dp.tracking.mlflow.spool import *; "
        f"Spool(Path({str(tmp_path / 'one')!r}), 'a', 'b')"
    )
    subprocess.run([sys.executable, "-c", f"{writer}; os._exit(9)"], check=False)
    lines = tmp_path / "one" / "lines.jsonl"
    first = json.loads(lines.read_text())
    lines.write_text(json.dumps(first | {"pid": os.getpid()}) + "\n")
    assert unsent(tmp_path) == [tmp_path / "one"]


def test_the_last_spool_takes_its_folder_with_it(tmp_path: Path) -> None:
    first, second = (Spool(tmp_path / "unsent" / name, "sqlite:///x.db", "x") for name in "ab")
    discard(first.folder)
    assert (tmp_path / "unsent").exists()
    discard(second.folder)
    assert not (tmp_path / "unsent").exists()
    assert unsent(tmp_path / "unsent") == []


SECRET = "postgresql://ann:s%40fe-word@db.example/mlflow?sslpassword=oth3r"


def _texts(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_a_password_is_in_no_file_of_a_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "unsent" / "one", SECRET, "x")
    spool.add("run", key="training", parent=None, name="one", tags={})
    spool.close()
    assert not any(secret in _texts(tmp_path) for secret in ("s%40fe-word", "s@fe-word", "oth3r"))
    monkeypatch.delenv(ADDRESS, raising=False)
    assert address_of(spool.folder) is None
    assert sender.main([str(tmp_path / "unsent")]) == 1
    assert ADDRESS in str(State.load(spool.folder).error)
    assert unsent(tmp_path / "unsent") == [spool.folder]  # it stays until somebody has the password
    monkeypatch.setenv(ADDRESS, SECRET.replace("db.example", "evil.example"))
    assert address_of(spool.folder) is None  # the run of one store is not sent to another
    monkeypatch.setenv(ADDRESS, SECRET)
    assert address_of(spool.folder) == SECRET


def test_a_run_hands_the_password_to_its_sender_and_to_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []

    def start(command: list[str], env: dict[str, str], **options: object) -> None:
        started.append(env)
        raise OSError("not in this test")

    monkeypatch.setattr(subprocess, "Popen", start)
    RunLog(SECRET, "x", tmp_path / "unsent").add(
        "run", key="training", parent=None, name="one", tags={}
    )
    assert [env[ADDRESS] for env in started] == [SECRET]
    assert "s%40fe-word" not in _texts(tmp_path)


def test_a_spool_without_password_needs_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS, "http://other.example")
    assert address_of(Spool(tmp_path / "one", "sqlite:////x.db", "x").folder) == "sqlite:////x.db"
