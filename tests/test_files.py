"""A file is whole or absent, whatever happens on the way."""

import os
from pathlib import Path

import pytest

from homo_dp.errors import InputError
from homo_dp.files import atomic_write, check_writable, write_whole


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


def test_the_users_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "out.txt", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "out.txt").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_with_the_name_of_the_option() -> None:
    with pytest.raises(InputError, match=r"predictFileName=/dev/full: cannot be written \(No space left"):
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
