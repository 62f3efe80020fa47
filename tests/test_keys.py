"""The command of keys: makes, shows, renews, accepts and revokes them, without torch."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from homo_dp.keys import main
from homo_dp.transport.keys import parse_public_line, read_key_pair


def test_the_command_renews_accepts_and_revokes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        assert main(arguments) == 0
        return capsys.readouterr().out.strip()

    folder = str(tmp_path / "bank")
    first = said("new", "bank_a", "--dir", folder, "--expires", "2999-12-31")
    assert first.endswith("expires=2999-12-31")
    (tmp_path / "bank_a.pub").write_text(first)  # the aggregator's copy
    renewal = said("renew", f"{folder}/bank_a.key", "--quiet")
    line = said("accept", str(tmp_path / "bank_a.pub"), renewal, "--quiet")
    assert line == read_key_pair(tmp_path / "bank" / "bank_a.key").public.line != first
    assert sorted(os.listdir(folder)) == [
        "bank_a.key",
        "bank_a.key.old-1",
        "bank_a.pub",
        "bank_a.pub.old-1",
    ]
    assert stat.S_IMODE((tmp_path / "bank" / "bank_a.key.old-1").stat().st_mode) == 0o600
    for key in (first, f"{folder}/bank_a.pub"):
        assert said("revoke", key, "--list", str(tmp_path / "revoked"), "--why", "lost") == str(
            tmp_path / "revoked"
        )
    assert (tmp_path / "revoked").read_text().count("# lost\n") == 2


def keys(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "homo_dp.keys", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
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
