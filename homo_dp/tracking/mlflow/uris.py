"""Where runs are kept: which stores are on this machine, and addresses that hold from any
folder.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

SQLITE = "sqlite:///"


def is_local(uri: str) -> bool:
    """Whether a store is a file or folder of this machine; a server is not, whatever its address.

    >>> is_local("sqlite:///mlflow.db"), is_local("mlruns"), is_local("http://127.0.0.1:5000")
    (True, True, False)
    """
    return uri.startswith(SQLITE) or urlsplit(uri).scheme in ("", "file")


def absolute(uri: str) -> str:
    """The same store, named so that the working directory does not matter.

    >>> absolute("https://tracking.example/")
    'https://tracking.example/'
    """
    if uri.startswith(SQLITE):
        path, mark, options = uri.removeprefix(SQLITE).partition("?")
        return f"{SQLITE}{Path(path).resolve()}{mark}{options}"
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).resolve().as_uri()
    return Path(uri).resolve().as_uri() if parts.scheme == "" else uri


def artifact_location(uri: str) -> str | None:
    """Where a new experiment of a database file keeps its files: beside it; None leaves it to
    the store.
    """
    path = database(uri)
    return None if path is None else (path.resolve().parent / "mlartifacts").as_uri()


def database(uri: str) -> Path | None:
    """The file that an address names, if it names one.

    >>> database("sqlite:///runs/mlflow.db?timeout=9").name, database("http://127.0.0.1:5000")
    ('mlflow.db', None)
    """
    return Path(uri.removeprefix(SQLITE).partition("?")[0]) if uri.startswith(SQLITE) else None


def missing_file(uri: str) -> Path | None:
    """The database file that an address names and that is not there; MLflow would make an empty
    one to look into.
    """
    path = database(uri)
    return None if path is None or path.is_file() else path
