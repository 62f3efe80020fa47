"""Mistakes that new users of five kinds make with the commands and in Python: what they type, the
exit code, and what the answer has to name.

Each command answers with one line on stderr and leaves no file; each Python call raises an error
that says the same. Wrong tables are in test_wrong_inputs.py.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from homo_dp.core.errors import InputError
from homo_dp.main import main
from homo_dp.privacy.errors import PrivacyError
from tests.shell import Finished, run_command

BAD_INPUT, REFUSED = 2, 3
CONFIG = {
    "data": {
        "files": {"ward": "a.csv"},
        "name": "ward",
        "rows": {"ward": 160},
        "columns": {"x": {"bounds": [0, 10]}, "c": {"levels": ["red", "blue"]}},
    },
    "train": {"rounds": 2, "batch_size": 40},
    "tracking": {"enabled": False},
}
FEDERATEDSCOPE = {
    "federate": {"client_num": 10, "total_round_num": 2},
    "data": {"type": "toy"},
    "model": {"type": "lr"},
    "nbafl": {"use": True},
}
CHAPTER = '{"no_models": 10, "k": 2, "global_epochs": 2, "dp": true, "C": 1, "sigma": 0.5}'
PLAN = "budget plan --rows 100 --batch-size 10 --epochs 1"
MODEL = "modelFileName=out/model.safetensors"


class Mistake(NamedTuple):
    """What is typed, the exit code, and a pattern of the answer."""

    typed: str
    code: int
    answer: str


DATA_SCIENTIST = [
    Mistake("trian", BAD_INPUT, "no such command; did you mean train"),
    Mistake("train --confg t.yaml", BAD_INPUT, r"--confg t\.yaml; did you mean --config\?"),
    Mistake("train t.yaml", BAD_INPUT, r"a configuration stands after --config: --config t\.yaml"),
    Mistake(
        "train --params train.averaging.tail=0.2,train.averaging.decay=0.5", BAD_INPUT, "alone"
    ),
    Mistake("train -c t.yaml train.rounds=5", BAD_INPUT, "after --params: --params train.rounds=5"),
    Mistake("train -c t.yaml --params train.rounds = 5", BAD_INPUT, "without spaces around ="),
    Mistake("train --config nothere.yaml", BAD_INPUT, r"--config nothere\.yaml: no such file"),
    Mistake("train --config empty.yaml", BAD_INPUT, r"empty\.yaml: holds no settings"),
    Mistake("train --config comments.yaml", BAD_INPUT, r"comments\.yaml: holds no settings"),
    Mistake("train --config list.yaml", BAD_INPUT, r"list\.yaml: must hold sections"),
    Mistake("train --config keys", BAD_INPUT, "keys: is a directory"),
    Mistake("train --config tab.yaml", BAD_INPUT, r"tab\.yaml: line 2, column 1 is not valid YAML"),
    Mistake("train --config a.csv", BAD_INPUT, r"a\.csv: must hold sections"),
    Mistake("train -c t.yaml --params train.round=5", BAD_INPUT, "did you mean train.rounds"),
    Mistake("train -c t.yaml --params epsilon=2", BAD_INPUT, "did you mean privacy.target_epsilon"),
    Mistake("train -c t.yaml --params model.name=xgboost", BAD_INPUT, "must be one of logistic"),
    Mistake("train -c t.yaml --params model.name=cnn", BAD_INPUT, "needs images of shape"),
    Mistake("train -c t.yaml --params data.label=sick", BAD_INPUT, r"columns are id, x, c, y"),
    Mistake("train -c t.yaml --params predictFileName=a.csv", BAD_INPUT, "is the same file as"),
    Mistake("infer --data nothere.csv --params " + MODEL, BAD_INPUT, r"nothere\.csv: no such file"),
    Mistake("infer --data a.csv --params modelFileName=model.pt", BAD_INPUT, "no such model file"),
    Mistake("infer --data a.csv --params modelFileName=a.csv", BAD_INPUT, "not a model file"),
    Mistake("infer --data notes.txt --params " + MODEL, BAD_INPUT, r"notes\.txt: .* no rows"),
    Mistake(
        f"infer --data a.csv --params {MODEL},predictFileName=a.csv",
        BAD_INPUT,
        "is the table to score; give another path",
    ),
    Mistake("infer --params " + MODEL, BAD_INPUT, "give the table to score with --data"),
    Mistake("train -c t.yaml --params train.auto=yes!", BAD_INPUT, "must be true or false"),
    Mistake("describe nothere.csv", BAD_INPUT, r"nothere\.csv: no such file"),
    Mistake("data describe nothere.csv", BAD_INPUT, r"nothere\.csv: no such file"),
    Mistake("data draft a.csv", BAD_INPUT, "invalid choice: 'draft'"),
    Mistake("compare -c t.yaml", BAD_INPUT, "--vary is missing: name a key and its values"),
    Mistake("compare -c t.yaml --vary train.rounds", BAD_INPUT, "must be key=value1,value2"),
    Mistake("tune -c t.yaml --range train.rounds=9:1", BAD_INPUT, "low must be below high"),
    Mistake("init out", BAD_INPUT, "out: is there already and not empty"),
    Mistake(
        "init new --yes --table a=a.csv --label sick", BAD_INPUT, "the columns are id, x, c, y"
    ),
]
HOSPITAL_OPERATOR = [
    Mistake("party -c t.yaml", BAD_INPUT, "federation.run: is not given"),
    Mistake("party -c t.yaml --params federation.run=r", BAD_INPUT, "party.name: is not given"),
    Mistake(
        "party -c t.yaml --params federation.run=r,party.name=ward",
        BAD_INPUT,
        r"party\.key_file: is not given; make a key with",
    ),
    Mistake("party approve", BAD_INPUT, "approve: names no run"),
    Mistake("party approve r -c t.yaml", BAD_INPUT, "approve: party.name is not given"),
    Mistake(
        "party approve r -c t.yaml --params party.name=ward", BAD_INPUT, "run=r: no plan waits"
    ),
    Mistake("aggregator -c t.yaml --params federation.run=r", BAD_INPUT, "federation.parties: is"),
    Mistake("keys new ward --dir keys", BAD_INPUT, r"ward\.key exists: choose another NAME"),
    Mistake("keys new ../ward --dir keys", BAD_INPUT, "cannot be an id: use 1 to 64 letters"),
    Mistake("keys show a.csv", BAD_INPUT, r"a\.csv is not a private key"),
    Mistake("keys show keys", BAD_INPUT, "keys cannot be read: Is a directory"),
    Mistake("keys show keys/nobody.key", BAD_INPUT, "does not exist: make it with"),
    Mistake("status -c t.yaml --serve 99999", BAD_INPUT, "--serve 99999: cannot be bound"),
    Mistake("train -c t.yaml --params data.files.b=b.csv", BAD_INPUT, r"b\.csv: no such file"),
]
PRIVACY_OFFICER = [
    Mistake("train -c t.yaml --params privacy.target_epsilon=one", BAD_INPUT, "finite number"),
    Mistake("train -c t.yaml --params privacy.target_epsilon=0", BAD_INPUT, "above 0"),
    Mistake("train -c t.yaml --params privacy.delta=0.01", BAD_INPUT, r"delta=0\.01.*below"),
    Mistake("train -c t.yaml --params privacy.mechanism=laplace", BAD_INPUT, "must be one of dp_"),
    Mistake(
        "train -c t.yaml --params privacy.lifetime_epsilon=0.1", REFUSED, r"lifetime_epsilon=0\.1 "
    ),
    Mistake(PLAN + " --delta 1e-5", BAD_INPUT, "--noise-multiplier --target-epsilon is required"),
    Mistake(PLAN + " --noise-multiplier 0 --delta 1e-5", BAD_INPUT, "without noise there is no"),
    Mistake(PLAN + " --noise-multiplier 1 --delta 0.5", BAD_INPUT, r"delta=0\.5 must be in"),
    Mistake(
        "budget plan --rows 9 --batch-size 10 --epochs 1 --noise-multiplier 1 --delta 1e-5",
        BAD_INPUT,
        "batch_size=10 must be at most rows=9",
    ),
    Mistake("budget ledger show nothere.sqlite", BAD_INPUT, "there is no such file"),
    Mistake("budget ledger verify a.csv", 1, "is not a ledger"),
    Mistake("report nothere", BAD_INPUT, "nothere: is not a folder"),
    Mistake("report keys", BAD_INPUT, "holds no indicators of a training"),
    Mistake("report --check a.csv --key keys/ward.pub", BAD_INPUT, r"a\.csv\.sig: no such file"),
    Mistake("report out -o r.html --key keys/ward.pub", BAD_INPUT, r"give keys/ward\.key"),
    Mistake("audit -c t.yaml --runs 1", BAD_INPUT, "runs=1 is below 40"),
    Mistake("audit -c t.yaml --params privacy.mechanism=none", BAD_INPUT, "nothing to refute"),
    Mistake("audit -c t.yaml --confidence 2", BAD_INPUT, r"outside \[0\.5, 1\)"),
    Mistake("stats -c t.yaml --ask median", BAD_INPUT, "must be one of rows, .*quantiles"),
    Mistake("stats -c t.yaml --ask means --columns age", BAD_INPUT, "=age: is not a described"),
]
MLFLOW_USER = [
    Mistake("ui --uri http://127.0.0.1:1", BAD_INPUT, "open the address .* in a browser"),
    Mistake("ui --uri sqlite:///none.db", BAD_INPUT, r"none\.db is not there; train first"),
    Mistake("ui --port 0", BAD_INPUT, "--port 0: must be a port"),
    Mistake("report 3f0c9f5e9d0e4c1d --uri sqlite:///none.db", BAD_INPUT, "is not a folder, and"),
    Mistake("train -c t.yaml --params tracking.uri=mlflow.db", BAD_INPUT, "sqlite:///mlflow.db"),
    Mistake("train -c t.yaml --params tracking.uri=my://x", BAD_INPUT, "no address of a store"),
    Mistake("train -c t.yaml --params tracking.model_name=a/b", BAD_INPUT, "leave out '/' and ':'"),
    Mistake("train -c t.yaml --params tracking.url=x", BAD_INPUT, "did you mean tracking.uri"),
    Mistake("train -c t.yaml --params mlflow.uri=x", BAD_INPUT, "mlflow.* unknown key"),
    Mistake(
        "infer --data a.csv --params modelFileName=models:/screening/1,tracking.uri=sqlite:///no.db",
        BAD_INPUT,
        r"tracking\.uri=sqlite:///no\.db is not a store",
    ),
    Mistake("audit -c t.yaml --runs 40 --mlflow-run", BAD_INPUT, "expected one argument"),
]
FROM_OTHER_SYSTEMS = [
    Mistake("train --cfg fs.yaml federate.total_round_num", BAD_INPUT, "has no value; give"),
    Mistake("train --cfg fs.yaml federate.method Ditto", BAD_INPUT, "ours are FedAvg, FedOpt and"),
    Mistake("train --cfg fs.yaml model.type gcn", BAD_INPUT, "model.type=gcn: has no counterpart"),
    Mistake("train --cfg fs.yaml asyn.use True", BAD_INPUT, "set asyn.use=false"),
    Mistake("train --cfg fs.yaml data.type femnist", BAD_INPUT, "are not shipped; give"),
    Mistake("train -c conf.json --params privacy.clip_norm=0", BAD_INPUT, "clip_norm=0: must be"),
    Mistake("train -c nodp.json", BAD_INPUT, "dp=None: must be true .* or false"),
    Mistake("primihub", BAD_INPUT, "--task_code, --task_config_file: give one of them"),
    Mistake("primihub --task_type=3", BAD_INPUT, "is PSI, not training"),
    Mistake("primihub --task_config_file=t.yaml", BAD_INPUT, "is not valid JSON"),
    Mistake("primihub --task_code=xgb.py", BAD_INPUT, "no such file, and no example"),
]
COMMANDS = {
    "data scientist": DATA_SCIENTIST,
    "hospital operator": HOSPITAL_OPERATOR,
    "privacy officer": PRIVACY_OFFICER,
    "MLflow user": MLFLOW_USER,
    "from PrimiHub and FederatedScope": FROM_OTHER_SYSTEMS,
}

# What a script writes, and the answer; an uncaught error ends a script with exit code 1.
PYTHON = [
    ("fit(tables, bounds=(-1, 1), ledger=None)", "epsilon: is not given"),
    ("fit(tables, epsilon=1, bounds=(-1, 1))", "ledger: is not given"),
    ("fit(tables, epsilon=1, ledger=None)", "has no bounds or levels"),
    ("fit(tables, epsilon=-1, bounds=(-1, 1), ledger=None)", "target_epsilon=-1: must be"),
    ("fit(tables, epsilon=1, bounds=(1, -1), ledger=None)", "must have low < high"),
    ("fit([X, y], epsilon=1, bounds=(-1, 1), ledger=None)", r"is a list; give a pandas"),
    ("fit({'a': (X, y[:9])}, epsilon=1, bounds=(-1, 1), ledger=None)", "200 rows and y has 9"),
    (
        "fit({'a': (X, words)}, epsilon=1, bounds=(-1, 1), ledger=None)",
        r"is not one of classes=\[0, 1\]",
    ),
    (
        "fit(tables, epsilon=1, bounds=(-1, 1), ledger=None, settings={'train.epochs': 3})",
        "train.epochs: unknown key; did you mean train.local_epochs",
    ),
    (
        "fit(tables, epsilon=1, bounds=(-1, 1), ledger=None, model=net())",
        "is a Sequential that is already made; give its class or a function",
    ),
    ("load('nothere.safetensors')", "no such model file"),
]
OPACUS = [
    ("private(net(norm=True))", "BatchNorm1d mixes the rows of a batch.*GroupNorm"),
    ("private(net(), noise_multiplier=0.0)", "noise_multiplier=0.0 is not"),
    ("private(net(), max_grad_norm=-1.0)", "max_grad_norm=-1.0 is not > 0"),
    ("private(net(), optimizer=sgd(net()))", "parameters that the model has not"),
    ("private(net(), data_loader=[1, 2])", r"is a list; give a torch\.utils\.data\.DataLoader"),
    ("private(net(), clipping='weird')", "clipping='weird' does not go with"),
    ("PrivacyEngine(accountant='magic')", "accountant='magic'.*use rdp or prv"),
]
FLOWER = [
    ("clients([one_round, one_round])", r"clients: is a list; give \{name: client\}"),
    ("clients({})", "clients: is empty"),
    ("clients({'a': 3})", "has no fit"),
    ("clients({'a': lambda weights: weights})", "round 1 asked failed; a: TypeError"),
    ("clients({'a': lambda weights, config: None})", "fit returned NoneType; a list of 1 arrays"),
    ("clients({'a': one_round}, net().state_dict())", "weights: is a OrderedDict; give a list of"),
    ("clients({'a': one_round}, [np.zeros(2, dtype=int)])", "holds int64, not floats"),
    ("clients({'a': one_round}, epsilon=1)", "epsilon=1, noise_multiplier=1.0: one follows"),
    ("clients({'a': one_round}, cohort_size=5)", "cohort_size=5: must be at most"),
    ("clients({'a': one_round}, clip_norm=0)", "clip_norm=0: must be"),
    ("clients({'a': one_round}, rounds=0)", "train.rounds=0: must be"),
]
SETUP = """
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from homo_dp import fit, load, train_clients
from homo_dp.opacus import PrivacyEngine

