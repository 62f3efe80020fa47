"""A real MLflow server over the store of two trainings, and a real browser to look at it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from tests.ports import free_port

ROUNDS = 6
EPSILONS = (2, 8)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1280,860",
)


@dataclass(frozen=True)
class Site:
    """A server, the folder in which the trainings ran, and where pictures of the pages go."""

    url: str
    folder: Path
    shots: Path


def train(folder: Path, *params: str) -> str:
    """Run the command in a folder, as a user would; what it printed on stderr."""
    rounds = f"train.auto=false,train.rounds={ROUNDS}"
    command = [sys.executable, "-m", "homo_dp.train", "--params", rounds, *params]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def own_files(name: str) -> list[str]:
    """Outputs that no other training writes."""
    return [f"{key}FileName={name}/{key[0]}.json" for key in ("predict", "indicator", "model")]


def wait_for_page(url: str, process: subprocess.Popen[bytes], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{url} did not come up") from error
            time.sleep(0.2)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server that we started, with the workers in its group."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, sign)
            process.wait(5)
            return


@pytest.fixture(scope="session")
def site(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two tracked trainings, one that found no server and so is still unsent, then the server."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(empty_store, folder)
    shots = Path(os.environ.get("SCREENSHOTS") or tmp_path_factory.mktemp("shots")).resolve()
    shots.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(2) as both:
        late = both.submit(
            train, folder, f"tracking.uri={url}", "tracking.run_name=late", *own_files("late")
        )
        for epsilon in EPSILONS:
            named = f"tracking.run_name=epsilon-{epsilon}", "tracking.model_name=screening"
            train(folder, f"privacy.target_epsilon={epsilon}", *named)
    assert "does not answer" in late.result()
    server = subprocess.Popen(
        [sys.executable, "-m", "homo_dp.ui", "--port", url.rpartition(":")[2]],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for_page(f"{url}/health", server)
        yield Site(url, folder, shots)
    finally:
        stop(server)


@pytest.fixture(scope="session")
def browser(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Headless chromium; MLflow's assistant is shut, it would cover the tables."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.fail("chromium and chromedriver are missing: make test-ui installs them")
    options = Options()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    found = webdriver.Chrome(options=options, service=Service(driver))
    try:
        found.get(site.url)
        for name in ("fab.autoOpenedOnFirstLoad_v1", "panelOpen_v1"):
            value = "true" if name.startswith("fab") else "false"
            found.execute_script(
                "localStorage.setItem(arguments[0], arguments[1])",
                f"mlflow.assistant.{name}",
                value,
            )
        yield found
    finally:
        found.quit()
