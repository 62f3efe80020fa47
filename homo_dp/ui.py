"""Show the runs in MLflow's pages: ``python -m homo_dp.ui [--uri sqlite:///mlflow.db] [--port
5000]``.

Starts MLflow's own server on this machine with what looking at runs needs, and prints the address
of the table of runs. MLflow's jobs (for traces of language models) are off: they are eight
processes more.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from homo_dp.console.options import Parser, Screen, add_screen_arguments, run, screen_from_arguments
from homo_dp.core.errors import ConfigError
from homo_dp.tracking.mlflow.experiment_view import VIEW, runs_address, view_address
from homo_dp.tracking.mlflow.uris import database, is_local, missing_file

EXAMPLES = """examples:
  python -m homo_dp.ui
  python -m homo_dp.ui --uri sqlite:////srv/runs/mlflow.db --port 5001"""
APP = "homo_dp"  # our pages, as MLflow finds them by the entry point in pyproject.toml
# Set unless the user's environment says otherwise.
SETTINGS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Say where the pages are and become the server."""
    options = make_parser().parse_args(arguments)
    if not 0 < options.port < 65536:
        raise ConfigError(f"--port {options.port}: must be a port, 1 to 65535")
    if not is_shown(options.uri):
        raise ConfigError(
            f"--uri {options.uri}: is not a store that can be shown; give a database such as "
            "sqlite:///mlflow.db, or open the address of a tracking server in a browser"
        )
    if (missing := missing_file(options.uri)) is not None:
        raise ConfigError(
            f"--uri {options.uri}: {missing} is not there; train first, or name another store"
        )
    _check_port(options.port)
    experiments, ours = _experiments(options.uri), _has_pages()
    pages = runs_address if ours else view_address
    address = f"http://127.0.0.1:{options.port}"
    _say(
        screen_from_arguments(options), address, [pages(address, number) for number in experiments]
    )
    server = [
        "server",
        "--backend-store-uri",
        options.uri,
        "--host",
        "127.0.0.1",
        "--port",
        str(options.port),
        *(["--app-name", APP] if ours else []),
    ]
    os.environ.update(
        SETTINGS | {name: os.environ[name] for name in SETTINGS if name in os.environ}
    )
    os.environ["HOMO_DP_UI_EXPERIMENTS"] = ",".join(experiments)
    sys.stdout.flush()
    # Ctrl-C is then the server's
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", *server, "--workers", "1"])


def is_shown(uri: str) -> bool:
    """Whether MLflow's server can stand before a store: a file, a folder or a database.

    >>> is_shown("sqlite:///mlflow.db"), is_shown("http://127.0.0.1:5000")
    (True, False)
    """
    kind = urlsplit(uri).scheme.partition("+")[0]
    return is_local(uri) or kind in ("sqlite", "postgresql", "mysql", "mssql")


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


def _check_port(port: int) -> None:
    """Bind the port and let go of it again, before its address is printed: a server of somebody
    else may be there.
    """
    with socket.socket() as found:
        # as MLflow's server does, so that a port that was just closed is not refused
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"--port {port}: cannot be bound on 127.0.0.1 ({error.strerror}); give another port"
            ) from None


def _has_pages() -> bool:
    """Whether MLflow's server finds our pages: this package is installed, and MLflow has the
    server that they are for.
    """
    found = importlib.util.find_spec("mlflow")
    places = () if found is None else found.submodule_search_locations or ()
    fits = any(Path(place, "server", "fastapi_app.py").is_file() for place in places)
    return fits and any(each.name == APP for each in entry_points(group="mlflow.app"))


def _say(screen: Screen, server: str, pages: Sequence[str]) -> None:
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