X = np.random.default_rng(0).uniform(-1, 1, (200, 2))
y = (X.sum(axis=1) > 0).astype(int)
tables, words = {"a": (X, y)}, np.where(y, "sick", "well")

def net(norm=False):
    layers = [torch.nn.Linear(2, 4), *([torch.nn.BatchNorm1d(4)] if norm else [])]
    return torch.nn.Sequential(*layers, torch.nn.Linear(4, 2))

def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)

def private(module, **options):
    rows = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(y))
    asked = {"optimizer": sgd(module), "data_loader": DataLoader(rows, batch_size=20)}
    asked |= {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
    return PrivacyEngine().make_private(module=module, **(asked | options))

def one_round(weights, config):
    return weights

def clients(given, weights=(np.zeros(2),), **options):
    asked = {"rounds": 1, "clip_norm": 1.0, "noise_multiplier": 1.0, "ledger": None}
    return train_clients(given, weights, **(asked | options))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it after a first run: tables, configs, keys, a trained model."""
    folder = tmp_path_factory.mktemp("project")
    rows = [f"{n},{n % 10},{'red' if n % 2 else 'blue'},{n % 2}" for n in range(200)]
    texts = {
        "a.csv": "\n".join(["id,x,c,y", *rows]) + "\n",
        "t.yaml": yaml.safe_dump(CONFIG),
        "fs.yaml": yaml.safe_dump(FEDERATEDSCOPE),
        "conf.json": CHAPTER,
        "nodp.json": CHAPTER.replace('"dp": true, ', ""),
        "empty.yaml": "",
        "comments.yaml": "# rounds: 5\n",
        "list.yaml": "- data\n- train\n",
        "tab.yaml": "data:\n\tfiles: a.csv\n",
        "notes.txt": "see the ward's table",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "-c", "t.yaml", "--quiet"]) == 0
        assert main(["keys", "new", "ward", "--dir", "keys"]) == 0
    return folder


def typed(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Finished:
    words = shlex.split(line)
    return run_command(lambda _: main(words), words, monkeypatch, capsys)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if "ledger.sqlite" not in path.name)


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(mistake, id=f"{user}: {mistake.typed}")
        for user, mistakes in COMMANDS.items()
        for mistake in mistakes
    ],
)
def test_a_mistake_at_a_command_is_answered_in_one_line_and_leaves_no_file(
    mistake: Mistake,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trained)
    before = files_in(trained)
    done = typed(mistake.typed, monkeypatch, capsys)
    said = [line for line in done.err.splitlines() if not line.startswith(("note:", "warning:"))]
    assert done.code == mistake.code, done.err
    assert "Traceback" not in done.err
    answers = [line for line in said if re.search(r"error:|refused:|bad ledger:", line)]
    assert len(answers) == 1, done.err
    assert re.search(mistake.answer, answers[0]), answers[0]
    assert files_in(trained) == before


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        pytest.param(code, answer, id=f"{user}: {code}")
        for user, cases in (("Python", PYTHON), ("Opacus", OPACUS), ("Flower", FLOWER))
        for code, answer in cases
    ],
)
def test_a_mistake_in_python_is_an_error_that_says_what_to_do(
    code: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(SETUP, names)
    with pytest.raises((InputError, PrivacyError), match=answer):
        exec(code, names)
    assert files_in(tmp_path) == []


def test_the_project_behind_the_mistakes_is_good(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that each answer is about the mistake."""
    monkeypatch.chdir(trained)
    for line in (
        "train -c t.yaml --dry-run",
        "train --cfg fs.yaml --dry-run",
        "train -c conf.json --dry-run",
        "keys show keys/ward.key",
        PLAN + " --noise-multiplier 1 --delta 1e-5",
    ):
        assert typed(line, monkeypatch, capsys).code == 0, line


def test_the_table_has_sixty_mistakes_and_more() -> None:
    assert sum(map(len, COMMANDS.values())) >= 60
    assert all(len(mistakes) >= 10 for mistakes in COMMANDS.values())
    assert all(len(cases) >= 7 for cases in (PYTHON, OPACUS, FLOWER))
