"""Ledgers that were cut, edited or killed: each kind of damage is found and named, each crash is
repaired.
"""

import errno
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger import Ledger, LedgerRow
from homo_dp.privacy.ledger.hash_chain import Head, read_head
from homo_dp.privacy.ledger.rows import row_hash
from tests.privacy import ledger_parts as parts
from tests.privacy.ledger_parts import FREE, hidden_spends, in_process, ledger_of, release

COLUMNS = {
    "run": "'other'",
    "dataset": "'other'",
    "unit": "'user'",
    "relation": "'replace_one'",
    "party": "'b'",
    "round": "99",
    "kind": "'other'",
    "event": "replace(event, '20.0', '90.0')",
    "delta": "0.5",
    "epsilon_pld": "NULL",
    "epsilon_rdp": "0.001",
    "sigma": "900",
    "observer": "'model_reader'",
    "noise": "'secure noise'",
    "time": "'2000-01-01'",
    "message_sha256": "'00'",
    "lifetime_order": "2.0",
    "previous_hash": "hash",
    "hash": "previous_hash",
    "salt": "'00'",
    "first_row": "1",
    "checkpoint": "hash",
}


def execute(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def rewrite(path: Path, row: int, **changes: object) -> None:
    """An editor who knows the format: the edited row gets the right hash of its own."""
    with sqlite3.connect(path) as database:
        names = [column[1] for column in database.execute("PRAGMA table_info(releases)")]
        values = database.execute("SELECT * FROM releases WHERE row = ?", (row,)).fetchone()
        fields = dict(zip(names, values, strict=True)) | changes
        fields["hash"] = row_hash(asdict(LedgerRow(**fields)))
        database.execute("DELETE FROM releases WHERE row = ?", (row,))
        database.execute(
            f"INSERT INTO releases VALUES ({','.join('?' * len(names))})",
            [fields[name] for name in names],
        )
    database.close()


def set_head(path: Path, text: str) -> None:
    path.with_name(path.name + ".head").write_text(text)


def assert_found(path: Path, named: str) -> None:
    """The damage is named by verify, and the ledger takes no charge any more."""
    with Ledger(path, read_only=True) as reader, pytest.raises(LedgerError, match=named) as error:
        reader.verify()
    assert "\n" not in str(error.value)
    with pytest.raises(LedgerError, match=named):
        Ledger(path)


@pytest.mark.parametrize("column", COLUMNS)
def test_an_edited_column_is_found(tmp_path: Path, column: str) -> None:
    path = ledger_of(tmp_path)
    execute(path, f"UPDATE releases SET {column} = {COLUMNS[column]} WHERE row = 3")
    assert_found(path, "row=3 ")


def test_every_column_is_tried(tmp_path: Path) -> None:
    assert set(COLUMNS) | {"row"} == set(LedgerRow.__dataclass_fields__)


def test_text_that_is_no_text_is_found(tmp_path: Path) -> None:
    path = ledger_of(tmp_path)
    execute(path, "UPDATE releases SET party = CAST(x'ff41' AS TEXT) WHERE row = 3")
    assert_found(path, "row=3 ")


@pytest.mark.parametrize(("row", "named"), [(1, "row=1 "), (3, "row=3 "), (4, "row=4 ")])
def test_a_deleted_row_is_found(tmp_path: Path, row: int, named: str) -> None:
    path = ledger_of(tmp_path)
    execute(path, f"DELETE FROM releases WHERE row = {row}")
    assert_found(path, named)


def test_a_deleted_row_with_the_others_moved_up_is_found(tmp_path: Path) -> None:
    path = ledger_of(tmp_path)
    execute(
        path,
        "DELETE FROM releases WHERE row = 3",
        "UPDATE releases SET row = row - 1 WHERE row > 3",
    )
    assert_found(path, "row=3 ")


def test_reordered_rows_are_found(tmp_path: Path) -> None:
    path = ledger_of(tmp_path)
    execute(
        path,
        *(
            f"UPDATE releases SET row = {new} WHERE row = {old}"
            for old, new in ((2, -1), (3, 2), (-1, 3))
        ),
    )
    assert_found(path, "row=2 ")


@pytest.mark.parametrize("row", [1, 3])
def test_a_row_edited_together_with_its_hash_is_found(tmp_path: Path, row: int) -> None:
    path = ledger_of(tmp_path)
    rewrite(path, row, sigma=900.0)
    assert_found(path, f"row={row + 1} does not follow row={row}")


def test_the_last_row_edited_together_with_its_hash_is_found(tmp_path: Path) -> None:
    path = ledger_of(tmp_path)
    rewrite(path, 5, sigma=900.0)
    assert_found(path, "row=5 is not the row that its head recorded")


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_cut_tail_is_found(tmp_path: Path, rows: int) -> None:
    path = ledger_of(tmp_path)
    execute(path, f"DELETE FROM releases WHERE row > {5 - rows}")
    assert_found(path, f"row={6 - rows} is missing")


def test_an_older_copy_of_the_database_is_found(tmp_path: Path) -> None:
    path = ledger_of(tmp_path)
    shutil.copy(path, tmp_path / "old")
    with Ledger(path) as ledger:
        ledger.charge(release(6), FREE)
    shutil.copy(tmp_path / "old", path)
    assert_found(path, "row=6 is missing")


def test_rows_beyond_one_crash_are_found(tmp_path: Path) -> None:
    path = ledger_of(tmp_path)
    with Ledger(path) as ledger:
        third = ledger.rows()[2]
    set_head(path, json.dumps(asdict(Head(3, third.hash))))
    assert_found(path, "row=5 was not written")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"count": -1, "hash": ""}', '{"count": true, "hash": ""}', "[" * 9999],
)
def test_a_garbled_head_is_found(tmp_path: Path, text: str) -> None:
    path = ledger_of(tmp_path)
    set_head(path, text)
    assert_found(path, "head=.*count")


