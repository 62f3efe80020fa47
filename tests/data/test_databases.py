"""Tables in databases: SQLite always, PostgreSQL where Debian's server is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import sqlalchemy

from homo_dp.core.errors import DataError
from homo_dp.data import describe
from homo_dp.data.databases import is_database
from homo_dp.data.describe import draft
from homo_dp.data.outer_bounds import outer_draft
from homo_dp.data.readers import header, read_chunks, read_table
from homo_dp.train import main as train

ROWS = pd.DataFrame(
    {
        "id": range(60),
        "age": [20 + at % 50 for at in range(60)],
        "smokes": [at % 3 == 0 for at in range(60)],
        "y": [at % 2 for at in range(60)],
    }
)


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/clinic.db")
    ROWS.to_sql("patients", engine, index=False)
    engine.dispose()
    return f"sqlite:///{tmp_path}/clinic.db"


def server_program(name: str) -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return found[-1] if found else None


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[str]:
    """A real server with its own files, reached by a socket in its own folder only."""
    initdb, program = server_program("initdb"), server_program("pg_ctl")
    if initdb is None or program is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: postgresql)")
    folder = Path("/tmp") / f"homo_dp_pg_{os.getpid()}"  # a socket's path must be short
    folder.mkdir(mode=0o700)
    who: dict[str, object] = {}
    if os.getuid() == 0:  # the server refuses to run as root
        user = pwd.getpwnam("nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    place = folder / "data"
    quiet = {
        "check": True,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "cwd": folder,
        **who,
    }
    try:
        subprocess.run([initdb, "-D", place, "-U", "ann", "-A", "trust", "--no-sync"], **quiet)  # type: ignore[call-overload]
        options = f"-c listen_addresses='' -k {folder} -c fsync=off"
        subprocess.run([program, "-D", place, "-w", "-o", options, "start"], **quiet)  # type: ignore[call-overload]
        try:
            address = f"postgresql+psycopg://ann:secret@/postgres?host={folder}"
            engine = sqlalchemy.create_engine(address)
            ROWS.to_sql("patients", engine, index=False)
            engine.dispose()
            yield address
        finally:
            subprocess.run([program, "-D", place, "-m", "immediate", "stop"], **quiet)  # type: ignore[call-overload]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_reads(address: str) -> None:
    assert is_database(f"{address}#patients")
    assert header(f"{address}#patients") == list(ROWS.columns)
    whole = read_table(f"{address}#patients")
    assert whole["age"].tolist() == ROWS["age"].tolist()
    pieces = list(
        read_chunks(f"{address}#SELECT id, age FROM patients WHERE age > 30 ORDER BY id", 7)
    )
    assert max(map(len, pieces)) == 7
    assert sum(map(len, pieces)) == (ROWS["age"] > 30).sum()
    assert pieces[1].index[0] == 7


def test_sqlite(sqlite: str) -> None:
    check_reads(sqlite)


def test_a_federation_trains_on_postgresql_and_says_no_password(
    postgres: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_reads(postgres)
    with pytest.raises(DataError, match="cannot be read") as refused:
        read_table(f"{postgres}#nobody")
    assert "secret" not in str(refused.value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(
        f"""
        data:
          name: clinic
          files: {{a: '{postgres}#patients', b: '{postgres}#SELECT * FROM patients WHERE id < 30'}}
          columns: {{age: {{bounds: [0, 120]}}, smokes: {{levels: [true, false]}}}}
          bounds_source: codebook
        train: {{rounds: 2}}
        tracking: {{enabled: false}}
        """
    )
    assert train(["--config", "c.yaml"]) == 0
    assert "secret" not in "".join(capsys.readouterr())
    assert "secret" not in (tmp_path / "out" / "indicator_config.yaml").read_text()


def test_a_table_of_a_database_is_described(sqlite: str) -> None:
    drafted = draft(f"{sqlite}#patients").text
    assert "age: {bounds: [20, 70]}" in drafted
    assert "label: y" in drafted
    assert "age" in outer_draft(f"{sqlite}#patients").text


def test_a_draft_says_no_password(sqlite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "_look_at_tables", lambda *_: ({}, []))
    drafted = draft("mysql+pymysql://ann:secret@127.0.0.1/clinic#patients").text
    assert "ann:***@127.0.0.1" in drafted
    assert "secret" not in drafted


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("", "names no table"),
        ("#patient", "no such table"),
        ("#SELECT nix FROM patients", "no such column"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(sqlite: str, table: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as refused:
        read_table(f"{sqlite}{table}")
    assert "\n" not in str(refused.value)


def test_a_driver_that_is_missing_is_named() -> None:
    with pytest.raises(DataError, match="is not installed; pip install"):
        read_table("mysql+mysqlconnector://ann:secret@127.0.0.1/x#t")


def test_nothing_is_written(sqlite: str, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read_table(f"{sqlite}#SELECT 1; DROP TABLE patients")
    with sqlite3.connect(tmp_path / "clinic.db") as database:
        assert database.execute("SELECT COUNT(*) FROM patients").fetchone() == (60,)
    database.close()
