"""PrimiHub task files as configurations: what is translated, what is said, what is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from homo_dp.compat.load import load
from homo_dp.config.privacy import RecordKeys, keys_of
from homo_dp.core.errors import ConfigError

# The shape and values of PrimiHub's example/FL/logistic_regression/hfl_binclass_dpsgd.json
# (Apache-2.0).
TASK: dict[str, Any] = {
    "party_info": {"task_manager": "127.0.0.1:50050"},
    "component_params": {
        "roles": {"server": "Alice", "client": ["Bob", "Charlie"]},
        "common_params": {
            "model": "HFL_logistic_regression",
            "method": "DPSGD",
            "process": "train",
            "task_name": "HFL_logistic_regression_binclass_dpsgd_train",
            "delta": 1e-3,
            "noise_multiplier": 2.0,
            "l2_norm_clip": 1.0,
            "secure_mode": True,
            "learning_rate": 1e-0,
            "alpha": 1e-4,
            "batch_size": 100,
            "global_epoch": 10,
            "local_epoch": 1,
            "selected_column": None,
            "id": "id",
            "label": "y",
            "print_metrics": True,
        },
        "role_params": {
            "Bob": {"data_set": "train_client1", "model_path": "data/result/Bob_model.pkl"},
            "Charlie": {
                "data_set": "train_client2",
                "metric_path": "data/result/Charlie_metrics.json",
            },
            "Alice": {
                "data_set": "fl_fake_data",
                "metric_path": "data/result/server_metrics.json",
            },
        },
    },
}
FILES = {"data.files.Bob": "bob.csv", "data.files.Charlie": "charlie.csv"}


def _task(tmp_path: Path, **changes: Any) -> Path:
    task = copy.deepcopy(TASK)
    common = task["component_params"]["common_params"] | changes
    task["component_params"]["common_params"] = {
        name: value for name, value in common.items() if value is not ...
    }
    path = tmp_path / "task.json"
    path.write_text(json.dumps(task, indent="\t"), encoding="utf-8")
    return path


def test_translated(tmp_path: Path) -> None:
    loaded = load(_task(tmp_path), FILES)
    config = loaded.config
    assert config.model.name == "logistic_regression"
    assert (config.privacy.mechanism, config.privacy.noise_multiplier) == ("dp_sgd", 2.0)
    assert (
        config.privacy.delta,
        keys_of(config.privacy, RecordKeys).max_grad_norm,
        config.privacy.secure_mode,
    ) == (
        1e-3,
        1.0,
        True,
    )
    assert (config.train.rounds, config.train.local_epochs, config.train.batch_size) == (
        10,
        1.0,
        100,
    )
    assert (config.train.learning_rate, config.train.weight_decay) == (1.0, 1e-4)
    assert (config.data.id, config.data.label, config.data.use) == ("id", "y", None)
    assert config.data.files == {"Bob": "bob.csv", "Charlie": "charlie.csv"}
    assert config.data.dataset == "train_client1+train_client2"
    assert config.output.indicatorFileName == "data/result/server_metrics.json"
    said = " ".join(loaded.notes)
    for word in ("party_info", "print_metrics", "Alice", "model_path", "public bounds"):
        assert word in said


@pytest.mark.parametrize(
    ("model", "name", "task"),
    [
        ("HFL_linear_regression", "linear_regression", "regression"),
        ("HFL_neural_network", "mlp", "classification"),
        ("HFL_CNN", "cnn", "classification"),
    ],
)
def test_models(tmp_path: Path, model: str, name: str, task: str) -> None:
    config = load(_task(tmp_path, model=model, optimizer="adam"), FILES).config
    assert (config.model.name, config.model.task, config.train.optimizer) == (name, task, "adam")


def test_what_a_task_leaves_open_is_primihubs(tmp_path: Path) -> None:
    """Defaults of its classes (FL/logistic_regression/base.py); 10 rounds of one epoch and batches
    of 100 are those of its example tasks.
    """
    names = "noise_multiplier l2_norm_clip learning_rate alpha batch_size global_epoch local_epoch"
    loaded = load(_task(tmp_path, **dict.fromkeys(names.split(), ...)), FILES)
    train, privacy = loaded.config.train, loaded.config.privacy
    assert (train.learning_rate, train.weight_decay, train.batch_size) == (0.2, 1e-4, 100)
    assert (train.rounds, train.local_epochs, train.weighting) == (10, 1, "rows")
    assert (privacy.noise_multiplier, keys_of(privacy, RecordKeys).max_grad_norm) == (1.0, 1.0)
    listed = next(note for note in loaded.notes if note.startswith("left open"))
    for name in names.split():
        assert f"{name}=" in listed
    given = load(_task(tmp_path), FILES)
    assert not any(note.startswith("left open") for note in given.notes)


@pytest.mark.parametrize(
    ("model", "layers", "channels"),
    [("HFL_neural_network", (32, 16), (16, 32)), ("HFL_CNN", (32,), (16, 32))],
)
def test_networks_have_primihubs_layers_unless_others_are_given(
    tmp_path: Path, model: str, layers: tuple[int, ...], channels: tuple[int, ...]
) -> None:
    """FL/neural_network/mlp.py and cnn.py; its example tasks train them by Adam at rate 0.01."""
    open_keys = {"learning_rate": ...}
    config = load(_task(tmp_path, model=model, **open_keys), FILES).config
    assert (config.model.layers, config.model.channels) == (layers, channels)
    assert (config.model.activation, config.train.optimizer) == ("relu", "adam")
    assert config.train.learning_rate == 0.01
    other = load(_task(tmp_path, model=model), {**FILES, "model.layers": [8]}).config
    assert other.model.layers == (8,)


def test_optimal_learning_rate_and_plaintext(tmp_path: Path) -> None:
    loaded = load(_task(tmp_path, learning_rate="optimal", method="Plaintext"), FILES)
    assert loaded.config.train.schedule.kind == "optimal"
    assert loaded.config.privacy.mechanism == "none"
    assert any("NOT PRIVATE" in note for note in loaded.notes)


def test_overrides_and_embedded_data(tmp_path: Path) -> None:
    config = load(
        _task(tmp_path), {**FILES, "privacy.target_epsilon": 3, "train.local_steps": 1}
    ).config
    assert (config.privacy.noise_multiplier, config.train.local_epochs) == (None, None)
    assert load(_task(tmp_path), {"data.embedded": "breast_cancer"}).config.data.files == {}


def test_what_another_file_answers_is_not_asked_for(tmp_path: Path) -> None:
    task = _task(tmp_path, model="HFL_neural_network", task_name="multiclass", task="regression")
    said = " ".join(load(task, FILES).notes)
    for asked in ("data.classes", "data.target_bounds", "public bounds"):
        assert asked in said
    given = {"data.columns.x.bounds": [0, 1], "data.target_bounds": [0, 9]}
    said = " ".join(load(task, {**FILES, **given}).notes)
    assert "data.classes" in said
    assert "target_bounds" not in said
    assert "public bounds" not in said


def test_a_second_file_describes_the_columns(tmp_path: Path) -> None:
    columns = tmp_path / "columns.yaml"
    columns.write_text(
        "data: {columns: {x: {bounds: [0, 1]}}}\ntrain: {rounds: 3}\n", encoding="utf-8"
    )
    config = load([_task(tmp_path), columns], FILES).config
    assert (config.data.columns["x"].bounds, config.train.rounds, config.train.batch_size) == (
        (0, 1),
        3,
        100,
    )
    assert config.data.files == {"Bob": "bob.csv", "Charlie": "charlie.csv"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "HFL_CNN"}, "data.image.scale"),
        ({"model": "HFL_CNN"}, "data.classes=[...]"),
        ({"model": "HFL_linear_regression"}, "data.target_bounds=[low, high]"),
        ({"model": "HFL_neural_network", "task": "regression"}, "data.target_bounds=[low, high]"),
        ({}, "python -m homo_dp.data describe FILE --no-files > columns.yaml"),
    ],
)
def test_what_the_task_does_not_say_is_asked_for(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    assert any(said in note for note in load(_task(tmp_path, **changes), FILES).notes)


def test_what_is_said_of_one_client_only_is_not_passed_over(tmp_path: Path) -> None:
    path = _task(tmp_path)
    task = json.loads(path.read_text(encoding="utf-8"))
    task["component_params"]["role_params"]["Bob"]["selected_column"] = ["x"]
    path.write_text(json.dumps(task), encoding="utf-8")
    assert "role_params.Bob.selected_column: has no counterpart; ignored" in load(path, FILES).notes


def test_data_set_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train_client1").write_text("id,y\n")
    config = load(_task(tmp_path), {"data.files.Charlie": "c.csv"}).config
    assert config.data.files == {"Bob": "train_client1", "Charlie": "c.csv"}


@pytest.mark.parametrize(
    ("changes", "overrides", "said"),
    [
        (
            {},
            {},
            (
                "the file of data_set train_client1 is not known; add --params "
                "data.files.Bob=FILE,data.files.Charlie"
            ),
        ),
        (
            {},
            {"data.files.Bob": "b.csv"},
            "data.files.Charlie: the file of data_set train_client2",
        ),
        (
            {},
            {**FILES, "data.files.Dora": "d.csv"},
            "data.files.Dora: is not a client of the task",
        ),
        (
            {"method": "Paillier"},
            FILES,
            "method=Paillier: single updates are hidden by privacy.secure_aggregation=true",
        ),
        ({"model": "HFL_xgb"}, FILES, "model=HFL_xgb: trees are not built"),
        ({"model": "HFL_svm"}, FILES, "model=HFL_svm: has no counterpart"),
        ({"model": "FL_Stats"}, FILES, "homo-dp stats --ask"),
        ({"model": "FL_Preprocess"}, FILES, "data.scaling: private"),
        ({"model": "VFL_logistic_regression"}, FILES, "every party has all columns"),
        ({"process": "evaluate"}, FILES, "is neither train nor predict"),
        ({"optimizer": "nadam"}, FILES, "train.optimizer=nadam: must be one of sgd, adam"),
        ({"noise_multiplier": 0}, FILES, "privacy.noise_multiplier=0: must be"),
    ],
)
def test_refused(
    tmp_path: Path, changes: dict[str, Any], overrides: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(_task(tmp_path, **changes), overrides)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "content", ['{"component_params": 3}', '{"component_params": {"roles": {}}}', "{", "[]", '"x"']
)
def test_crooked_task_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "task.json"
    path.write_text(content)
    with pytest.raises(ConfigError):
        load(path)
