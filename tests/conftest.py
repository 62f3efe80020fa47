"""What all tests share: steady examples and chance, loggers that are on, an empty store, a
parent of processes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from homo_dp.privacy.noise.keystream import SEED_BYTES, RepeatableKeystream, forks
from homo_dp.tracking.mlflow.environment import set_defaults
from tests.processes.zygote import Zygote

# The same examples every time: a check that fails must fail again when somebody looks at it.
# No clock decides: a machine that is busy is slow with single examples, and with making them.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# A shell starts background jobs with Ctrl-C ignored, and what they start inherits that: some tests
# send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _loggers_on() -> None:
    """A command with --quiet, and a new MLflow store, turn loggers off for the whole process:
    turn ours on again.
    """
    logging.disable(logging.NOTSET)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("homo_dp"):
            logging.getLogger(name).disabled = False


@pytest.fixture(autouse=True)
def _steady_umask() -> Iterator[None]:
    """The sender to MLflow narrows the umask of its process; called in a test, it must not do
    that to the others.
    """
    before = os.umask(0)
    os.umask(before)
    yield
    os.umask(before)


@contextmanager
def _steady_chance(name: str) -> Iterator[None]:
    """What is drawn in this process is the same each time, whatever ran before.

    Sources of noise, keys of runs and ``SystemRandom`` get bytes of a stream under this name for
    those of the operating system; the global generators start from it. A forked child asks the
    operating system, as always, and so do the processes that a test starts, and what is made when a
    module is imported.
    """
    digest = hashlib.sha256(name.encode()).digest()
    stream, real, here = RepeatableKeystream(lambda: digest[:SEED_BYTES]), os.urandom, forks()

    def urandom(size: int) -> bytes:
        return stream.words(size // 8 + 1).tobytes()[:size] if forks() == here else real(size)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "urandom", urandom)
        patched.setattr(random, "_urandom", urandom)  # what SystemRandom and secrets have imported
        seed = int.from_bytes(digest[:4], "little")
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        yield


@pytest.fixture(autouse=True)
def _steady_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """A verdict on what was drawn is repeated when somebody looks at it."""
    with _steady_chance(request.node.nodeid):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """So is what many tests share, which is made before the first of them: in which order is up
    to the workers.
    """
    if fixturedef.scope == "function":
        return (yield)
    with _steady_chance(f"{fixturedef.baseid}::{fixturedef.argname}"):
        return (yield)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a real store with its tables made and nothing in them, which takes seconds;
    copy it.
    """
    set_defaults()
    from mlflow.tracking import MlflowClient

    from homo_dp.tracking.mlflow.store import quiet

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    with quiet():
        MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """A process that has imported everything, from which aggregators and parties are forked in
    no time.
    """
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
        terminalreporter.write_line(
            "blows: " + ", ".join(f"{count} x {blow}" for blow, count in sorted(blows.items()))
        )
