"""Make an environment with Flower: ``python pipelines/flower_environment.py FOLDER``.

flwr needs older versions of some packages that this environment has. The new environment holds what
locks/flower.txt pins; every other package, torch above all, it takes from this one.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Make the environment; an older one in its folder is replaced."""
    folder = Path(sys.argv[1])
    venv.create(folder, clear=True, symlinks=True)
    python = folder / "bin" / "python"
    lock = ["--require-hashes", "--no-deps", "-r", str(ROOT / "locks" / "flower.txt")]
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", *lock]
    subprocess.run(install, check=True)
    # After the installation: pip would call what it finds here installed already.
    (packages,) = (folder / "lib").glob("python*/site-packages")
    shared = sysconfig.get_path("purelib")
    (packages / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
