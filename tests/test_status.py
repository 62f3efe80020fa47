"""homo-dp status: it starts quickly, and its page escapes what others wrote."""

import json
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from homo_dp import status
from homo_dp.runs.approval import ROWS_TOLD


def test_the_page_escapes_what_others_wrote_and_keeps_an_undeclared_row_count_out(
    tmp_path: Path,
) -> None:
    event = {"time": "2027-01-01T00:00:00Z", "event": "<script>alert(1)</script>"}
    asked = {"given_away": {ROWS_TOLD: "no", "rows": 98765, "releases": "<b>update</b>"}}
    run = {
        "run": "loans",
        "state": "running",
        "round": 1,
        "rounds": 2,
        "replied": {},
        "missing": [],
        "epsilon": None,
    }
    found: dict[str, Any] = {"side": "party", "name": "party_1", "asked": "now", "budget": None}
    found |= {
        "runs": [
            run
            | {"waits_for_approval": asked, "last_event": event}
            | {"last_warning": event, "last_error": event}
        ]
    }
    text = status.page(found)
    assert "98765" not in text
    assert "<script>alert" not in text
    assert "<b>update" not in text
    asked["given_away"][ROWS_TOLD] = 98765
    assert "98765" in status.page(found)


def test_status_is_quick_to_start() -> None:
    code = (
        "import sys; import homo_dp.runs.run_status, homo_dp.status; sys.exit('torch' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_connections_that_ask_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,500 of them were 1,500 threads."""
    found: dict[str, Any] = {
        "side": "party",
        "name": "p",
        "asked": "now",
        "budget": None,
        "runs": [],
    }
    server = status.StatusServer(lambda: found, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    silent = []
    try:
        for _ in range(100):
            silent.append(socket.create_connection(server.server_address[:2]))  # type: ignore[arg-type]
        with urllib.request.urlopen(server.address("/status.json"), timeout=10) as answer:
            assert json.load(answer)["name"] == "p"
        assert threading.active_count() <= status.MOST_CONNECTIONS + 10
    finally:
        for each in silent:
            each.close()
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_connection_that_is_silent_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "SECONDS", 0.2)
    server = status.StatusServer(dict, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with socket.create_connection(server.server_address[:2], timeout=10) as silent:  # type: ignore[arg-type]
            assert silent.recv(1) == b""
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
