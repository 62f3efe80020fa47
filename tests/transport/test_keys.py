"""Key files: private, never overwritten, readable lines; and the command that makes them."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from homo_dp.errors import InputError
from homo_dp.transport.keys import (
    allow_list,
    new_key_pair,
    parse_public_line,
    read_key_pair,
    read_public_key,
    write_key_pair,
)


def test_files_come_back_and_the_private_one_is_private(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        pair = new_key_pair("bank_a")
        private, public = write_key_pair(pair, tmp_path / "keys")
    finally:
        os.umask(previous)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert read_key_pair(private) == pair
    assert read_public_key(public) == pair.public
    assert str(pair.raw) not in repr(pair)
    assert pair.raw.hex() not in repr(pair)


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    write_key_pair(new_key_pair("a"), tmp_path)
    before = (tmp_path / "a.key").read_bytes()
    with pytest.raises(InputError, match="exists"):
        write_key_pair(new_key_pair("a"), tmp_path)
    assert (tmp_path / "a.key").read_bytes() == before
    (tmp_path / "b.pub").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        write_key_pair(new_key_pair("b"), tmp_path)
    assert not (tmp_path / "b.key").exists()
    (tmp_path / "c.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="exists"):
        write_key_pair(new_key_pair("c"), tmp_path)


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    private, public = write_key_pair(new_key_pair("a"), tmp_path)
    private.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        read_key_pair(private)
    public.chmod(0o600)
    with pytest.raises(InputError, match="no private key"):
        read_key_pair(public)
    with pytest.raises(InputError, match=f"does not exist.* new none --dir {tmp_path}`"):
        read_key_pair(tmp_path / "none.key")
    with pytest.raises(InputError, match=r"does not exist.*from the other side"):  # who made it here would replace it
        read_public_key(tmp_path / "none.pub")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519 AAAA",
        "homo_dp-key-v2 a " + "A" * 88,
        "homo_dp-key-v1 a AAAA",
        "homo_dp-key-v1 ../a " + "A" * 88,
        "homo_dp-key-v1 a " + "?" * 88,
        "homo_dp-key-v1 a " + "ä" * 88,
        "homo_dp-key-v1 a A A",
    ],
)
def test_damaged_lines_are_refused(line: str) -> None:
    with pytest.raises(InputError):
        parse_public_line(line)


def test_the_allow_list_keeps_names_and_keys_apart() -> None:
    a, b = new_key_pair("a").public, new_key_pair("b").public
    assert allow_list([a, b]) == {"a": a, "b": b}
    for name in ("a", "A"):
        with pytest.raises(InputError, match="twice"):
            allow_list([a, new_key_pair(name).public])
    with pytest.raises(InputError, match="two names"):
        allow_list([a, parse_public_line(a.line.replace(" a ", " c "))])


def test_tags_are_stable_and_differ_between_holders() -> None:
    a, b = new_key_pair("a"), new_key_pair("b")
    assert a.tag("x") == a.tag("x") != a.tag("y")
    assert a.tag("x") != b.tag("x")


def keys(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "homo_dp.keys", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_the_command_makes_and_shows_keys(tmp_path: Path) -> None:
    made = keys("new", "bank_a", "--dir", "sub", cwd=tmp_path)
    assert made.returncode == 0
    line = made.stdout.strip()
    assert parse_public_line(line).name == "bank_a"
    assert "stays with you" in made.stderr
    for file in ("sub/bank_a.key", "sub/bank_a.pub"):
        shown = keys("show", file, "--quiet", cwd=tmp_path)
        assert (shown.returncode, shown.stdout.strip(), shown.stderr) == (0, line, "")
    again = keys("new", "bank_a", "--dir", "sub", "--quiet", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.count("\n") == 1
    assert "exists" in again.stderr
    assert keys("new", "Bank/A", cwd=tmp_path).returncode == 2


def test_the_command_does_not_load_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from homo_dp.keys import main; main(['new', 'a', '--quiet']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'mlflow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
