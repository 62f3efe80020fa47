"""Starts aggregators and parties by fork from a process that has imported everything: real
processes, ready at once.

A start costs seconds of imports; the fault tests start processes more than a hundred times. What is
forked runs the same `main` with the same arguments as the command does, and can be killed as any
process.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homo_dp.core import crash_points
from tests.processes.permissions import bound_by_permissions

MODULES = (
    "homo_dp.runs.aggregator_process",
    "homo_dp.runs.party_process",
    "homo_dp.privacy.engine.engine",
    "homo_dp.transport.directory",
    "homo_dp.transport.nats.connection",
    "tests.processes.shims",
)


class Forked:
    """A process that a zygote started; like a subprocess.Popen."""

    def __init__(self, zygote: "Zygote", pid: int) -> None:
        self.zygote = zygote
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.zygote.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (1e9 if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Zygote:
    """The parent of forked processes; a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def start(
        self,
        module: str,
        arguments: list[str],
        log: Path,
        crash_at: str | None,
        largest_file: int | None = None,
        bound: bool = False,
        shims: Mapping[str, Any] | None = None,
    ) -> Forked:
        """Start a process; ``largest_file`` makes longer writes fail, as a full disk does;
        ``bound``: by file modes; ``shims``: arguments of functions in ``shims.py``.
        """
        order = {
            "module": module,
            "arguments": arguments,
            "log": str(log),
            "crash_at": crash_at,
            "largest": largest_file,
            "bound": bound,
            "shims": dict(shims or {}),
        }
        return Forked(self, int(self.ask(order)))

    def ask(self, order: dict[str, Any]) -> Any:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the zygote has no pipes")
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> "Zygote":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def _serve() -> None:
    import importlib

    for name in MODULES:
        importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        answer = _poll(order["poll"]) if "poll" in order else _fork(order)
        print(json.dumps(answer), flush=True)


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = _child(order)
    finally:
        os._exit(code)


def _child(order: dict[str, Any]) -> int:
    import importlib

    from homo_dp.console import options as cli
    from tests.processes import shims

    descriptor = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    crash_points._planned = crash_points._plan(order["crash_at"])
    if order["largest"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest"], order["largest"]))
    if order["bound"] and not bound_by_permissions():
        raise RuntimeError("permissions do not count here")
    for name, arguments in order["shims"].items():
        for each in arguments:
            getattr(shims, name)(*each)
    main = importlib.import_module(order["module"]).main
    try:
        cli.run(lambda _: main(order["arguments"]))
    except SystemExit as ended:
        return int(ended.code or 0)


if __name__ == "__main__":
    _serve()
