"""Networks, several classes, numbers, images and the user's own models, from training to
scoring, as a user does it.
"""

import csv
import gzip
import importlib.util
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import homo_dp.train as train
from homo_dp import infer
from homo_dp.config.load import load_config
from homo_dp.models.scoring import round_metrics
from homo_dp.runs.simulation import Simulation
from tests.shell import CommandLine, Finished, run_command

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
COLUMNS = "data.columns={a: {bounds: [-3, 3]}, b: {bounds: [-3, 3]}}"
GRADES = "data.classes=[low, middle, high]"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Shell(CommandLine):
    def train(self, *arguments: str) -> Finished:
        usual = ["tracking.enabled=false", "train.rounds=3", "privacy.delta=1e-3"]
        return self.run(train.main, ["--params", *usual, *arguments])

    def infer(self, *arguments: str) -> Finished:
        usual = [
            "--params",
            "modelFileName=out/model.safetensors,predictFileName=p.csv,indicatorFileName=i.json",
        ]
        return self.run(infer.main, [*usual, *arguments])


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def table(path: str, rows: int, seed: int, kind: str) -> None:
    """Two features; the label is their sum, or a grade of it."""
    draw = np.random.default_rng(seed)
    names = ["low", "middle", "high"]
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "a", "b", "y"])
        for number in range(rows):
            a, b = draw.normal(size=2)
            total = a + b
            grade = names[int(total > -0.7) + int(total > 0.7)]
            label = {"grade": grade, "sign": "Yes" if total > 0 else "No", "sum": f"{total:.4f}"}[
                kind
            ]
            writer.writerow([number, f"{a:.4f}", f"{b:.4f}", label])


def two_parties(kind: str) -> str:
    table("a.csv", 150, 1, kind)
    table("b.csv", 150, 2, kind)
    table("t.csv", 60, 3, kind)
    return f"data.files.a=a.csv,data.files.b=b.csv,data.test_file=t.csv,{COLUMNS}"


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def read(path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(path).read_text())
    return loaded


def same_when_scored_again(shell: Shell, *arguments: str) -> list[dict[str, str]]:
    """Score the test table with the saved model: the predictions and indicators of training come
    back.
    """
    trained, before = rows_of("out/predict.csv"), read("out/indicator.json")
    done = shell.infer(*arguments)
    assert done.code == 0, done.err
    scored, after = rows_of("p.csv"), read("i.json")
    assert len(scored) == len(trained)
    for row, old in zip(scored, trained, strict=True):
        assert row["pred_y"] == old["pred_y"] or float(row["pred_y"]) == pytest.approx(
            float(old["pred_y"]), abs=1e-4
        )
        for name in (name for name in row if name.startswith(("prob_", "pred_prob"))):
            assert float(row[name]) == pytest.approx(float(old[name]), abs=1e-5)
    assert after.get("test_confusion_matrix") == before.get("test_confusion_matrix")
    for name in {"test_loss", "test_acc", "test_f1_weighted", "test_mse", "test_r2"} & set(before):
        assert after[name] == pytest.approx(before[name], rel=1e-4), name
    return scored


@pytest.mark.parametrize(
    "model", ["model.name=logistic_regression", "model.name=mlp,model.activation=tempered_sigmoid"]
)
def test_several_classes(shell: Shell, model: str) -> None:
    done = shell.train(two_parties("grade"), GRADES, model)
    assert done.code == 0, done.err
    indicators = read("out/indicator.json")
    for part in ("train", "test"):
        for name in (
            "loss",
            "acc",
            "auc",
            "f1",
            "precision",
            "recall",
            "f1_weighted",
            "precision_weighted",
        ):
            assert 0 <= indicators[f"{part}_{name}"] < 5, name
        assert list(indicators[f"{part}_per_class"]) == ["low", "middle", "high"]
    confusion = indicators["test_confusion_matrix"]
    assert np.shape(confusion) == (3, 3)
    assert np.trace(confusion) == pytest.approx(60 * indicators["test_acc"])
    scored = same_when_scored_again(shell, "--data", "t.csv")
    assert list(scored[0])[-5:] == ["prob_low", "prob_middle", "prob_high", "pred_prob", "pred_y"]
    for row in scored:
        chances = {name: float(row[f"prob_{name}"]) for name in ("low", "middle", "high")}
        assert math.isclose(sum(chances.values()), 1, abs_tol=1e-5)
        assert (row["pred_y"], float(row["pred_prob"])) == max(
            chances.items(), key=lambda pair: pair[1]
        )


