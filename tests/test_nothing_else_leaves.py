"""Nothing of a row leaves a party without an event or a declaration: sentinels in the data, looked for everywhere.

Every recipe runs in one process with all messages as bytes, and some between processes. In what leaves a party
(messages, the aggregator's files, log and screen) no sentinel may be found: a row count that is declared as another
number, a value of a feature, the count of a label. And whatever the rows are, the same messages go the same way: tables
that differ by rows give the same kinds, rounds, words and shapes.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message, encode
from homo_dp.runs.learned_bounds import with_what_is_learnt
from homo_dp.runs.outputs import released_line
from homo_dp.runs.simulation import Simulation
from homo_dp.runs.statistics import StatisticsSimulation
from homo_dp.transport.memory import MemoryHub
from tests.processes.parts import PARTIES, Cluster
from tests.processes.zygote import Zygote
from tests.sentinels import bytes_of, facts_in, facts_of, found_in, is_the_truth, true_bins

VALUE = 0.7135791357913579  # of a feature, in the rows of one party
DECLARED = 250
RADIUS = 13.5791357913579  # of a feature, between processes
ROWS = (141, 139, 137)  # of each party, between processes, where 150 are declared
RECIPES: dict[str, dict[str, Any]] = {
    "dp_sgd": {},
    "metrics": {"metrics.release": "noised", "metrics.every": 1},
    "scaling": {"data.scaling": "private"},
    "dp_fedsgd": {"privacy.mechanism": "dp_fedsgd", "train.local_steps": None},
    "masked": {
        "privacy.mechanism": "dp_fedsgd",
        "train.local_steps": None,
        "privacy.secure_aggregation": True,
        "metrics.release": "noised",
    },
    "nbafl": {"privacy.mechanism": "nbafl", "privacy.target_epsilon": None},
    "statistics": {"privacy.mechanism": "statistics", "statistics.ask": "rows,classes,means,histograms,second_moments"},
}


def _table(rows: int, seed: int, value: float = VALUE) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({f"x{i}": rng.uniform(-1, 1, rows) for i in range(4)})
    frame.loc[frame.index % 7 == 3, "x1"] = value
    frame["y"] = (rng.uniform(size=rows) < 0.3).astype(int)
    return frame


def _config(folder: Path, rows: dict[str, int], keys: dict[str, Any]) -> Config:
    files = {}
    for number, (name, count) in enumerate(rows.items()):
        files[name] = str(folder / f"{name}.csv")
        _table(count, number).to_csv(files[name], index=False)
    base = {
        "data.files": files,
        "data.columns": {f"x{i}": {"bounds": [-1, 1]} for i in range(4)},
        "data.rows": dict.fromkeys(rows, DECLARED),
        "privacy.target_epsilon": 4.0,
        "privacy.ledger": str(folder / "ledger.sqlite"),
        "tracking.enabled": False,
        "train.rounds": 2,
        "train.local_steps": 2,
    }
    merged = base | keys
    return load_config(None, {name: value for name, value in merged.items() if value is not None})


def _messages(config: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Message], Simulation]:
    """All messages of a run, in their order, and the run."""
    sent: list[Message] = []
    post = MemoryHub.post

    def keep(hub: MemoryHub, message: Message) -> None:
        sent.append(message)
        post(hub, message)

    monkeypatch.setattr(MemoryHub, "post", keep)
    config = with_what_is_learnt(config)
    asks = config.privacy.mechanism == "statistics"
    simulation = StatisticsSimulation(config) if asks else Simulation(config, lambda row, numbers: None)
    simulation.run()
    monkeypatch.undo()
    return sent, simulation


def _counts(simulation: Simulation) -> dict[str, list[int]]:
    """Numbers of each party that nobody declared: rows that train, that test, and in all; and of a class."""
    found = {}
    for name, data in simulation.federation.parties.items():
        test = 0 if data.test is None else len(data.test)
        labels = data.train.labels
        assert labels is not None
        found[name] = [len(data.train), len(data.train) + test, int((labels == 1).sum())]
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_sentinel_is_in_what_leaves_a_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, recipe: str
) -> None:
    caplog.set_level(logging.DEBUG)
    config = _config(tmp_path, {"a": 211, "b": 223}, RECIPES[recipe])
    sent, simulation = _messages(config, monkeypatch)
    counts = _counts(simulation)
    values = bytes_of(VALUE)
    from_parties = [message for message in sent if message.recipient == AGGREGATOR]
    assert from_parties
    for message in from_parties:
        data = encode(message, simulation.mechanism.kinds)
        assert not any(value in data for value in values), message.kind
        assert found_in(facts_of(message.info), counts[message.sender], [VALUE]) == []
    numbers = [number for numbers in counts.values() for number in numbers if number > 60]
    said = [("log", record.getMessage()) for record in caplog.records]
    assert found_in(said, numbers, [VALUE], known=[str(tmp_path)]) == []
    assert found_in(facts_of(simulation.statement(simulation.mechanism.rounds)), numbers, [VALUE]) == []


def _skeleton(message: Message) -> tuple[Any, ...]:
    """All of a message that is not the noisy numbers themselves."""
    head = message.info.get("ledger_head")
    count = head.get("count") if isinstance(head, dict) else None
    info = {key: value for key, value in message.info.items() if key not in ("ledger_head", "plan")}
    shapes = {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in message.tensors.items()}
    return message.kind, message.round, message.sender, message.recipient, str(info), count, str(sorted(shapes.items()))


@pytest.mark.parametrize("recipe", RECIPES)
def test_tables_that_differ_by_rows_give_the_same_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    skeletons = []
    for number, rows in enumerate(({"a": 211, "b": 223}, {"a": 212, "b": 223}, {"a": 30, "b": 223})):
        folder = tmp_path / str(number)
        folder.mkdir()
        sent, _ = _messages(_config(folder, rows, RECIPES[recipe]), monkeypatch)
        skeletons.append([_skeleton(message) for message in sent])
    assert skeletons[0] == skeletons[1] == skeletons[2]


def test_the_look_finds_a_count_that_leaves() -> None:
    """The check itself can fail: a message that carries a count is found, and nothing else is."""
    told = facts_of({"rows": 211, "released_rows": 223.0, "text": "at 223.5, aa223bb, 1.223", "hash": "+223/" * 8})
    assert found_in(told, [211, 223]) == [".rows: 211"]
    for leak in ({"rows": 223.0}, {"said": "party_1 (223 rows)"}, {"facts": '{"n": 223}'}, {"n": {"223": 1}}):
        assert len(found_in(facts_of(leak), [211, 223])) == 1, leak


def _rows_of_their_own(cluster: Cluster, folder: Path) -> None:
    """Each party has fewer rows than it declares, and a value of its own in some of them."""
    for number, party in enumerate(PARTIES):
        given = pd.read_csv(cluster.configs[party]["data"]["files"][party])
        given = given.head(ROWS[number]).copy()
        given.loc[given.index % 5 == 1, "mean radius"] = RADIUS
        path = folder / f"{party}.csv"
        given.to_csv(path, index=False)
        cluster.change(party, "data", files={party: str(path)}, rows={party: 150}, counts=None)


def _seen(cluster: Cluster) -> dict[str, bytes]:
    """Every file that the aggregator has or that lies in the exchange, and what it said."""
    found = {"log": cluster.log(AGGREGATOR).encode()}
    for folder in (cluster.folder / AGGREGATOR, cluster.folder / "state-aggregator", cluster.folder / "exchange"):
        files = [path for path in folder.rglob("*") if path.is_file()]
        found |= {str(path.relative_to(cluster.folder)): path.read_bytes() for path in files}
    return found


def _left(seen: Mapping[str, bytes], known: Sequence[str]) -> list[str]:
    """Which sentinels are in what the aggregator has."""
    readable = {name: data for name, data in seen.items() if name == "log" or Path(name).suffix}
    facts = [fact for name, data in readable.items() for fact in facts_in(name, data)]
    found = found_in(facts, ROWS, [RADIUS], known=known)
    return found + [name for name, data in seen.items() if any(each in data for each in bytes_of(RADIUS))]


@pytest.mark.parametrize("asked", [{}, {"metrics": {"release": "noised"}}])
def test_no_sentinel_is_with_the_aggregator(tmp_path: Path, zygote: Zygote, asked: dict[str, Any]) -> None:
    """Between processes, over a folder: the aggregator's files, state, log and the exchange hold none of them."""
    with Cluster(tmp_path, zygote=zygote, rounds=2) as cluster:
        for section, keys in asked.items():
            cluster.change(AGGREGATOR, section, **keys)
        cluster.change(AGGREGATOR, "privacy", target_epsilon=8.0)
        _rows_of_their_own(cluster, tmp_path)
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
        seen = _seen(cluster)
    indicator = f"{AGGREGATOR}/out/indicator.json"
    indicators = json.loads(seen[indicator])
    said = released_line(indicators)  # by figures that stand in the indicators as released, so it may be left out
    known = [str(tmp_path), *([said] if said else [])]
    assert len(seen) > 5
    assert _left(seen, known) == []
    for leak in ({"party_1": {"rows_seen": ROWS[2]}}, {"privacy": {"note": f"{ROWS[0]} rows"}}, {"radius": RADIUS}):
        told = seen | {indicator: json.dumps(indicators | leak).encode()}
        assert len(_left(told, known)) == 1, leak
    if asked:
        bins = len(indicators["released_curves"]["calibration"]["rows"])
        truth = true_bins([tmp_path / party / "out/predict.csv" for party in PARTIES], bins)
        assert not is_the_truth(indicators, truth)
        bare = {"rows": {"value": float(sum(truth))}}
        assert is_the_truth({"released_metrics": bare, "released_curves": {"calibration": {"rows": truth}}}, truth)
