"""What all tests share: steady examples, loggers that are on, one empty MLflow store, one parent of processes."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from homo_dp.privacy.noise.keystream import SEED_BYTES, Keystream
from homo_dp.privacy.noise.source import secure_noise
from homo_dp.tracking.mlflow.environment import set_defaults
from tests.processes.zygote import Zygote

# The same examples every time: a check that fails must fail again when somebody looks at it.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")

# A shell starts background jobs with Ctrl-C ignored, and what they start inherits that: some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _loggers_on() -> None:
    """A command with --quiet, and a new MLflow store, turn loggers off for the whole process: turn ours on again."""
    logging.disable(logging.NOTSET)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("homo_dp"):
            logging.getLogger(name).disabled = False


@pytest.fixture(autouse=True)
def _steady_umask() -> Iterator[None]:
    """The sender to MLflow narrows the umask of its process; called in a test, it must not do that to the others."""
    before = os.umask(0)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def _steady_noise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secure source of this process starts each test from the same key, so that a verdict on noise is repeated.

    A forked child asks for another key, as always. Sources that a test makes itself, and those of processes that it
    starts, are not touched.
    """
    keys = iter([hashlib.sha256(request.node.nodeid.encode()).digest()[:SEED_BYTES]])
    monkeypatch.setattr(secure_noise(), "_stream", Keystream(lambda: next(keys, None) or os.urandom(SEED_BYTES)))


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a real store with its tables made and nothing in them, which takes seconds; copy it."""
    set_defaults()
    from mlflow.tracking import MlflowClient

    from homo_dp.tracking.mlflow.store import quiet

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    with quiet():
        MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """A process that has imported everything, from which aggregators and parties are forked in no time."""
    with Zygote() as started:
        yield started


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the chaos loop did to its federations."""
    blows: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "blows":
                blows.update(value)
    if blows:
        terminalreporter.write_line("blows: " + ", ".join(f"{count} x {blow}" for blow, count in sorted(blows.items())))
