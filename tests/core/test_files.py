"""A file is whole or absent, whatever happens on the way."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from homo_dp.core.errors import InputError
from homo_dp.core.files import (
    atomic_write,
    check_writable,
    replacing,
    shared_with_writers,
    sweep,
    write_file,
    write_whole,
)


def test_folders_are_made_and_the_file_is_whole(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b" / "c.txt", b"whole")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == b"whole"


def test_an_error_in_the_block_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_bytes(b"old")

    def fail_half_way() -> None:
        with atomic_write(target) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_link_keeps_pointing_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_only_the_owner_may_read_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    (tmp_path / "old.txt").touch(mode=0o666)
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "a" / "b" / "new.txt", b"")
        write_whole(tmp_path / "old.txt", b"")
        write_file(tmp_path / "a" / "state", b"", point="test")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"a": 0o700, "b": 0o700, "new.txt": 0o600, "old.txt": 0o600, "state": 0o600}


KILLED = """
import sys
from pathlib import Path
from homo_dp.core.files import check_writable, write_file, write_whole
path = Path(sys.argv[1])
{call}
"""


@pytest.mark.parametrize(
    ("point", "call"),
    [
        ("probe.made", 'check_writable(path, "key")'),
        ("state.before_fsync", 'write_file(path, b"new", point="state")'),
        ("state.before_rename", 'write_file(path, b"new", point="state")'),
    ],
)
def test_what_a_kill_left_is_swept_by_the_next_process(
    tmp_path: Path, point: str, call: str
) -> None:
    (tmp_path / "x").write_bytes(b"old")
    command = [sys.executable, "-c", KILLED.format(call=call), str(tmp_path / "x")]
    killed = subprocess.run(command, env=os.environ | {"HOMO_DP_CRASH_AT": point}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    assert (tmp_path / "x").read_bytes() == b"old"
    subprocess.run(command, check=True)
    assert os.listdir(tmp_path) == ["x"]


def test_what_a_living_writer_or_somebody_else_has_there_stays(tmp_path: Path) -> None:
    strangers = [".notes.tmp", "x.tmp", ".x.0123456789abcde.tmp"]
    for name in strangers:
        (tmp_path / name).touch()
    with replacing(tmp_path / "x") as temporary:
        temporary.with_name(temporary.name + "-journal").touch()  # of a database that is being made
        subprocess.run(
            [
                sys.executable,
                "-c",
                KILLED.format(call='write_whole(path.with_name("y"), b"")'),
                str(tmp_path / "x"),
            ],
            check=True,
        )
        assert temporary.exists()
        assert temporary.with_name(temporary.name + "-journal").exists()
    sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([*strangers, "x", "y"])


def test_what_others_can_write_is_named_with_the_command_that_mends_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert shared_with_writers(path) is None
    path.touch()
    for mode in (0o600, 0o644, 0o755):
        path.chmod(mode)
        assert shared_with_writers(path) is None
    for mode in (0o620, 0o602, 0o777):
        path.chmod(mode)
        assert f"chmod go-w {path}" in (shared_with_writers(path) or "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_with_the_name_of_the_option() -> None:
    with pytest.raises(
        InputError, match=r"predictFileName=/dev/full: cannot be written \(No space left"
    ):
        write_whole("/dev/full", b"x" * 100_000, "predictFileName")


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="needs /dev/null")
def test_a_device_is_written_and_not_replaced() -> None:
    write_whole("/dev/null", b"gone")
    assert not Path("/dev/null").is_file()


def test_errors_of_the_block_on_other_files_are_not_blamed_on_the_output(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "out" / "x.txt"):
        (tmp_path / "input.csv").open()
    assert not (tmp_path / "out" / "x.txt").exists()


def test_paths_that_cannot_be_written_are_refused_before_and_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for bad in (tmp_path, tmp_path / "file" / "x.csv", tmp_path / "file" / "deep" / "x.csv"):
        with pytest.raises(InputError, match="key="):
            check_writable(bad, "key")
        with pytest.raises(InputError, match="key="):
            write_whole(bad, b"", "key")


def test_checking_a_path_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "deep" / "x.csv")
    assert os.listdir(tmp_path) == []
