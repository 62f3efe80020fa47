"""What a user sees of our runs in MLflow's own pages, in a real browser, and what a served model
answers.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from PIL import Image
from selenium.common.exceptions import WebDriverException

from homo_dp.tracking.mlflow.experiment_view import runs_address
from tests.ports import free_port
from tests.ui.conftest import EPSILONS, ROUNDS, Site, stop, wait_for_page

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

pytestmark = pytest.mark.ui
CARD = "[data-testid=experiment-view-compare-runs-card]"


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """The first true answer; pages fill themselves bit by bit, and elements may go while they
    are read.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            found = condition()
        except WebDriverException:
            found = None
        if found:
            return found
        assert time.monotonic() < end, f"{what}: did not show up within {seconds:g} s"
        time.sleep(0.1)


def one(browser: Chrome, selector: str, text: str = "") -> Callable[[], WebElement | None]:
    """A visible element with this text."""

    def find() -> WebElement | None:
        found = [
            element
            for element in browser.find_elements("css selector", selector)
            if element.is_displayed()
        ]
        return next((element for element in found if text in element.text), None)

    return find


def row_of(browser: Chrome, name: str) -> Callable[[], WebElement | None]:
    """The row of the runs table with exactly this name."""

    def find() -> WebElement | None:
        rows = browser.find_elements("css selector", ".ag-row")
        return next((row for row in rows if name in row.text.splitlines()), None)

    return find


def open_runs(site: Site, browser: Chrome) -> None:
    """The table of runs as a newcomer sees it: nothing opened, for choosing a parent chooses its
    open children too.
    """
    browser.get(f"{site.url}/#/experiments/1/runs")
    forget = (
        "Object.keys(localStorage).filter(k => k.startsWith('MLflowLocal')).forEach(k => "
        "localStorage.removeItem(k))"
    )
    browser.execute_script(forget)
    browser.refresh()


def keep(browser: Chrome, site: Site, name: str) -> None:
    """A picture of the page for the documentation, with few colours so that it stays small."""
    picture = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(site.shots / f"{name}.png", optimize=True)


def messages(browser: Chrome) -> list[Any]:
    """What the browser complained about since it was asked last."""
    found: list[Any] = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return found


