"""An aggregator that chooses what hurts most: how cells are read, how many runs it asks, and whose
ledger it counts. Reading, searching, and serving without a lifetime budget were open before.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from homo_dp.config.load import load_config
from homo_dp.data.public_encoding import public_encoding
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import KINDS, Message
from homo_dp.federation.sessions.build import trained_model
from homo_dp.federation.sessions.plan import make_plan
from homo_dp.privacy.accounting.accountants import renyi
from homo_dp.privacy.accounting.events import compose, from_json, to_json
from homo_dp.privacy.accounting.filters import epsilon_at_order
from homo_dp.runs import private_search
from homo_dp.runs.processes import aggregator_sealer, open_transport
from homo_dp.tune import main as tune
from tests.processes.hostile import Hostile, job
from tests.processes.parts import RUN, Cluster, ledger_rows
from tests.runs.parts import NOISED, WINNER

ROWS = 300
BOUNDS = {"x": {"bounds": [-1000, 1000], "missing": "middle"}, "w": {"levels": ["1", "2", "a"]}}
OWN = {"data.rows": {"a": ROWS}, "party.caps.epsilon": 90.0}


@pytest.fixture
def hostile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Hostile:
    return Hostile(tmp_path, monkeypatch, capsys)


# Table reading: the plan says which cells are missing, and one row is odd


def csv_file(rows: list[dict[str, Any]], place: Path) -> str:
    pd.DataFrame(rows).astype(str).to_csv(place.with_suffix(".csv"), index=False)
    return str(place.with_suffix(".csv"))


def parquet_file(rows: list[dict[str, Any]], place: Path) -> str:
    frame = pd.DataFrame(rows).astype({"x": str, "w": str})
    frame.to_parquet(place.with_suffix(".parquet"))
    return str(place.with_suffix(".parquet"))


def sqlite_file(rows: list[dict[str, Any]], place: Path) -> str:
    with sqlite3.connect(place.with_suffix(".db")) as connection:
        connection.execute("create table t (id, x, w, y)")
        connection.executemany("insert into t values (:id, :x, :w, :y)", rows)
    connection.close()
    return f"sqlite:///{place.with_suffix('.db')}#t"


SOURCES: dict[str, Callable[[list[dict[str, Any]], Path], str]] = {
    "csv": csv_file,
    "parquet": parquet_file,
    "sqlite": sqlite_file,
}


@pytest.mark.parametrize("odd", ["", " 1", "true", "nan", "x", "1e400"])
@pytest.mark.parametrize("source", SOURCES)
def test_no_odd_cell_moves_a_sum_by_more_than_a_row_may(
    hostile: Hostile, tmp_path: Path, source: str, odd: str
) -> None:
    """Two thirds of the cells are the plan's marker. False alarms below 1e-9: 7 deviations."""
    base: list[dict[str, Any]] = [
        {"id": n, "x": (-999, -999, 5)[n % 3], "w": 1 + n % 2, "y": n % 2} for n in range(ROWS)
    ]
    asked = job(
        BOUNDS,
        privacy__mechanism="statistics",
        privacy__target_epsilon=80.0,
        privacy__delta=1e-5,
        statistics__ask=["means", "missing", "levels"],
        data__missing_values=["-999", "2"],
    )
    found = []
    for name, rows in {
        "base": base,
        "odd": [*base, {"id": ROWS, "x": odd, "w": odd, "y": 1}],
    }.items():
        place = SOURCES[source](rows, tmp_path / f"{source}-{name}")
        heard = hostile.hear("id,y\n", asked, {**OWN, "data.files": {"a": place}})
        assert heard.released, (heard.error, heard.words)
        found.append(heard)
    noise = [row.sigma for row in ledger_rows(hostile.folder / "1" / "ledger.sqlite")]
    for one, other, sigma in zip(found[0].released, found[1].released, noise, strict=True):
        # the norm of a difference of two noises has mean sqrt(2 d) sigma, and falls off as a normal
        most = 1.0 + math.sqrt(2) * sigma * (math.sqrt(len(one)) + 7)
        assert float((one - other).norm()) <= most


# Searching: a later aggregator counts the rows of the ledger


