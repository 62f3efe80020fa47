"""Install from the locks into empty environments, and train there: ``make test-install``.

The Pythons are Debian's (/usr/bin/python3) and the default one. Each gets a copy of the checkout,
``make train`` and ``pip check``; Debian's also what the checks need, and the site.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEBIAN = "/usr/bin/python3"
OLDEST = (3, 11, 2)
DEVELOPING = ".venv/.homo_dp_developing"


def main() -> int:
    """Try each Python; the exit code of the first that fails."""
    default = shutil.which("python3") or sys.executable
    tried: list[tuple[int, ...]] = []
    for python in (DEBIAN, default):
        version = _version(python)
        if version < OLDEST or version in tried:
            print(f"{python}: Python {version}, not tried")
            continue
        tried.append(version)
        if python == DEBIAN and not _has_venv(python):
            _install_venv()
        with tempfile.TemporaryDirectory() as folder:
            _try(python, Path(folder))
    if not tried:
        print(f"no Python of {'.'.join(map(str, OLDEST))} or newer was there to install with")
    return 0 if tried else 2


def copy_checkout(folder: Path) -> None:
    """Copy the files of the checkout that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def clean_environment(python: str, folder: Path) -> dict[str, str]:
    """Variables of a new terminal in which ``python3`` is ``python``."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (bin_folder / "python3").chmod(0o755)
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "TORCH")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return kept | {"PATH": f"{bin_folder}:/usr/local/bin:/usr/bin:/bin"}


def _try(python: str, folder: Path) -> None:
    checkout = folder / "checkout"
    checkout.mkdir()
    copy_checkout(checkout)
    variables = clean_environment(python, folder)
    print(f"{python}: Python {'.'.join(map(str, _version(python)))}", flush=True)
    _timed(["make", "train"], checkout, variables)
    assert (checkout / "out" / "model.safetensors").is_file()
    if python == DEBIAN:  # the oldest, for which fewest versions fit
        _timed(["make", DEVELOPING, "docs"], checkout, variables)
    _timed([".venv/bin/python", "-m", "pip", "check"], checkout, variables)


def _timed(command: list[str], folder: Path, variables: Mapping[str, str]) -> None:
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    builds = [line for line in done.stdout.splitlines() if line.startswith("torch: ")]
    seconds = time.monotonic() - started
    print("; ".join([f"  {' '.join(command)}: {seconds:.0f} s", *builds]), flush=True)


def _version(python: str) -> tuple[int, ...]:
    """The version of a Python; of one that does not start, nothing."""
    try:
        shown = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout
    except OSError:
        return ()
    return tuple(map(int, shown.split()[1].split(".")))


def _has_venv(python: str) -> bool:
    command = [python, "-c", "import venv, ensurepip"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _install_venv() -> None:
    """Debian's python3 comes without ensurepip."""
    if os.geteuid() != 0:
        sys.exit(f"{DEBIAN} has no venv: install it (Debian: apt-get install python3-venv)")
    subprocess.run(["apt-get", "update", "-q"], check=True)
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "python3-venv"]
    subprocess.run(install, check=True)


if __name__ == "__main__":
    sys.exit(main())