def test_classes_that_are_words(shell: Shell) -> None:
    assert shell.train(two_parties("sign"), "data.classes=[No, Yes]").code == 0
    scored = same_when_scored_again(shell, "--data", "t.csv")
    assert {row["pred_y"] for row in scored} == {"No", "Yes"}
    assert all((float(row["pred_prob"]) >= 0.5) == (row["pred_y"] == "Yes") for row in scored)


@pytest.mark.parametrize(
    "model", ["model.name=linear_regression", "model.name=mlp,model.task=regression"]
)
def test_numbers(shell: Shell, model: str) -> None:
    gentle = (
        "privacy.noise_multiplier=0.3,train.auto=false,train.learning_rate=0.05,train.rounds=10"
    )
    done = shell.train(two_parties("sum"), "data.target_bounds=[-5, 5]", model, gentle)
    assert done.code == 0, done.err
    assert "r2" in done.out
    assert "accuracy" not in done.err
    indicators = read("out/indicator.json")
    for name in ("loss", "ev", "maxe", "mae", "mse", "rmse", "medae", "r2"):
        assert isinstance(indicators[f"test_{name}"], float), name
    assert [row["test_acc"] for row in indicators["rounds"]] == [None] * 10
    # In the label's own units, which have a standard deviation of 1.4; in 20 runs of each model it
    # was at most 1.18.
    assert indicators["test_rmse"] < 1.3
    scored = same_when_scored_again(shell, "--data", "t.csv")
    assert list(scored[0]) == ["id", "a", "b", "y", "pred_y"]
    errors = [(float(row["y"]) - float(row["pred_y"])) ** 2 for row in scored]
    assert sum(errors) / len(errors) == pytest.approx(indicators["test_mse"], rel=1e-3)


