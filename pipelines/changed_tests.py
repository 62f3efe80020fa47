"""The test files that mirror what a change in hand touches: python pipelines/changed_tests.py
[BASE].
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Quick, and they fail on most mistakes that matter: what a change that has no tests of its own is
# tried against.
HEART = ("tests/privacy/accounting", "tests/privacy/noise", "tests/config")


def mirrored(changed: list[str]) -> list[str]:
    """Tests of changed files: themselves, or ``tests/room/test_module.py`` of
    ``homo_dp/room/module.py``.

    >>> mirrored(["homo_dp/data/parties.py", "README.md", "homo_dp/no_such_module.py"])
    ['tests/data/test_parties.py']
    """
    found = []
    for name in map(Path, changed):
        if name.suffix != ".py":
            continue
        if name.parts[0] == "tests" and name.name.startswith("test_"):
            found.append(name)
        elif name.parts[0] == "homo_dp":
            found.append(Path("tests", *name.parts[1:-1], f"test_{name.name}"))
    return list(dict.fromkeys(str(path) for path in found if (ROOT / path).is_file()))


def changed_files(base: str) -> list[str]:
    """Files that differ from where the branch left ``base``, and those that git does not know
    yet.
    """
    since = subprocess.run(
        ["git", "merge-base", base, "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = ["git", "diff", "--name-only", since.stdout.strip() or "HEAD"]
    fresh = ["git", "ls-files", "--others", "--exclude-standard"]
    lines = [
        subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=False).stdout
        for ask in (names, fresh)
    ]
    return [name for text in lines for name in text.splitlines()]


if __name__ == "__main__":
    base = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    print(" ".join(mirrored(changed_files(base)) or HEART))
