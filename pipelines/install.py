"""Install homo_dp and what locks/ pins for it into the environment of this Python.

``python pipelines/install.py --torch cpu`` takes the build of torch for CPUs where the package
index has it, and the default build where not. ``--torch cuda`` takes the default build, which on
Linux brings the CUDA libraries.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "locks"
PIP = [sys.executable, "-m", "pip", "install"]
CPU = "torch: the build for CPUs, 0.2 GB to download"
DEFAULT = "torch: the default build; on Linux with the CUDA libraries, 2.9 GB to download"
NO_CPU = (
    "torch: the package index that pip is configured for has no build for CPUs that fits this"
    " Python; an index or a folder that has it can be named in PIP_EXTRA_INDEX_URL or"
    " PIP_FIND_LINKS"
)


def main() -> int:
    """Install, and say which build of torch this takes."""
    parser = argparse.ArgumentParser(description="Install homo_dp from its locks.")
    parser.add_argument("--torch", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--editable", action="store_true", help="run from the source tree")
    given = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036
        print(f"python3 is {sys.version.split()[0]}; homo_dp needs 3.11 or newer", file=sys.stderr)
        return 2
    locks = ["-r", str(LOCKS / "run.txt"), "-r", str(torch_lock(given.torch))]
    ours = ["--no-deps", "--no-build-isolation", *(["-e"] if given.editable else []), str(ROOT)]
    for arguments in (["--require-hashes", *locks], ours):
        done = subprocess.run([*PIP, *arguments], check=False)
        if done.returncode:
            return done.returncode
    return 0


def torch_lock(wanted: str) -> Path:
    """The lock of the build of torch to install: ``wanted`` is ``cpu`` or ``cuda``."""
    cpu = LOCKS / "torch-cpu.txt"
    if wanted == "cpu":
        if _offered(cpu):
            print(CPU, flush=True)
            return cpu
        print(NO_CPU, flush=True)
    print(DEFAULT, flush=True)
    return LOCKS / "torch-cuda.txt"


def _offered(lock: Path) -> bool:
    """Whether pip finds what a lock pins."""
    probe = [*PIP, "--dry-run", "--no-deps", "--require-hashes", "-r", str(lock)]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