def test_another_hash_in_the_head_is_found(tmp_path: Path) -> None:
    path = ledger_of(tmp_path)
    set_head(path, json.dumps({"count": 5, "hash": "0" * 64}))
    assert_found(path, "row=5 ")


@pytest.mark.parametrize("rows", [1, 5])
def test_a_missing_head_is_found(tmp_path: Path, rows: int) -> None:
    path = ledger_of(tmp_path, rows)
    path.with_name("ledger.sqlite.head").unlink()
    assert_found(path, f"{rows} rows but no ledger.sqlite.head")


def test_a_missing_database_is_found_and_not_made_anew(tmp_path: Path) -> None:
    path = ledger_of(tmp_path)
    path.unlink()
    with pytest.raises(
        LedgerError, match=r"row=1 and all after it are gone.* To start a trial afresh, remove"
    ):
        Ledger(path)
    assert not path.exists()
    path.touch()
    with pytest.raises(LedgerError, match="row=1 is missing"):
        Ledger(path)


def test_one_row_ahead_is_a_crash_and_repaired(tmp_path: Path) -> None:
    path = ledger_of(tmp_path)
    with Ledger(path) as ledger:
        fourth = ledger.rows()[3]
    set_head(path, json.dumps(asdict(Head(4, fourth.hash))))
    with Ledger(path, read_only=True) as reader:
        assert reader.verify().count == 5
    assert (read_head(path) or Head(0, "")).count == 4  # a reader changes nothing
    with Ledger(path) as ledger:
        assert read_head(path) == ledger.head() == ledger.verify()


def test_damage_while_it_is_open_is_found(tmp_path: Path) -> None:
    path = ledger_of(tmp_path)
    for statement in ("DELETE FROM releases WHERE row = 5", "DELETE FROM releases WHERE row = 2"):
        with Ledger(path) as ledger:
            shutil.copy(path, tmp_path / "whole")
            execute(path, statement)
            with pytest.raises(LedgerError, match="row="):
                ledger.charge(release(6), FREE)
        shutil.copy(tmp_path / "whole", path)
    with Ledger(path) as ledger:
        execute(path, "UPDATE releases SET sigma = 900 WHERE row = 2")
        with pytest.raises(LedgerError, match="row=2 "):
            ledger.charged("run-1", "a", 2, "update")
        with pytest.raises(LedgerError, match="row=2 "):
            ledger.rows()


