"""A federation on this machine: an aggregator and three parties as processes, with fresh keys, in a
temporary folder.

python pipelines/demo_federation.py     (make demo-federation)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTIES = ("party_a", "party_b", "party_c")
RECIPES = {"aggregator": "federation", **{name: name for name in PARTIES}}
MOST_SECONDS = 120.0


def main(folder: Path, recipes: Mapping[str, str]) -> int:
    """Make keys, start four processes on their recipes in conf/, show what they say and what
    each has at the end.
    """
    from homo_dp.transport.keys import new_key_pair, write_key_pair

    shutil.copytree(ROOT / "data", folder / "data")
    (folder / "exchange").mkdir()  # the shared folder
    for name in ("aggregator", *PARTIES):
        pair = new_key_pair(name)
        write_key_pair(pair, folder / "keys")
        print(f"key of {name}: {pair.public.fingerprint}")
    started = time.monotonic()
    processes = {name: start(name, recipe, folder) for name, recipe in recipes.items()}
    readers = [threading.Thread(target=show, args=item, daemon=True) for item in processes.items()]
    for reader in readers:
        reader.start()
    try:
        codes = {name: process.wait(MOST_SECONDS) for name, process in processes.items()}
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
    for reader in readers:
        reader.join(5)
    print(f"\nended after {time.monotonic() - started:.1f} s with {codes}")
    return max(codes.values()) or report(folder)


def start(name: str, recipe: str, folder: Path) -> subprocess.Popen[str]:
    """One process, as an operator starts it."""
    module = "aggregator" if name == "aggregator" else "party"
    command = [
        sys.executable,
        "-m",
        f"homo_dp.{module}",
        "--config",
        str(ROOT / "conf" / f"{recipe}.yaml"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def show(name: str, process: subprocess.Popen[str]) -> None:
    """Print what a process says, with its name before it."""
    for line in process.stdout or ():
        print(f"{name:>10} | {line.rstrip()}", flush=True)


def report(folder: Path) -> int:
    """What each site holds afterwards."""
    from homo_dp.privacy.ledger import Ledger

    for name in PARTIES:
        indicators = json.loads((folder / "out" / name / "indicator.json").read_text())
        with Ledger(folder / "state" / name / "ledger.sqlite", read_only=True) as ledger:
            rows = ledger.verify().count
        epsilon, accuracy = indicators["privacy"]["epsilon"], indicators["test_acc"]
        print(
            f"{name}: epsilon {epsilon:.3f}, {rows} releases on its ledger, test accuracy "
            f"{accuracy:.3f} (local)"
        )
    print("the aggregator has the model, and saw neither a row nor a metric of one")
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="homo_dp-demo-") as place:
        sys.exit(main(Path(place), RECIPES))
