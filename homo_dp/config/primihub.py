"""PrimiHub's words in ours: names of task parameters, and whole task files (JSON) used as a configuration."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from homo_dp.config.layers import get, put
from homo_dp.errors import ConfigError

# Parameters of old task commands and common_params of task files that have a counterpart.
OLD_NAMES = {
    "BatchSize": "train.batch_size",
    "batch_size": "train.batch_size",
    "NumIters": "train.rounds",
    "max_iter": "train.rounds",
    "global_epoch": "train.rounds",
    "local_epoch": "train.local_epochs",
    "learning_rate": "train.learning_rate",
    "alpha": "train.weight_decay",
    "optimizer": "train.optimizer",
    "noise_multiplier": "privacy.noise_multiplier",
    "l2_norm_clip": "privacy.max_grad_norm",
    "max_grad_norm": "privacy.max_grad_norm",
    "delta": "privacy.delta",
    "secure_mode": "privacy.secure_mode",
    "selected_column": "data.use",
    "feature_names": "data.use",
    "id": "data.id",
    "label": "data.label",
    "task_name": "tracking.run_name",
    "task": "model.task",
    "metric_path": "output.indicatorFileName",
    "predictFileName": "output.predictFileName",
    "indicatorFileName": "output.indicatorFileName",
    "modelFileName": "output.modelFileName",
}
IGNORED = {
    "hostLookupTable": "look-up tables belong to PrimiHub's tree models",
    "guestLookupTable": "look-up tables belong to PrimiHub's tree models",
    "print_metrics": "the final table is always printed, unless --quiet",
    "n_length": "it sizes Paillier keys, and no update is encrypted that way here",
    "need_encrypt": "it switches Paillier encryption, which is not used here",
    "need_one_vs_rest": "several classes are trained as one softmax model",
    "category": "the number of classes follows from data.classes",
}
NEEDS_FILES = frozenset({"Data_File", "TestData", "TrainData"})

_MODELS: dict[str, dict[str, Any]] = {
    "HFL_logistic_regression": {"name": "logistic_regression"},
    "HFL_linear_regression": {"name": "linear_regression"},
    "HFL_neural_network": {"name": "mlp"},
    "HFL_CNN": {"name": "cnn"},
}
_METHODS = {"DPSGD": "dp_sgd", "Plaintext": "none"}


@dataclass
class Task:
    """A translated task file: settings, the data sets that need files, and what the reader should know."""

    tree: dict[str, Any] = field(default_factory=dict)
    data_sets: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_task(tree: Mapping[str, Any]) -> bool:
    """Whether a tree is a PrimiHub task and not a configuration of ours."""
    return "component_params" in tree


def translate(tree: Mapping[str, Any], source: str) -> Task:
    """Translate a PrimiHub task file; what has no counterpart is a note, what cannot be run is an error."""
    component = tree.get("component_params")
    common = component.get("common_params") if isinstance(component, Mapping) else None
    roles = component.get("roles") if isinstance(component, Mapping) else None
    if not isinstance(common, Mapping) or not isinstance(roles, Mapping):
        raise ConfigError(f"{source}: component_params must hold roles and common_params; check the task file")
    task = Task()
    _translate_model(common, task, source)
    for name, value in common.items():
        _translate_parameter(name, value, task)
    if "party_info" in tree:
        task.notes.append("party_info: there is no task manager here; parties are found through transport")
    parts = component.get("role_params") if isinstance(component, Mapping) else None
    _translate_roles(roles, parts if isinstance(parts, Mapping) else {}, task, source)
    task.notes.append(_scaling_note(common))
    return task


def check_files(task: Task, merged: Mapping[str, Any]) -> None:
    """Refuse a task whose data sets have no file yet, with the words that give them."""
    files = get(merged, "data.files")
    if get(merged, "data.embedded") is not None or isinstance(files, str):
        return
    missing = [party for party in task.data_sets if not (isinstance(files, dict) and party in files)]
    if missing:
        words = ",".join(f"data.files.{party}=FILE" for party in missing)
        raise ConfigError(
            f"data.files.{missing[0]}: the file of data_set {task.data_sets[missing[0]]} is not known; "
            f"add --params {words}"
        )
    if isinstance(files, dict) and (strangers := sorted(set(files) - set(task.data_sets))):
        raise ConfigError(
            f"data.files.{strangers[0]}: is no client of the task; its clients are {', '.join(task.data_sets)}"
        )


def _translate_model(common: Mapping[str, Any], task: Task, source: str) -> None:
    model, method, process = common.get("model"), common.get("method"), common.get("process", "train")
    if model not in _MODELS:
        raise ConfigError(f"{source}: model={model}: has no counterpart; translated are {', '.join(_MODELS)}")
    if method not in _METHODS:
        raise ConfigError(f"{source}: method={method}: has no counterpart; translated are {', '.join(_METHODS)}")
    if process != "train":
        raise ConfigError(f"{source}: process={process}: is not training; score a table with python -m homo_dp.infer")
    task.tree["model"] = dict(_MODELS[model])
    task.tree["privacy"] = {"mechanism": _METHODS[method]}
    if method == "Plaintext":
        task.notes.append("method Plaintext: the run is NOT PRIVATE; write privacy.mechanism=dp_sgd to change that")
    if model in ("HFL_neural_network", "HFL_CNN"):
        task.notes.append(f"{model}: PrimiHub keeps its layers in code; ours are model.layers and model.channels")
    if "multiclass" in str(common.get("task_name")) or model == "HFL_CNN":
        task.notes.append("classes: the task does not list them; give data.classes=[...]")
    if model == "HFL_linear_regression" or common.get("task") == "regression":
        task.notes.append("label: a regression needs its public range; give data.target_bounds=[low, high]")


def _scaling_note(common: Mapping[str, Any]) -> str:
    if common.get("model") == "HFL_CNN":
        return "images: .npz or IDX files; pixels are scaled by the public range data.image.scale, [0, 255] if left out"
    return (
        "PrimiHub scales features by statistics that every party sends in the clear; here columns need public bounds: "
        "data.columns or data.columns_from; to draft them: python -m homo_dp.data describe FILE > columns.yaml, then "
        "replace every bound by public knowledge and add --config columns.yaml"
    )


def _translate_parameter(name: str, value: Any, task: Task) -> None:
    if name in ("model", "method", "process") or value is None:
        return
    if name in IGNORED:
        task.notes.append(f"{name}: {IGNORED[name]}; ignored")
    elif name == "learning_rate" and value == "optimal":
        put(task.tree, ("train", "schedule"), "optimal")
    elif name not in OLD_NAMES:
        task.notes.append(f"{name}: has no counterpart; ignored")
    elif OLD_NAMES[name].startswith("privacy.") and task.tree["privacy"]["mechanism"] == "none":
        return
    else:
        put(task.tree, tuple(OLD_NAMES[name].split(".")), value)


def _translate_roles(roles: Mapping[str, Any], parts: Mapping[str, Any], task: Task, source: str) -> None:
    clients = roles.get("client")
    clients = [clients] if isinstance(clients, str) else clients
    if not isinstance(clients, list) or not clients or not all(isinstance(name, str) for name in clients):
        raise ConfigError(f"{source}: component_params.roles.client must list the clients; check the task file")
    for party in clients:
        part = parts.get(party)
        data_set = str(part.get("data_set", party)) if isinstance(part, Mapping) else party
        task.data_sets[party] = data_set
        left = set(part) - {"data_set", "model_path", "metric_path"} if isinstance(part, Mapping) else set()
        task.notes += [f"role_params.{party}.{name}: has no counterpart; ignored" for name in sorted(left)]
        if os.path.isfile(data_set):
            put(task.tree, ("data", "files", party), data_set)
    put(task.tree, ("data", "name"), "+".join(task.data_sets.values()))
    server = roles.get("server")
    part = parts.get(server) if isinstance(server, str) else None
    if isinstance(part, Mapping) and isinstance(part.get("metric_path"), str):
        put(task.tree, ("output", "indicatorFileName"), part["metric_path"])
    if isinstance(server, str):
        task.notes.append(f"roles.server {server}: is the aggregator, which holds no data here")
    if any(
        isinstance(parts.get(party), Mapping) and {"model_path", "metric_path"} & set(parts[party]) for party in clients
    ):
        task.notes.append(
            "model_path, metric_path of clients: all parties get one model and one indicator file; "
            "give modelFileName=... and indicatorFileName=..."
        )
