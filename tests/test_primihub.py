"""PrimiHub's command lines and task files, as its users paste them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from homo_dp.core.errors import ConfigError
from homo_dp.data.embedded import load_embedded
from homo_dp.primihub import main

OUTPUTS = "predictFileName:STRING:0:o/p.csv,indicatorFileName:STRING:0:o/i.json,modelFileName:STRING:0:o/m"
QUICK = ["--params", "train.rounds=3,tracking.enabled=false", "--quiet"]
CODE = """
import primihub as ph
raise SystemExit("a task's file is read, never run")
config = {'mode': 'DPSGD', 'delta': 1e-3, 'noise_multiplier': 2.0, 'l2_norm_clip': 1.0, 'secure_mode': True,
          'learning_rate': 'optimal', 'alpha': 0.0001, 'batch_size': 50, 'max_iter': 100, 'category': 2}
@ph.context.function(role='arbiter', protocol='lr', datasets=['train_homo_lr'], port='9010', task_type="lr-train")
def run_arbiter_party(): pass
@ph.context.function(role='host', protocol='lr', datasets=['train_host'], port='9020', task_type="lr-train")
def run_host_party(): pass
@ph.context.function(role='guest', protocol='lr', datasets=['train_guest'], port='9030', task_type="lr-train")
def run_guest_party(): pass
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tables, a registry that names them, and a working directory."""
    monkeypatch.chdir(tmp_path)
    frame = load_embedded("breast_cancer").frame.rename(columns={})
    for at, name in enumerate(("host", "guest")):
        frame.iloc[at::2].to_csv(tmp_path / f"{name}.csv", index=False)
    entries = {
        "train_host": "host",
        "train_guest": "guest",
        "binclass_hfl_train_client1": "host",
        "test_homo_lr": "guest",
    }
    entries["binclass_hfl_train_client2"] = "guest"
    lines = [
        f"  - {{description: {name}, model: csv, source: {file}.csv}}"
        for name, file in entries.items()
    ]
    (tmp_path / "node1.yaml").write_text("\n".join(["version: 1.0", "datasets:", *lines]))
    return tmp_path


def task(process: str = "train") -> dict[str, object]:
    """PrimiHub's example/FL/logistic_regression, as it is there."""
    common = {
        "model": "HFL_logistic_regression",
        "process": process,
        "task_name": "HFL_logistic_regression_binclass",
    }
    training = {
        "method": "DPSGD",
        "delta": 1e-3,
        "l2_norm_clip": 1.0,
        "noise_multiplier": 2.0,
        "secure_mode": True,
    }
    training |= {
        "learning_rate": "optimal",
        "alpha": 0.0001,
        "batch_size": 100,
        "global_epoch": 10,
        "local_epoch": 1,
    }
    paths = {
        name: {
            "data_set": f"binclass_hfl_train_client{at}",
            "model_path": f"data/result/{name}_model.pkl",
            **({"metric_path": f"data/result/{name}_metrics.json"} if process == "train" else {}),
            "predict_path": f"data/result/{name}_predict.csv",
        }
        for at, name in ((1, "Bob"), (2, "Charlie"))
    }
    parties = list(paths) if process == "train" else "Bob"
    server = {
        "Alice": {"data_set": "fl_fake_data", "metric_path": "data/result/server_metrics.json"}
    }
    return {
        "party_info": {"task_manager": "127.0.0.1:50050"},
        "component_params": {
            "roles": {"client": parties, **({"server": "Alice"} if process == "train" else {})},
            "common_params": common | (training if process == "train" else {}),
            "role_params": {**paths, **(server if process == "train" else {})},
        },
    }


def written(path: str) -> list[list[str]]:
    with Path(path).open(newline="") as file:
        return list(csv.reader(file))


def test_the_older_line_trains_and_then_scores_with_nothing_else_at_hand() -> None:
    line = ["primihub-cli", "--task_type=0", "--task_lang=python", "--server=127.0.0.1:50050"]
    assert (
        main([*line, "--task_code=primihub/FL/homo_lr_dpsgd.py", f"--params={OUTPUTS}", *QUICK])
        == 0
    )
    statement = json.loads(Path("o/i.json").read_text())["privacy"]
    assert statement["delta"] == 1e-3
    assert [party["noise_multiplier"] for party in statement["parties"].values()] == [2.0, 2.0]
    code = "--task_code=primihub/FL/homo_lr_infer.py"
    assert (
        main(
            [
                *line,
                code,
                "--params=modelFileName:STRING:0:o/m,predictFileName:STRING:0:o/s.csv",
                "--quiet",
            ]
        )
        == 0
    )
    assert written("o/s.csv")[0][-2:] == ["pred_prob", "pred_y"]


