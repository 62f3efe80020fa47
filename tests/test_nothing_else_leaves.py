"""Nothing of a row leaves a party without an event or a declaration: sentinels in the data, looked
for everywhere.

Every recipe of ``conf/``, and some more, run in one process with tables that hold sentinels: a row
count that is declared as another number, a value of a feature, the count of a label. None of them
may be in a message of a party, in a line of the log, in what is told to a store of runs on another
machine, or in the files that go there. And whatever the rows are, the same messages go the same
way: tables that differ by rows give the same kinds, rounds, words and shapes.
``tests/processes/test_sentinels_between_processes.py`` looks at folders and queues. A leak of each
kind is planted, and found.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from homo_dp.config.load import config_from
from homo_dp.config.schema import Config
from homo_dp.config.yaml_text import parse_yaml
from homo_dp.console.screen import Screen
from homo_dp.data.parties import load_federation
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.party_messages import PartyMessages
from homo_dp.runs.statistics import ask_and_publish
from homo_dp.tracking.mlflow.run_log import RunLog
from homo_dp.tracking.mlflow.tracker import MlflowTracker
from homo_dp.train import train
from homo_dp.transport.memory import MemoryHub
from tests.sentinels import Fact, facts_in, facts_of, found_in, spooled, value_in

VALUE = 0.7135791357913579  # of a feature, in rows of each party
DECLARED = 250
TABLES = {"a": 211, "b": 223}
# of users, where the config trusts the aggregator with the noise
TRUSTED = ("bits", "replies", "clip_norm")
OTHERS = {"a": 31, "b": 224}  # one row more, and many fewer
CONF = Path(__file__).parents[1] / "conf"
FROM_CONF = (
    *(
        "auto",
        "dp_fedavg",
        "dp_fedavg_adaptive",
        "dp_fedavg_secure",
        "homo_cnn_dpsgd",
        "homo_lr_dpsgd",
    ),
    *(
        "homo_lr_plain",
        "homo_lr_secure",
        "homo_nn_dpsgd",
        "homo_softmax_dpsgd",
        "nbafl",
        "primihub_homo_lr",
    ),
)
# as clusters, with the same mechanisms
BETWEEN_PROCESSES = ("federation", "federation_secure", "party_")
# descriptions of columns alone
OVERLAYS = ("primihub_binclass", "primihub_multiclass", "primihub_regression")
MORE: dict[str, dict[str, Any]] = {
    "metrics": {"metrics": {"release": "noised", "every": 1}},
    "metrics of parties": {"metrics": {"release": "noised", "per_party": True}},
    "estimated": {"data": {"scaling": "private"}, "privacy": {"target_epsilon": 8.0}},
    "masked metrics": {
        "privacy": {"mechanism": "dp_fedsgd", "secure_aggregation": True},
        "train": {"local_steps": None},
        "metrics": {"release": "noised"},
    },
    "regression": {
        "model": {"name": "linear_regression"},
        "data": {"target_bounds": [0, 1], "classes": None},
    },
    "statistics": {
        "privacy": {"mechanism": "statistics"},
        "train": {"local_steps": None},
        "statistics": {
            "ask": "rows,classes,means,variances,histograms,second_moments,missing,quantiles"
        },
    },
}
RECIPES = (*FROM_CONF, *MORE)


def test_every_recipe_is_looked_at() -> None:
    names = {path.stem for path in CONF.glob("*.yaml")}
    known = {*FROM_CONF, *OVERLAYS, *(name for name in names if name.startswith(BETWEEN_PROCESSES))}
    assert names == known


def _table(kind: str, rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    width, high = (64, 16.0) if kind == "digits" else (4, 1.0)
    frame = pd.DataFrame({f"x{i}": rng.uniform(0, high, rows) for i in range(width)})
    frame.loc[frame.index % 7 == 3, "x1"] = VALUE
    frame["y"] = (
        rng.integers(0, 10, rows)
        if kind == "digits"
        else (rng.uniform(size=rows) < 0.31).astype(int)
    )
    if kind == "users":
        frame["u"] = [f"u{seed}-{row // 5}" for row in range(rows)]
    return frame


def _data(kind: str, rows: Mapping[str, int], folder: Path) -> dict[str, Any]:
    """Tables with sentinels, and what is publicly said of them."""
    frames = {
        name: _table(kind, count, number) for number, (name, count) in enumerate(rows.items())
    }
    high = 16 if kind == "digits" else 1
    columns = {f"x{i}": {"bounds": [0, high]} for i in range(64 if kind == "digits" else 4)}
    data: dict[str, Any] = {
        "columns": columns,
        "label": "y",
        "test_fraction": 0.2,
        "classes": [0, 1],
    }
    if kind == "users":
        pd.concat(frames.values()).to_csv(folder / "all.csv", index=False)
        return data | {"files": str(folder / "all.csv"), "user_column": "u"}
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    data |= {
        "files": {name: str(folder / f"{name}.csv") for name in frames},
        "rows": dict.fromkeys(frames, DECLARED),
    }
    images = {"classes": list(range(10)), "image": {"shape": [1, 8, 8]}}
    return data | (images if kind == "digits" else {})


def _config(recipe: str, rows: Mapping[str, int], folder: Path) -> Config:
    """A recipe as it stands in ``conf/``, with two rounds, tables with sentinels and a store on
    another machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tree: dict[str, Any] = {
        "train": {"local_steps": 2, "batch_size": 50},
        "privacy": {"target_epsilon": 4.0},
    }
    if recipe in FROM_CONF:
        tree = parse_yaml((CONF / f"{recipe}.yaml").read_text())
    more = MORE.get(recipe, {})
    embedded = tree.get("data", {}).get("embedded")
    data = _data(embedded if embedded in ("digits", "users") else "binary", rows, folder)
    if "partition" in tree.get("data", {}) and embedded == "users":
        data["partition"] = tree["data"]["partition"]
        data["rows"] = {f"party_{number}": DECLARED for number in (1, 2, 3)}
    for section in ("train", "privacy", "model", "metrics", "statistics"):
        tree[section] = {**tree.get(section, {}), **more.get(section, {})}
    if tree["train"] or recipe != "auto":
        tree["train"] = {
            name: value for name, value in tree["train"].items() if value is not None
        } | {"rounds": 2}
    tree["data"] = {
        name: value for name, value in (data | more.get("data", {})).items() if value is not None
    }
    tree["privacy"]["ledger"] = str(folder / "ledger.sqlite")
    tree["tracking"] = {"uri": "http://127.0.0.1:9", "plots": False}
    names = {"predict": "predict.csv", "indicator": "indicator.json", "model": "model.safetensors"}
    tree["output"] = {f"{name}FileName": str(folder / "out" / file) for name, file in names.items()}
    return config_from(tree)


