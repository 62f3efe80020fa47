"""The command that shows runs: what it refuses, which page it names, and what it starts."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from pathlib import Path

import pytest

from homo_dp import ui
from homo_dp.core.errors import ConfigError
from homo_dp.ui import main
from tests.shell import run_command


class Started(Exception):
    """What would have replaced this process."""


def started(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    def become(program: str, command: list[str]) -> None:
        assert program == sys.executable
        raise Started(command)

    monkeypatch.setattr(os, "execv", become)
    with pytest.raises(Started) as found:
        main(arguments)
    command: list[str] = found.value.args[0]
    return command


def test_it_starts_one_worker_without_jobs_and_names_the_first_view(
    empty_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # undone afterwards
    monkeypatch.delenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION")
    store = tmp_path / "mlflow.db"
    store.write_bytes(empty_store.read_bytes())
    with sqlite3.connect(store) as database:
        database.execute("INSERT INTO experiments (experiment_id, name) VALUES (7, 'x')")
        database.execute(
            "INSERT INTO experiment_tags VALUES ('mlflow.sharedViewState.homo_dp', '{}', 7)"
        )
    database.close()
    monkeypatch.setenv("HOMO_DP_UI_EXPERIMENTS", "")  # undone afterwards
    for pages, address in ((True, "runs"), (False, "runs?viewStateShareKey=homo_dp")):
        monkeypatch.setattr(ui, "_has_pages", lambda pages=pages: pages)
        command = started(monkeypatch, "--uri", f"sqlite:///{store}", "--port", "5555")
        assert command[-2:] == ["--workers", "1"]
        assert ("--app-name" in command) == pages
        assert os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
        assert os.environ["HOMO_DP_UI_EXPERIMENTS"] == "7"
        assert f"http://127.0.0.1:5555/#/experiments/7/{address} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--uri", "sqlite:///no/such.db"], "is not there; train first"), (["--port", "0"], "port")],
)
def test_what_cannot_be_shown_is_refused_in_one_line(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        main(arguments)


def test_a_port_in_use_is_refused_before_its_address_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], empty_store: Path
) -> None:
    store = f"sqlite:///{empty_store}"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = run_command(main, ["--uri", store, "--port", port], monkeypatch, capsys)
    assert done.code == 2
    assert "http" not in done.out
    assert done.error_lines == [
        f"error: --port {port}: cannot be bound on 127.0.0.1 (Address already in use); give "
        "another port"
    ]
