"""MLflow's server as ``homo-dp ui`` starts it: our first view, and no assistant.

MLflow keeps in the browser what a person has chosen. The page that starts it sets what nobody has
chosen yet: the columns of our experiments, and that the panel of MLflow's assistant stays shut.
The assistant runs programs on this machine, a shell among them, so that what a page asks of it is
refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import mlflow.server
from mlflow.server.fastapi_app import app as mlflow_app

from homo_dp.tracking.mlflow.experiment_view import view_state

EXPERIMENTS = "HOMO_DP_UI_EXPERIMENTS"  # ids, separated by commas
ASSISTANT = "/assistant"  # of the addresses below /ajax-api
SHUT = {
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
}
_STORED = 'MLflowLocalStorage-1.1-ExperimentPage-["{}"]-ReactComponentState'
_START = Path(mlflow.server.__file__).parent / "js" / "build" / "index.html"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]


class Pages:
    """Answers for the first page and for the assistant, and leaves all else to MLflow's server.

    Args:
        inner: MLflow's server.
        experiments: ids of the experiments that have our view.
    """

    def __init__(
        self, inner: Callable[[Scope, Receive, Send], Awaitable[None]], experiments: list[str]
    ) -> None:
        self._inner = inner
        chosen = SHUT | {_STORED.format(each): json.dumps(view_state()) for each in experiments}
        values = json.dumps(chosen).replace("<", "\\u003c")
        script = (
            f"<script>for (const [key, value] of Object.entries({values}))"
            "{if (localStorage.getItem(key) === null) localStorage.setItem(key, value)}</script>"
        )
        self._start = _START.read_text(encoding="utf-8").replace("<head>", f"<head>{script}", 1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = str(scope.get("path", ""))
        if scope["type"] == "http" and path == "/" and scope["method"] in ("GET", "HEAD"):
            await _answer(send, 200, "text/html; charset=utf-8", self._start)
        elif scope["type"] != "lifespan" and path.startswith("/ajax-api/") and ASSISTANT in path:
            await _answer(send, 404, "application/json", '{"detail": "the assistant is off"}')
        else:
            await self._inner(scope, receive, send)


async def _answer(send: Send, status: int, kind: str, text: str) -> None:
    body = text.encode()
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


app = Pages(mlflow_app, [each for each in os.environ.get(EXPERIMENTS, "").split(",") if each])