@dataclass
class Left:
    """What left the parties of one run, and what must not be in it."""

    messages: list[Message] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    told: list[Fact] = field(default_factory=list)  # to a store of runs on another machine
    counts: list[int] = field(default_factory=list)
    folder: str = ""

    def leaks(self) -> list[str]:
        """Where sentinels are: in messages, lines of the log, calls of MLflow and the files that
        went with them.
        """
        known, found = [self.folder], []
        for message in self.messages:
            if message.recipient == AGGREGATOR:
                tensors = [tensor.numpy() for tensor in message.tensors.values()]
                found += [
                    f"tensor of {message.kind}" for tensor in tensors if value_in(tensor, VALUE)
                ]
                facts = facts_of(dict(message.info), f"message.{message.kind}")
                found += found_in(facts, self.counts, [VALUE], known)
        found += found_in((("log", line) for line in self.lines), self.counts, [VALUE], known)
        return found + found_in(self.told, self.counts, [VALUE], known)


def _counts(config: Config) -> list[int]:
    """Numbers that nobody declared, where they are no small ones: rows, those that train, those
    of a class, users.
    """
    federation = load_federation(config)
    found = [sum(TABLES.values())]
    for data in federation.parties.values():
        labels = data.train.labels
        assert labels is not None
        found += [len(data.train), len(data.train) + (0 if data.test is None else len(data.test))]
        if not labels.is_floating_point():
            found += [int((labels == each).sum()) for each in (0, 1)]
    return sorted(
        {*found, *([] if federation.users is None else [federation.users])} - set(range(61))
    )