def test_a_task_in_python_is_read_with_its_roles_and_never_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("homo_lr_dpsgd.py").write_text(CODE)
    line = ["--task_lang=python", "--task_code=homo_lr_dpsgd.py", "--registry", "node1.yaml"]
    assert main([*line, "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said["parties"]) == {"host", "guest"}
    Path("homo_lr_infer.py").write_text("infer_data = ['test_homo_lr']\n")
    assert main([*line, f"--params={OUTPUTS}", *QUICK]) == 0
    line[1] = "--task_code=homo_lr_infer.py"
    assert (
        main(
            [
                *line,
                "--params=modelFileName:STRING:0:o/m,predictFileName:STRING:0:o/s.csv",
                "--quiet",
            ]
        )
        == 0
    )
    assert len(written("o/s.csv")) == len(written("guest.csv"))


def test_a_task_file_gives_each_client_its_files_and_predicts_with_them() -> None:
    Path("t.json").write_text(json.dumps(task()))
    assert main(["--task_config_file=t.json", "--registry", "node1.yaml", *QUICK]) == 0
    assert json.loads(Path("data/result/server_metrics.json").read_text())["privacy"][
        "parties"
    ].keys() == {
        "Bob",
        "Charlie",
    }
    own = json.loads(Path("data/result/Bob_metrics.json").read_text())
    assert list(own["privacy"]["parties"]) == ["Bob"]
    assert {"train_acc", "test_acc"} <= set(own["local_only"])
    # its own test rows
    assert len(written("data/result/Bob_predict.csv")) < len(written("host.csv")) / 2
    model = Path("data/result/Charlie_model.pkl").read_bytes()
    assert model == Path("data/result/Bob_model.pkl").read_bytes()
    assert not model.startswith(b"\x80")  # no pickle
    Path("p.json").write_text(json.dumps(task("predict")))
    assert main(["--task_config_file=p.json", "--registry", "node1.yaml", "--quiet"]) == 0
    assert len(written("data/result/Bob_predict.csv")) == len(written("host.csv"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--task_type=3"], "is PSI, not training"),
        (["--task_type=2"], "is PIR"),
        (["--task_lang=proto", "--task_code=logistic_regression"], "MPC"),
        (["--task_code=x/homo_lr_paillier.py"], "Paillier"),
        (["--task_code=x/homo_xgb.py"], "no example of PrimiHub's"),
        ([], "give one of them"),
        (["--task_config_file=none.json"], "no such file"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_the_reason(line: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        main(line)


def test_a_task_without_a_registry_says_what_to_add() -> None:
    Path("t.json").write_text(json.dumps(task()))
    with pytest.raises(ConfigError, match=r"data\.files\.Bob.*data\.registry=FILE"):
        main(["--task_config_file=t.json", "--quiet"])


def test_training_refuses_a_task_that_predicts() -> None:
    from homo_dp.train import main as train

    Path("p.json").write_text(json.dumps(task("predict")))
    with pytest.raises(ConfigError, match="scores a table"):
        train(["--config", "p.json"])


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ("model: sqlite, source: a.db3, table_name: t", "sqlite:///a.db3#t"),
        ("model: image, image_dir: a.zip, annotations_file: a.csv", "a.zip#a.csv"),
        (
            (
                "model: mysql, host: db, port: 3306, username: root, password: 'p/w', dbName: psi, "
                "tableName: t"
            ),
            "mysql+pymysql://root:p%2Fw@db:3306/psi#t",
        ),
    ],
)
def test_the_models_of_a_registry(entry: str, address: str) -> None:
    from homo_dp.compat.primihub.registry import read_registry

    Path("r.yaml").write_text(f"datasets: [{{description: d, {entry}}}]")
    assert read_registry(["r.yaml"]) == {"d": address}


def test_what_the_line_sets_or_replaces_is_not_taken_from_the_task(place: Path) -> None:
    """`noise_multiplier` of the task gives way to a target epsilon, as its rounds give way to a
    config.
    """
    (place / "over.yaml").write_text("train: {rounds: 2}\n")
    line = ["--task_code=homo_lr_dpsgd.py", "--config", "over.yaml", "--params"]
    line += ["privacy.target_epsilon=2,tracking.enabled=false," + OUTPUTS, "--quiet"]
    assert main(line) == 0
    privacy = json.loads((place / "o/i.json").read_text())["privacy"]
    assert 1.5 < privacy["epsilon"] <= 2
    assert len(json.loads((place / "o/i.json").read_text())["rounds"]) == 2


def test_what_a_task_in_python_leaves_open_is_primihubs(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "homo_lr_mine.py").write_text("config = {'mode': 'DPSGD', 'max_iter': 3}\n")
    line = ["--task_code=homo_lr_mine.py", "--dry-run", "--params", "tracking.enabled=false"]
    assert main(line) == 0
    said = capsys.readouterr()
    assert "noise_multiplier=2.0" in said.err
    assert "batch_size=50" in said.err
    assert "delta=" not in said.err
