"""Show the runs in MLflow's pages: ``python -m homo_dp.ui [--uri sqlite:///mlflow.db] [--port 5000]``.

Starts MLflow's own server on this machine with what looking at runs needs, and prints the address of the table of runs.
MLflow's jobs (for traces of language models) are off: they are eight processes more.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing, suppress

from homo_dp.console.options import Parser, Screen, add_screen_arguments, run, screen_from_arguments
from homo_dp.core.errors import ConfigError
from homo_dp.tracking.mlflow.experiment_view import VIEW, view_address
from homo_dp.tracking.mlflow.uris import database, missing_file

EXAMPLES = """examples:
  python -m homo_dp.ui
  python -m homo_dp.ui --uri sqlite:////srv/runs/mlflow.db --port 5001"""
# Set unless the user's environment says otherwise.
SETTINGS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Say where the pages are and become the server."""
    options = make_parser().parse_args(arguments)
    if not 0 < options.port < 65536:
        raise ConfigError(f"--port {options.port}: must be a port, 1 to 65535")
    if (missing := missing_file(options.uri)) is not None:
        raise ConfigError(
            f"--uri {options.uri}: {missing} is not there; train first, or name another store"
        )
    _say(screen_from_arguments(options), options.uri, f"http://127.0.0.1:{options.port}")
    server = [
        "server",
        "--backend-store-uri",
        options.uri,
        "--host",
        "127.0.0.1",
        "--port",
        str(options.port),
    ]
    os.environ.update(
        SETTINGS | {name: os.environ[name] for name in SETTINGS if name in os.environ}
    )
    sys.stdout.flush()
    os.execv(
        sys.executable, [sys.executable, "-m", "mlflow", *server, "--workers", "1"]
    )  # Ctrl-C is then the server's


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.ui", description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "--uri",
        default="sqlite:///mlflow.db",
        metavar="URI",
        help="the store (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=5000,
        metavar="N",
        help="port on 127.0.0.1 (default: %(default)s)",
    )
    add_screen_arguments(parser)
    return parser


def _say(screen: Screen, uri: str, server: str) -> None:
    pages = [view_address(server, number) for number in _experiments(uri)]
    screen.line(
        f"MLflow shows the runs on {pages[0] if len(pages) == 1 else server} (Ctrl-C ends it)"
    )
    for page in pages if len(pages) > 1 else ():
        screen.line(f"  {page}")


def _experiments(uri: str) -> list[str]:
    """The experiments of a store in a file that have our first view."""
    path = database(uri)
    found: list[str] = []
    if path is not None:
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store,
        ):
            query = "SELECT experiment_id FROM experiment_tags WHERE key = ? ORDER BY experiment_id"
            found = [
                str(number)
                for (number,) in store.execute(query, (f"mlflow.sharedViewState.{VIEW}",))
            ]
    return found


if __name__ == "__main__":
    run(main)