def _run(config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Left:
    """A run as a user starts it, with all that leaves its parties."""
    folder = Path(config.output.indicatorFileName).parent
    left = Left(counts=_counts(config), folder=str(folder.parent))
    post = MemoryHub.post

    def keep(hub: MemoryHub, message: Message) -> None:
        left.messages.append(message)
        post(hub, message)

    caplog.clear()
    with monkeypatch.context() as patched:
        patched.setattr(MemoryHub, "post", keep)
        # nothing is sent: it stays where it is kept
        patched.setattr(RunLog, "_start", lambda log, folder: None)
        with caplog.at_level(logging.DEBUG, "homo_dp"):
            screen = Screen(quiet=True, as_json=False)
            try:
                if config.privacy.mechanism == "statistics":
                    ask_and_publish(config, screen)
                else:
                    train(config, screen)
            finally:
                left.lines = [record.getMessage() for record in caplog.records]
                left.told = list(spooled(folder))
    model = folder / "model.safetensors"
    if model.exists():
        left.told += facts_in(model.name, model.read_bytes())
    return left


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Left]:
    """What left in the run of each recipe, once it was looked at."""
    return {}


@pytest.fixture
def left_of(
    runs: dict[str, Left],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Callable[[str], Left]:
    def look(recipe: str) -> Left:
        if recipe not in runs:
            runs[recipe] = _run(_config(recipe, TABLES, tmp_path / "first"), monkeypatch, caplog)
        return runs[recipe]

    return look


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_sentinel_leaves_a_party(left_of: Callable[[str], Left], recipe: str) -> None:
    left = left_of(recipe)
    assert any(message.recipient == AGGREGATOR for message in left.messages)
    assert {path.split(".")[1] for path, _ in left.told if path.startswith("mlflow.")} >= {
        "run",
        "params",
        "end",
    }
    assert left.counts
    assert left.leaks() == []


def _skeleton(message: Message) -> tuple[Any, ...]:
    """All of a message that is not the noisy numbers themselves."""
    head = message.info.get("ledger_head")
    count = head.get("count") if isinstance(head, dict) else None
    info = {
        key: value
        for key, value in message.info.items()
        if key not in ("ledger_head", "plan", "found", *TRUSTED)
    }
    shapes = {
        name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in message.tensors.items()
    }
    return (
        message.kind,
        message.round,
        message.sender,
        message.recipient,
        str(info),
        count,
        str(sorted(shapes.items())),
    )


@pytest.mark.parametrize("recipe", RECIPES)
def test_tables_that_differ_by_rows_give_the_same_messages(
    left_of: Callable[[str], Left],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    recipe: str,
) -> None:
    other = _run(_config(recipe, OTHERS, tmp_path / "other"), monkeypatch, caplog)
    assert [_skeleton(message) for message in other.messages] == [
        _skeleton(each) for each in left_of(recipe).messages
    ]


PLANTED = "homo_lr_dpsgd"


def _look(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Left:
    return _run(_config(PLANTED, TABLES, folder), monkeypatch, caplog)


@pytest.mark.parametrize(
    "leak",
    [
        "a count in a message",
        "a value in a tensor",
        "a line of the log",
        "a metric",
        "a tag",
        "a parameter",
        "a file",
    ],
)
def test_a_planted_leak_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, leak: str
) -> None:
    """The look itself can fail: each way out, with one number too many."""
    publish, finish, log_round = (
        PartyMessages.publish,
        MlflowTracker.finish,
        MlflowTracker.log_round,
    )

    def message(self: PartyMessages, answer: Message, releases: Any) -> None:
        tensors = dict(answer.tensors)
        if leak == "a value in a tensor":
            name = next(iter(tensors))
            tensors[name] = tensors[name].clone()
            tensors[name].view(-1)[0] = VALUE
        if leak == "a line of the log":
            logging.getLogger("homo_dp.federation").info("fitted %d rows", 211)
        publish(self, replace(answer, tensors=tensors), releases)

    def end(
        self: MlflowTracker, status: str, files: Any, tags: Any, metrics: Any = None
    ) -> str | None:
        folder = Path(self._log.unsent).parent
        if leak == "a tag":
            tags = {**tags, "note": "of 211 rows"}
        if leak == "a parameter":
            self._log.add("params", key="training", params={"rows": 211})
        if leak == "a file":
            (folder / "more.json").write_text(json.dumps({"x1": VALUE}))
            files = {**files, "more": folder / "more.json"}
        return finish(self, status, files, tags, metrics)

    def told(self: MlflowTracker, number: int, metrics: Any, parties: Any) -> None:
        log_round(
            self, number, {**metrics, "rows": 211.0} if leak == "a metric" else metrics, parties
        )

    join = PartyMessages.join
    # where one may stand that is declared: all others are refused when it is built
    if leak == "a count in a message":
        monkeypatch.setattr(
            PartyMessages, "join", lambda self, number, rows: join(self, number, 211)
        )
    monkeypatch.setattr(PartyMessages, "publish", message)
    monkeypatch.setattr(MlflowTracker, "finish", end)
    monkeypatch.setattr(MlflowTracker, "log_round", told)
    found = _look(tmp_path, monkeypatch, caplog).leaks()
    ways = {
        "a count in a message": "message.join",
        "a value in a tensor": "tensor of update",
        "a line of the log": "log",
        "a metric": "mlflow.",
        "a tag": "mlflow.tags",
        "a parameter": "mlflow.params",
        "a file": "mlflow.more.json",
    }
    assert any(text.startswith(ways[leak]) for text in found), found


def test_a_planted_dependence_of_messages_on_rows_is_found(
    left_of: Callable[[str], Left],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A party that refuses where it has few rows gives itself away by that alone."""
    expected, publish = (
        [_skeleton(each) for each in left_of(PLANTED).messages],
        PartyMessages.publish,
    )

    def message(self: PartyMessages, answer: Message, releases: Any) -> None:
        if self.name == "a":
            self.refuse(answer.round, "few_rows")
        publish(self, answer, releases)

    monkeypatch.setattr(PartyMessages, "publish", message)
    other = _run(_config(PLANTED, OTHERS, tmp_path), monkeypatch, caplog)
    assert [_skeleton(each) for each in other.messages] != expected


@pytest.mark.parametrize("recipe", [PLANTED, "homo_lr_secure", "homo_nn_dpsgd"])
def test_an_error_that_quotes_rows_stays_with_the_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, recipe: str
) -> None:
    """Whatever a fit fails with: the aggregator hears one word, and a store elsewhere the kind
    of error alone.
    """

    def fail(*_: object, **__: object) -> None:
        raise ValueError(f"row 7 of 211 has {VALUE}")

    monkeypatch.setattr(LocalFit, "fit", fail)
    config = _config(recipe, TABLES, tmp_path)
    folder, sent = Path(config.output.indicatorFileName).parent, list[Message]()
    post = MemoryHub.post

    def keep(hub: MemoryHub, message: Message) -> None:
        sent.append(message)
        post(hub, message)

    monkeypatch.setattr(MemoryHub, "post", keep)
    monkeypatch.setattr(RunLog, "_start", lambda log, folder: None)
    with caplog.at_level(logging.DEBUG, "homo_dp"), pytest.raises(ValueError, match="row 7"):
        train(config, Screen(quiet=True, as_json=False))
    lines = [record.getMessage() for record in caplog.records]
    left = Left(sent, lines, list(spooled(folder)), [211], str(tmp_path))
    assert left.leaks() == []
    assert "ValueError" in [value for path, value in left.told if path.endswith("tags.reason")]
    told = Left(told=[("mlflow.tags.reason", f"row 7 of 211 has {VALUE}")], counts=[211])
    assert len(told.leaks()) == 1


def test_the_look_finds_a_count_that_leaves() -> None:
    """The check itself can fail: a message that carries a count is found, and nothing else is."""
    told = facts_of(
        {
            "rows": 211,
            "released_rows": 223.0,
            "text": "at 223.5, aa223bb, 1.223",
            "hash": "+223/" * 8,
        }
    )
    assert found_in(told, [211, 223]) == [".rows: 211"]
    for leak in (
        {"rows": 223.0},
        {"said": "party_1 (223 rows)"},
        {"facts": '{"n": 223}'},
        {"n": {"223": 1}},
    ):
        assert len(found_in(facts_of(leak), [211, 223])) == 1, leak
