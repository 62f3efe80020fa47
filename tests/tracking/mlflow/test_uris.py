"""Which stores are on this machine, and addresses that hold from any folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from homo_dp.tracking.mlflow.uris import (
    absolute,
    artifact_location,
    database,
    is_local,
    missing_file,
)


@pytest.mark.parametrize(
    ("uri", "local"),
    [
        ("sqlite:///mlflow.db", True),
        ("mlruns", True),
        ("file:///tmp/mlruns", True),
        ("http://127.0.0.1:5000", False),
        ("postgresql://localhost/mlflow", False),
        ("databricks://profile", False),
    ],
)
def test_only_files_are_local(uri: str, local: bool) -> None:
    """A server on this machine may keep its files anywhere, so it is not."""
    assert is_local(uri) is local


def test_addresses_hold_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("sqlite:///runs/m.db?timeout=9") == f"sqlite:///{tmp_path}/runs/m.db?timeout=9"
    assert absolute("mlruns") == (tmp_path / "mlruns").as_uri()
    assert absolute("http://h/") == "http://h/"
    for uri in ("sqlite:///m.db", "mlruns", "http://h/"):
        assert absolute(absolute(uri)) == absolute(uri)


def test_files_lie_beside_the_database(tmp_path: Path) -> None:
    assert artifact_location(f"sqlite:///{tmp_path}/m.db") == (tmp_path / "mlartifacts").as_uri()
    assert artifact_location("http://h/") is None


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    assert missing_file(f"sqlite:///{path}") == path
    path.touch()
    assert missing_file(f"sqlite:///{path}") is None
    assert missing_file("http://h/") is None
    assert database("mlruns") is None
