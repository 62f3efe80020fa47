"""Which code a run was made with, beyond its version number: the commit, where it runs from a
checkout.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

# the one that MLflow's pages show as the version of the source
COMMIT_TAG = "mlflow.source.git.commit"


def commit_tags(root: Path = Path(__file__).parents[2]) -> dict[str, str]:
    """The commit of a checkout as a tag for MLflow; none where the code was installed from a
    package.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        commit = _commit(root / ".git")
        if re.fullmatch("[0-9a-f]{40,64}", commit):
            return {COMMIT_TAG: commit}
    return {}


def _commit(git: Path) -> str:
    """What HEAD names, read from git's own files: starting git takes longer than a round."""
    if git.is_file():  # a further work tree, whose file names its folder
        git = (git.parent / git.read_text().strip().removeprefix("gitdir: ")).resolve()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    if (git / "commondir").is_file():
        git = (git / (git / "commondir").read_text().strip()).resolve()
    if (git / name).is_file():
        return (git / name).read_text().strip()
    packed = (line.split() for line in (git / "packed-refs").read_text().splitlines())
    return next((parts[0] for parts in packed if len(parts) == 2 and parts[1] == name), "")