def runs(site: Site) -> dict[str, Any]:
    """The runs of the store, by name, asked of the server as any client would."""
    body = json.dumps({"experiment_ids": ["1"], "max_results": 100}).encode()
    request = urllib.request.Request(
        f"{site.url}/api/2.0/mlflow/runs/search", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {run["info"]["run_name"]: run for run in json.load(answer).get("runs", [])}


def test_the_runs_table(site: Site, browser: Chrome) -> None:
    open_runs(site, browser)
    for epsilon in EPSILONS:
        until(one(browser, "a", f"epsilon-{epsilon}"), f"the run epsilon-{epsilon}")
    assert not [
        link for link in browser.find_elements("css selector", "a") if "party_1" in link.text
    ]
    until(row_of(browser, "epsilon-8"), "the row of a run").find_element(
        "css selector", "button"
    ).click()
    until(one(browser, "a", "epsilon-8/party_1"), "the children of a run")


def test_the_first_view_has_the_columns_that_one_looks_for(site: Site, browser: Chrome) -> None:
    """Of a browser that was never here: no banner of a shared view, no panel of an assistant."""
    browser.get("about:blank")  # a page of MLflow would write down its state again
    forget = {"origin": site.url, "storageTypes": "local_storage"}
    browser.execute_cdp_cmd("Storage.clearDataForOrigin", forget)
    browser.get(runs_address(site.url, "1"))

    def columns() -> set[str] | None:
        found = {
            cell.text
            for cell in browser.find_elements(
                "css selector", ".ag-header-cell-text, .ag-header-cell"
            )
        }
        return (
            found
            if {"epsilon", "accuracy", "auc", "Dataset", "Source", "Description"} <= found
            else None
        )

    until(columns, "the columns of the first view")
    until(one(browser, "a", "epsilon-8"), "a run")
    body = browser.find_element("css selector", "body").text
    assert "shared view" not in body
    assert "MLflow Assistant" not in body
    assert "…" not in "".join(
        cell.text
        for name in ("epsilon", "accuracy", "auc")
        for cell in browser.find_elements("css selector", f"[col-id='metrics.`{name}`']")
    )
    keep(browser, site, "runs")


def test_the_chart_of_epsilon_per_round(site: Site, browser: Chrome) -> None:
    run = runs(site)["epsilon-2"]["info"]["run_id"]
    browser.get(f"{site.url}/#/experiments/1/runs/{run}/model-metrics")

    def card() -> WebElement | None:
        cards = browser.find_elements("css selector", CARD)
        return next((each for each in cards if each.text.splitlines()[:1] == ["epsilon"]), None)

    chart = until(card, "the chart of epsilon")
    points = until(
        lambda: chart.find_elements("css selector", "path.point"), "the points of the chart"
    )
    assert len(points) == ROUNDS
    heights = [point.location["y"] for point in points]
    assert heights == sorted(heights, reverse=True), "epsilon only grows"
    browser.execute_script("arguments[0].scrollIntoView({block: 'end'})", chart)
    keep(browser, site, "epsilon_per_round")


def test_comparing_two_runs(site: Site, browser: Chrome) -> None:
    open_runs(site, browser)
    for epsilon in EPSILONS:
        until(row_of(browser, f"epsilon-{epsilon}"), f"the row of epsilon-{epsilon}")

    def both_chosen() -> bool:
        """The table may draw itself anew at any time, so choosing is done until it is done."""
        chosen = []
        for epsilon in EPSILONS:
            row = row_of(browser, f"epsilon-{epsilon}")()
            box = row and row.find_element("css selector", "input[type=checkbox]")
            if box and not box.is_selected():
                box.click()
            chosen.append(bool(box and box.is_selected()))
        return all(chosen)

    until(both_chosen, "two chosen runs")
    until(one(browser, "[data-testid=runs-compare-button]"), "the button that compares").click()
    until(
        lambda: "Comparing 2 Runs" in browser.find_element("tag name", "body").text,
        "the page that compares",
    )
    until(
        lambda: browser.find_elements("css selector", ".js-plotly-plot"), "the plot that compares"
    )
    text = until(lambda: browser.find_element("tag name", "body").text, "the page")
    assert all(f"epsilon-{epsilon}" in text for epsilon in EPSILONS)
    assert "privacy.target_epsilon" in text
    keep(browser, site, "compare")


def test_plots_and_report_are_shown_as_artifacts(site: Site, browser: Chrome) -> None:
    run = runs(site)["epsilon-2"]["info"]["run_id"]
    browser.get(f"{site.url}/#/experiments/1/runs/{run}/artifacts/plots/epsilon.png")
    shown = until(one(browser, "img[alt='plots/epsilon.png']"), "the plot")
    assert int(until(lambda: shown.get_attribute("naturalWidth"), "the pixels of the plot")) > 500
    keep(browser, site, "artifacts")


def test_the_report_in_a_browser(site: Site, browser: Chrome) -> None:
    command = [sys.executable, "-m", "homo_dp.report", "out", "-o", "report.html"]
    assert (
        subprocess.run(command, cwd=site.folder, capture_output=True, check=False).returncode == 0
    )
    messages(browser)
    browser.get((site.folder / "report.html").as_uri())
    assert "Privacy report" in browser.title
    images = browser.find_elements("css selector", "img")
    assert len(images) == 7
    assert all(int(image.get_attribute("naturalWidth") or 0) > 500 for image in images)
    assert messages(browser) == []  # nothing was refused by the page's own policy
    width = browser.execute_script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    assert width[0] <= width[1], "the page must not scroll sideways"
    keep(browser, site, "report")


def test_a_run_that_found_no_server_is_sent_when_there_is_one(site: Site, browser: Chrome) -> None:
    assert "late" not in runs(site)
    command = [sys.executable, "-m", "homo_dp.tracking.mlflow.sender", "late/i_unsent"]
    sent = subprocess.run(command, cwd=site.folder, capture_output=True, text=True, check=False)
    assert sent.returncode == 0, sent.stdout + sent.stderr
    assert not (site.folder / "late" / "i_unsent").exists()
    run = runs(site)["late"]
    assert run["info"]["status"] == "FINISHED"
    metrics = {metric["key"] for metric in run["data"]["metrics"]}
    assert "epsilon" in metrics
    assert not [name for name in metrics if name.startswith(("train_", "test_"))]
    open_runs(site, browser)
    until(one(browser, "a", "late"), "the run that was sent later")


def test_a_training_with_a_server_says_where_its_run_is(site: Site) -> None:
    keys = "train.auto=false,train.rounds=1,tracking.run_name=served,tracking.plots=false"
    keys += f",tracking.uri={site.url}"
    outputs = "indicatorFileName=served/i.json,predictFileName=served/p.csv,modelFileName=served/m"
    command = [sys.executable, "-m", "homo_dp.train", "--json", "--params", keys, outputs]
    done = subprocess.run(command, cwd=site.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = runs(site)["served"]
    assert json.loads(done.stdout)["mlflow_run"] == run["info"]["run_id"]
    assert run["info"]["status"] == "FINISHED"
    assert "is slow" not in done.stderr


def test_the_served_model_answers(site: Site) -> None:
    """``mlflow models serve`` on the registered model, asked over HTTP as any client would."""
    port = free_port()
    options = ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        "models:/screening/2",
        *options,
    ]
    environment = {
        "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # MLflow starts uvicorn by its name
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    server = subprocess.Popen(
        command,
        cwd=site.folder,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for_page(f"http://127.0.0.1:{port}/ping", server)
        rows = pd.read_csv(site.folder / "out" / "predict.csv").head(3)
        table = rows.drop(columns=["party", "pred_prob", "pred_y", "id", "y"])
        body = json.dumps({"dataframe_split": json.loads(table.to_json(orient="split"))}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)["predictions"]
    finally:
        stop(server)
    assert len(found) == 3
    assert {tuple(row) for row in found} == {("pred_prob", "pred_y")}
