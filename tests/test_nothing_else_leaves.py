"""Nothing of a row leaves a party without an event or a declaration: sentinels in the data, looked for everywhere.

Every recipe runs in one process with all messages as bytes, and some between processes. In what leaves a party
(messages, the aggregator's files, log and screen) no sentinel may be found: a row count that is declared as another
number, a value of a feature, the count of a label. And whatever the rows are, the same messages go the same way: tables
that differ by rows give the same kinds, rounds, words and shapes.
"""

import json
import logging
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message, encode
from homo_dp.runs.learning import with_what_is_learnt
from homo_dp.runs.simulation import Simulation
from homo_dp.runs.statistics import StatisticsSimulation
from homo_dp.transport.memory import MemoryHub
from tests.processes.parts import PARTIES, Cluster
from tests.processes.zygote import Zygote

VALUE = 0.7135791357913579  # of a feature, in the rows of one party
DECLARED = 250
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


def _texts(message: Message) -> Iterator[str]:
    yield json.dumps({key: value for key, value in message.info.items() if key != "ledger_head"}, default=str)


def _holds(text: str, number: float) -> bool:
    return re.search(rf"(?<![\d.]){re.escape(f'{number:g}')}(?![\d])", text) is not None


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_sentinel_is_in_what_leaves_a_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, recipe: str
) -> None:
    caplog.set_level(logging.DEBUG)
    config = _config(tmp_path, {"a": 211, "b": 223}, RECIPES[recipe])
    sent, simulation = _messages(config, monkeypatch)
    counts = _counts(simulation)
    values = [struct.pack(form, number) for form in ("<f", "<d") for number in (VALUE, np.float32(VALUE))]
    from_parties = [message for message in sent if message.recipient == AGGREGATOR]
    assert from_parties
    for message in from_parties:
        data = encode(message, simulation.mechanism.kinds)
        assert not any(value in data for value in values), message.kind
        text = " ".join(_texts(message))
        for number in counts[message.sender]:
            assert not _holds(text, number), text
        assert str(VALUE)[:9] not in text
    said = caplog.text
    assert str(VALUE)[:9] not in said
    assert not any(_holds(said, number) for numbers in counts.values() for number in numbers if number > 60)
    statement = json.dumps(simulation.statement(simulation.mechanism.rounds), default=str)
    assert not any(_holds(statement, number) for numbers in counts.values() for number in numbers)


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
    """The check itself can fail: a message that carries a count is found."""
    told = Message("run", 0, "a", AGGREGATOR, "join", {}, {"rows": 211})
    assert _holds(" ".join(_texts(told)), 211)
    assert not _holds(" ".join(_texts(told)), 21)


@pytest.mark.parametrize("asked", [{}, {"metrics": {"release": "noised"}}])
def test_no_sentinel_is_with_the_aggregator(tmp_path: Path, zygote: Zygote, asked: dict[str, Any]) -> None:
    """Between processes, over a folder: the aggregator's files, state, log and the exchange hold none of them."""
    with Cluster(tmp_path, zygote=zygote, rounds=2) as cluster:
        for section, keys in asked.items():
            cluster.change(AGGREGATOR, section, **keys)
        cluster.change(AGGREGATOR, "privacy", target_epsilon=8.0)
        for number, party in enumerate(PARTIES):
            given = pd.read_csv(cluster.configs[party]["data"]["files"][party])
            given = given.head(141 - 2 * number).copy()
            given.loc[given.index % 5 == 1, "mean radius"] = 13.5791357913579
            path = tmp_path / f"{party}.csv"
            given.to_csv(path, index=False)
            cluster.change(party, "data", files={party: str(path)}, rows={party: 150}, counts=None)
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
        said = cluster.log(AGGREGATOR)
    texts = {"log": said}
    raw = []
    for folder in (tmp_path / AGGREGATOR, tmp_path / "state-aggregator", tmp_path / "exchange"):
        for path in folder.rglob("*") if folder.exists() else ():
            if path.is_file():
                data = path.read_bytes()
                raw.append(data)
                if path.suffix in (".json", ".yaml", ".jsonl", ".csv", ".txt", ".log"):
                    texts[path.name] = data.decode(errors="replace")
    assert len(texts) > 2
    for name, text in texts.items():
        assert "13.579135" not in text, name
        for count in (141, 139, 137):
            assert not _holds(text, count), f"{name}: {count}"
    sentinels = [struct.pack(form, 13.5791357913579) for form in ("<f", "<d")]
    assert not any(sentinel in data for sentinel in sentinels for data in raw)