def test_a_factory_model_is_fixed_trained_saved_and_needs_trust(shell: Shell) -> None:
    Path("my_model.py").write_text(
        "from torch import nn\nimport torch.nn.functional as F\n\n\ndef make(input_shape, outputs, "
        "width=4):\n    layers = nn.Linear(input_shape[0], width), nn.BatchNorm1d(width), "
        "nn.ReLU(), nn.Linear(width, outputs)\n    return nn.Sequential(*layers), lambda found, "
        "labels: F.cross_entropy(found, labels, reduction='none')\n"
    )
    arguments = [two_parties("grade"), GRADES, "model.factory=my_model:make,model.options.width=6"]
    refused = shell.train(*arguments)
    assert (refused.code, len(refused.error_lines)) == (2, 1)
    assert "BatchNorm1d mixes the rows" in refused.err
    assert "model.fix=true" in refused.err
    assert not Path("out").exists()
    done = shell.train(*arguments, "model.fix=true")
    assert done.code == 0, done.err
    # no running statistics: a GroupNorm
    names = {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
    assert set(load_file("out/model.safetensors")) == names
    refused = shell.infer("--data", "t.csv")
    assert (refused.code, len(refused.error_lines)) == (2, 1)
    assert "my_model:make" in refused.err
    assert "--trust-factory" in refused.err
    assert not Path("p.csv").exists()
    same_when_scored_again(shell, "--trust-factory", "--data", "t.csv")


def test_a_model_that_is_not_fast_is_trained_and_the_reason_said_once(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    Path("my_slow_model.py").write_text(
        "from torch import nn\n\n\ndef make(input_shape, outputs):\n    return "
        "nn.Sequential(nn.Linear(input_shape[0], 4), nn.PReLU(), nn.Linear(4, outputs))\n"
    )
    done = shell.train(
        two_parties("sign"), "data.classes=[No, Yes]", "model.factory=my_slow_model:make"
    )
    assert done.code == 0, done.err
    assert caplog.text.count("grad_sample_mode=hooks") == 1
    assert "1: PReLU has no fast gradient" in caplog.text


def images(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A bright upper or lower half."""
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 100, size=(rows, 6, 6), dtype=np.uint8)
    labels = draw.integers(0, 2, size=rows, dtype=np.uint8)
    for half in (0, 1):
        pixels[labels == half, 3 * half : 3 * half + 3] += 120
    return pixels, labels


def idx(path: str, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    opened: Any = gzip.open if path.endswith(".gz") else open
    with opened(path, "wb") as file:
        file.write(header + array.tobytes())


@pytest.mark.parametrize(
    "model", ["model.name=cnn,model.channels=[4],model.layers=[]", "model.name=mlp"]
)
def test_images_of_one_npz_by_its_party_array(shell: Shell, model: str) -> None:
    x, y = images(300, 1)
    np.savez(
        "all.npz",
        x=x,
        y=y,
        party=np.array(["north", "south", "west"] * 100),
        user=np.arange(300) % 50,
    )
    done = shell.train("data.files=all.npz,data.party_column=party", model, "train.learning_rate=1")
    assert done.code == 0, done.err
    assert set(read("out/indicator.json")["privacy"]["parties"]) == {"north", "south", "west"}
    scored = rows_of("out/predict.csv")
    assert {"id", "y", "party", "user", "pred_prob", "pred_y"} <= set(scored[0])
    assert shell.infer("--data", "all.npz").code == 0
    by_id = {row["id"]: row["pred_y"] for row in rows_of("p.csv")}
    assert len(by_id) == 300
    assert all(by_id[row["id"]] == row["pred_y"] for row in scored)


def test_images_of_idx_files(shell: Shell) -> None:
    for party, seed, ending in (("a", 1, ""), ("b", 2, ".gz"), ("t", 3, ".gz")):
        x, y = images(150, seed)
        idx(f"{party}-images-idx3-ubyte{ending}", x)
        idx(f"{party}-labels-idx1-ubyte{ending}", y)
    files = "data.files.a=a-images-idx3-ubyte,data.files.b=b-images-idx3-ubyte.gz,data.test_file=t-images-idx3-ubyte.gz"
    done = shell.train(
        files, "model.name=cnn,model.channels=[4],model.layers=[],train.learning_rate=1"
    )
    assert done.code == 0, done.err
    scored = same_when_scored_again(shell, "--data", "t-images-idx3-ubyte.gz")
    assert list(scored[0]) == ["id", "y", "pred_prob", "pred_y"]
    wrong = shell.infer("--data", "absent.npz")
    assert (wrong.code, len(wrong.error_lines)) == (2, 1)


def simulate(recipe: str | None, **overrides: Any) -> Simulation:
    usual = {"privacy.ledger": "l.sqlite"} if overrides.get("privacy.mechanism") != "none" else {}
    path = None if recipe is None else CONF / f"{recipe}.yaml"
    return Simulation(load_config(path, {**usual, **overrides}), lambda row, parties: None)


def accuracy(simulation: Simulation) -> float:
    outcome = simulation.run()
    outcome.load_weights()
    found = round_metrics(outcome.model.module, outcome.model.task, simulation.test_tables)[
        "test_acc"
    ]
    return found or 0.0


@pytest.mark.parametrize(
    "settings",
    [
        {"train.optimizer": "sgd", "train.learning_rate": 0.5, "train.momentum": 0.9},
        {"train.optimizer": "adam", "train.learning_rate": 0.2},
        {"train.schedule": "cosine"},
        {"train.schedule": "step"},
        {"train.schedule": "inverse_sqrt"},
        {"train.schedule": "optimal", "train.weight_decay": 1e-3},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_optimisers_and_schedules_learn(settings: dict[str, Any]) -> None:
    # The majority class is 0.63 of the rows; at this noise the accuracy was between 0.88 and 0.97
    # in 20 runs of each.
    simulation = simulate(None, **{"train.rounds": 5, "privacy.noise_multiplier": 0.5, **settings})
    assert accuracy(simulation) > 0.75


@pytest.mark.parametrize("model", ["logistic_regression", "mlp", "cnn"])
def test_a_physical_batch_changes_neither_weights_nor_epsilon(model: str) -> None:
    def run(size: int | None) -> tuple[dict[str, torch.Tensor], float]:
        keys: dict[str, Any] = {
            "privacy.seeded_noise_for_tests": 5,
            "privacy.target_epsilon": 8.0,
            "privacy.delta": 1e-4,
        }
        shape = {"model.channels": [4], "model.layers": []} if model == "cnn" else {}
        keys |= {
            "data.embedded": "digits",
            "model.name": model,
            **shape,
            "train.rounds": 2,
            "train.batch_size": 100,
        }
        outcome = simulate(None, **{**keys, "train.physical_batch_size": size}).run()
        return outcome.weights, outcome.statement["parties"]["party_1"]["epsilon_pld"]

    whole, epsilon = run(None)
    pieces, same = run(17)
    assert epsilon == same
    assert all(torch.allclose(whole[name], pieces[name], atol=1e-4) for name in whole)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line(shell: Shell) -> None:
    done = shell.train("train.device=cuda")
    assert (done.code, len(done.error_lines)) == (2, 1)
    assert "train.device=auto" in done.err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mechanism", ["dp_sgd", "none"])
def test_training_on_cuda(mechanism: str) -> None:
    simulation = simulate(
        None, **{"train.rounds": 5, "train.device": "cuda", "privacy.mechanism": mechanism}
    )
    fits = [party.fit for party in simulation.parties.values()]
    assert {fit.features.device.type for fit in fits} == {"cuda"}
    assert {parameter.device.type for fit in fits for parameter in fit.model.parameters()} == {
        "cuda"
    }
    assert accuracy(simulation) > 0.75


# Each threshold is at least 4 standard deviations below the mean of the runs in docs/models.md.
@pytest.mark.parametrize(
    ("recipe", "overrides", "least"),
    [
        ("homo_softmax_dpsgd", {}, 0.90),
        ("homo_nn_dpsgd", {}, 0.90),
        ("homo_softmax_dpsgd", {"privacy.mechanism": "none"}, 0.94),
        ("homo_nn_dpsgd", {"privacy.mechanism": "none"}, 0.95),
        ("homo_cnn_dpsgd", {"train.rounds": 15}, 0.80),
    ],
)
def test_recipes_on_digits(recipe: str, overrides: dict[str, Any], least: float) -> None:
    assert accuracy(simulate(recipe, **overrides)) >= least


@pytest.mark.parametrize("name", ["homo_lr", "homo_softmax", "homo_nn", "homo_cnn"])
def test_pipelines_train_their_recipe(name: str, shell: Shell) -> None:
    spec = importlib.util.spec_from_file_location(
        f"pipeline_{name}", ROOT / "pipelines" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    pipeline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pipeline)
    arguments = ["--params", "train.rounds=1,tracking.enabled=false"]
    done = run_command(lambda _: int(pipeline.main(arguments)), [], shell.monkeypatch, shell.capsys)
    assert done.code == 0, done.err
    assert len(read("out/indicator.json")["rounds"]) == 1


def test_a_primihub_task_file_trains(shell: Shell) -> None:
    common = {
        "model": "HFL_neural_network",
        "method": "DPSGD",
        "process": "train",
        "task_name": "NN_multiclass",
        "task": "classification",
        "delta": 1e-3,
        "l2_norm_clip": 1.0,
        "noise_multiplier": 1.0,
        "learning_rate": 0.01,
        "alpha": 1e-4,
        "optimizer": "adam",
        "batch_size": 50,
        "global_epoch": 2,
        "local_epoch": 1,
        "selected_column": None,
        "id": "id",
        "label": "y",
        "print_metrics": True,
    }
    roles = {"server": "Alice", "client": ["Bob", "Charlie"]}
    parts = {
        name: {"data_set": f"{name}_train", "model_path": f"{name}.pkl"} for name in roles["client"]
    }
    task = {"component_params": {"roles": roles, "common_params": common, "role_params": parts}}
    Path("task.json").write_text(json.dumps(task))
    Path("columns.yaml").write_text(
        "data: {columns: {a: {bounds: [-3, 3]}, b: {bounds: [-3, 3]}}}\n"
    )
    table("bob.csv", 150, 1, "grade")
    table("charlie.csv", 150, 2, "grade")
    asked = run_command(train.main, ["--config", "task.json"], shell.monkeypatch, shell.capsys)
    assert (asked.code, len(asked.error_lines)) == (2, 1)
    assert "--params data.files.Bob=FILE,data.files.Charlie=FILE" in asked.err
    files = [
        "data.files.Bob=bob.csv,data.files.Charlie=charlie.csv",
        GRADES,
        "tracking.enabled=false",
    ]
    arguments = ["--config", "task.json", "--config", "columns.yaml", "--params", *files]
    done = run_command(train.main, arguments, shell.monkeypatch, shell.capsys)
    assert done.code == 0, done.err
    assert "model_path" in done.err
    indicators = read("out/indicator.json")
    assert set(indicators["privacy"]["parties"]) == {"Bob", "Charlie"}
    assert (len(indicators["rounds"]), len(indicators["test_confusion_matrix"])) == (2, 3)
