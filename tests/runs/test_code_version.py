"""The commit that a run's code has, from real repositories."""

import subprocess
from pathlib import Path

from homo_dp.runs.code_version import COMMIT_TAG, commit_tags


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    done = subprocess.run(
        ["git", "-C", str(folder), *author, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    assert commit_tags(tmp_path) == {}
    git(tmp_path, "init", "-q")
    assert commit_tags(tmp_path) == {}  # nothing is committed yet
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    commit = {COMMIT_TAG: git(tmp_path, "rev-parse", "HEAD")}
    assert commit_tags(tmp_path) == commit
    git(tmp_path, "pack-refs", "--all")
    assert commit_tags(tmp_path) == commit
    git(tmp_path, "checkout", "-q", "--detach")
    assert commit_tags(tmp_path) == commit