def test_no_message_tells_how_many_trials_a_search_had(
    hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "id,x,y\n" + "".join(f"{n},{n},{n % 2}\n" for n in range(ROWS))
    asked = job({"x": BOUNDS["x"]}, data__use=["x"], privacy__delta=1e-5)
    heard = []
    for trials in (1, 4):
        place = tmp_path / f"search-{trials}"
        place.mkdir()
        monkeypatch.chdir(place)
        monkeypatch.setattr(private_search, "secret_number", lambda *_, drawn=trials: drawn)
        assert tune([*WINNER, NOISED]) == 0
        own = {**OWN, "privacy.ledger": str(place / "ledger.sqlite")}
        heard.append(hostile.hear(table, asked, own))
        assert [message[0] for message in heard[-1].messages][:2] == ["join", "update"]
    assert heard[0].messages == heard[1].messages


# Serving: any number of runs at the cap of one


def test_a_serving_party_answers_until_its_lifetime_is_used(tmp_path: Path) -> None:
    """A real process, and an aggregator that asks six runs of the same party, each at its cap."""
    with Cluster(tmp_path, rounds=1) as cluster:
        cluster.change("party_1", "party", serve={"approve": "always"}, caps={"epsilon": 1.0})
        cluster.change("party_1", "data", name="clinic")
        cluster.change("party_1", "privacy", lifetime_epsilon=2.0, delta=1e-5)
        cluster.configs["party_1"].pop("federation")
        cluster.start("party_1", arguments=["--serve"])
        words = [ask(cluster, f"{RUN}-{number}") for number in range(6)]
        rows = ledger_rows(tmp_path / "party_1" / "ledger.sqlite")
    assert words[0] == "update"
    assert words[-1] == "budget"
    assert len(rows) == words.count("update")
    order = rows[0].lifetime_order
    assert order is not None
    spent = renyi({to_json(compose(*(from_json(row.event) for row in rows))): 1})
    assert epsilon_at_order(spent, order, 1e-5) <= 2.0


def test_a_party_without_a_lifetime_does_not_serve(tmp_path: Path) -> None:
    """It answered any number of runs at the cap of one: a real process, which has to end."""
    with Cluster(tmp_path, rounds=1) as cluster:
        cluster.change("party_1", "party", serve={"approve": "always"}, caps={"epsilon": 1.0})
        cluster.configs["party_1"].pop("federation")
        process = cluster.start("party_1", arguments=["--serve"])
        assert process.wait(60) == 2
        assert "privacy.lifetime_epsilon: is not given" in cluster.log("party_1")


def ask(cluster: Cluster, run: str) -> str:
    """Ask one run of party_1 alone, for all that its cap allows; the kind of its answer, or the
    word of its refusal.
    """
    lines = cluster.configs[AGGREGATOR]["federation"]["parties"]
    common = {
        "federation.run": run,
        "federation.key_file": cluster.configs[AGGREGATOR]["federation"]["key_file"],
        "federation.parties": {"party_1": lines["party_1"]},
        "transport.kind": "directory",
        "transport.directory": str(cluster.exchange),
        "tracking.enabled": False,
    }
    config = load_config(
        None,
        common
        | {
            "data.columns_from": "breast_cancer",
            "train.rounds": 1,
            "train.local_steps": 1,
            "train.sample_rate": 1.0,
            "privacy.target_epsilon": 1.0,
            "privacy.delta": 1e-5,
        },
    )
    transport = open_transport(config, aggregator_sealer(config, KINDS), cluster.folder / run)
    try:
        encoding = public_encoding(config)
        plan = make_plan(config, {"party_1": None}, encoding.to_json())
        transport.send(Message(run, 0, AGGREGATOR, "party_1", "plan", {}, {"plan": plan}))
        model = trained_model(config, encoding.input_shape, encoding.classes)
        weights = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
        transport.send(Message(run, 1, AGGREGATOR, "party_1", "weights", weights))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            message = transport.receive(1.0)
            if message is None or message.kind == "join":
                continue
            transport.done(message)
            if message.kind == "update":
                transport.send(Message(run, 1, AGGREGATOR, "party_1", "finished", weights))
                return "update"
            return str(message.info.get("reason"))
        raise AssertionError(cluster.log("party_1")[-3000:])
    finally:
        transport.close()