@pytest.mark.parametrize("kind", ["directory", "text", "other database", "newer", "inside a file"])
def test_what_is_no_ledger_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "ledger.sqlite"
    if kind == "directory":
        path.mkdir()
    elif kind == "text":
        path.write_text("a ledger, honestly\n" * 100)
    elif kind == "other database":
        execute(path, "CREATE TABLE notes (text)")
    elif kind == "newer":
        execute(ledger_of(tmp_path), "PRAGMA user_version = 4")
    else:
        path.touch()
        path = path / "ledger.sqlite"
    before = path.read_bytes() if path.is_file() else None
    for read_only in (False, True):
        with pytest.raises(LedgerError, match="ledger=") as error:
            Ledger(path, read_only=read_only)
        assert "\n" not in str(error.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_head_that_cannot_be_written_keeps_the_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ledger_of(tmp_path, 1)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Ledger(path) as ledger:
        with monkeypatch.context() as patched:
            patched.setattr("homo_dp.core.files.os.replace", no_room)
            with pytest.raises(LedgerError, match="nothing was released"):
                ledger.charge(release(2), FREE)
        assert ledger.charge(release(2), FREE).row == 2  # no second spend
        assert read_head(path) == ledger.verify()


def test_a_full_disk_stops_in_one_line_and_resumes(tmp_path: Path) -> None:
    assert in_process(parts.fill_the_disk, tmp_path) == 0


def test_a_directory_without_permission_is_refused() -> None:
    with tempfile.TemporaryDirectory() as name:  # not tmp_path, which no other user may enter
        folder = Path(name) / "ledgers"
        Path(name).chmod(0o755)
        folder.mkdir()
        assert in_process(parts.without_permission, folder) == 0
        folder.chmod(0o755)


ROUNDS = 3
WRITE = ("before_write", "before_fsync", "before_rename", "after_rename", "after_sync")
POINTS = [
    "ledger.create.before_commit",
    "ledger.create.after_commit",
    # the first is the head of no rows
    *(f"ledger.head.{step}:{time}" for step in WRITE for time in (1, 2, 3)),
    *(
        f"ledger.{step}:{time}"
        for step in ("before_commit", "after_commit", "charged")
        for time in (1, 2, 3)
    ),
    *(f"outbox.{step}:{time}" for step in (*WRITE, "after_put", "after_charge") for time in (1, 2)),
    *(f"published:{time}" for time in (1, 3)),
]


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_a_run_goes_on_and_hides_no_spend(tmp_path: Path, point: str) -> None:
    assert in_process(parts.party, tmp_path, ROUNDS, point) == -signal.SIGKILL
    assert hidden_spends(tmp_path) == []
    # the budget is for three rounds and no more
    assert in_process(parts.party, tmp_path, ROUNDS) == 0
    assert hidden_spends(tmp_path) == []
    messages = set(parts.published(tmp_path))
    assert {round for round, _ in messages} == {1, 2, 3}
    assert len(messages) == ROUNDS  # what was sent twice was the same, byte for byte
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().count == ROUNDS
    assert list((tmp_path / "outbox").iterdir()) == []


@pytest.mark.parametrize(
    ("style", "point"), [("publish_first", "ledger.before_commit"), ("made_again", "published")]
)
def test_a_wrong_order_hides_a_spend(tmp_path: Path, style: str, point: str) -> None:
    """The broken orders: the check above can fail."""
    assert in_process(parts.party, tmp_path, ROUNDS, point, style) == -signal.SIGKILL
    found = hidden_spends(tmp_path)
    in_process(parts.party, tmp_path, ROUNDS, None, style)
    assert found + hidden_spends(tmp_path) != []


def test_killed_at_any_moment_the_ledger_holds_what_was_released(tmp_path: Path) -> None:
    """Kills that fall inside SQLite's own writes, too: whenever the parent happens to strike."""
    path, released = tmp_path / "ledger.sqlite", tmp_path / "released"
    for kill in range(8):
        process = parts.start(parts.charge_without_end, path, released)
        wait_for(lambda wanted=3 * kill + 3: len(lines(released)) >= wanted)  # type: ignore[misc]
        process.kill()
        process.join()
        with Ledger(path, read_only=True) as reader:
            assert {row.round for row in reader.rows()} >= set(lines(released))
        with Ledger(path) as ledger:
            assert read_head(path) == ledger.verify()


def lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.001)
    raise TimeoutError("the other process did not get there")


def test_the_environment_names_the_crash_point(tmp_path: Path) -> None:
    code = (
        "from homo_dp.core.crash_points import crash_point as c; c('a'); c('b'); print('once', "
        "flush=True); c('b')"
    )
    for value, code_wanted, output in (
        ("b:2", -signal.SIGKILL, "once\n"),
        ("b", -signal.SIGKILL, ""),
        ("", 0, "once\n"),
    ):
        environment = os.environ | {"HOMO_DP_CRASH_AT": value}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (code_wanted, output)


@pytest.mark.parametrize("name", ["ledger.sqlite", "ledger.sqlite.head"])
def test_a_ledger_that_others_can_write_is_refused_until_it_is_mended(
    tmp_path: Path, name: str
) -> None:
    path = ledger_of(tmp_path, 1)
    path.with_name(name).chmod(0o620)
    with pytest.raises(LedgerError, match=rf"has mode 0620.*chmod go-w .*{name}`"):
        Ledger(path)
    with Ledger(path, read_only=True) as ledger:  # a copy may be looked at: its chain is checked
        assert ledger.verify().count == 1
    path.with_name(name).chmod(0o600)
    with Ledger(path) as ledger:
        assert ledger.verify().count == 1
