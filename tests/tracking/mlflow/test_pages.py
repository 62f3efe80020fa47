"""The server behind ``homo-dp ui``: its first page, what it refuses, and what it leaves to MLflow."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from homo_dp.tracking.mlflow.experiment_view import view_state
from homo_dp.tracking.mlflow.pages import SHUT, Pages, Receive, Scope, Send
from homo_dp.ui import APP


async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Says that a request came through."""
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def ask(path: str, method: str = "GET", kind: str = "http") -> tuple[int, str]:
    """The status and the body of an answer."""
    sent: list[Any] = []

    async def send(message: Scope) -> None:
        sent.append(message)

    async def receive() -> Scope:
        return {"type": "http.request"}

    pages = Pages(elsewhere, ["1", "7"])
    asyncio.run(pages({"type": kind, "path": path, "method": method}, receive, send))
    return sent[0]["status"], sent[1]["body"].decode()


def test_the_first_page_has_our_columns_and_a_shut_assistant() -> None:
    status, page = ask("/")
    assert status == 200
    assert 'id="root"' in page, "it is still MLflow's page"
    found = re.search(r"Object\.entries\((.*?)\)\)\{", page)
    assert found is not None
    chosen = json.loads(found[1])
    assert {key: chosen[key] for key in SHUT} == SHUT
    views = [json.loads(value) for key, value in chosen.items() if "ExperimentPage" in key]
    assert views == [view_state()] * 2
    assert page.index("<script>") < page.index("<script defer"), "before MLflow's own code"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_assistant_is_refused(method: str) -> None:
    assert ask("/ajax-api/3.0/mlflow/assistant/message", method)[0] == 404


@pytest.mark.parametrize("path", ["/health", "/ajax-api/2.0/mlflow/runs/search", "/static-files/x"])
def test_all_else_is_mlflows(path: str) -> None:
    assert ask(path)[0] == 299
    assert ask("/", "POST")[0] == 299


def test_mlflow_finds_it_by_an_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    value = project["project"]["entry-points"]["mlflow.app"][APP]
    loaded = importlib.metadata.EntryPoint(APP, value, "mlflow.app").load()
    assert isinstance(loaded, Pages)
