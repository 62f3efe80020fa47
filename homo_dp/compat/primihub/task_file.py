"""PrimiHub's task files (JSON) as configurations."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from homo_dp.compat.names import IGNORED, OLD_NAMES
from homo_dp.compat.primihub.registry import names_in
from homo_dp.compat.translation import Ask, Fallback, System, Translation
from homo_dp.config.layers import get, put
from homo_dp.core.errors import ConfigError
from homo_dp.core.untrusted_text import Foreign, Schema

MOST_CLIENTS = 10_000

_MODELS: dict[str, dict[str, Any]] = {
    "HFL_logistic_regression": {"name": "logistic_regression"},
    "HFL_linear_regression": {"name": "linear_regression"},
    "HFL_neural_network": {"name": "mlp"},
    "HFL_CNN": {"name": "cnn"},
}
# What PrimiHub takes where a task leaves a parameter open: the defaults of its classes
# (FL/*/base.py), and for parameters without one what all of its example tasks say.
_LEFT_OPEN: dict[str, Any] = {
    "global_epoch": 10,
    "local_epoch": 1,
    "batch_size": 100,
    "alpha": 1e-4,
}
_OF_LINEAR_MODELS: dict[str, Any] = {"learning_rate": 0.2}
_OF_NETWORKS: dict[str, Any] = {"learning_rate": 0.01, "optimizer": "adam"}
_OF_DPSGD: dict[str, Any] = {"noise_multiplier": 1.0, "l2_norm_clip": 1.0}
# The networks that it keeps in code (FL/neural_network/mlp.py and cnn.py).
_NETWORKS: dict[str, dict[str, Any]] = {
    "HFL_neural_network": {"model.layers": [32, 16], "model.activation": "relu"},
    "HFL_CNN": {"model.channels": [16, 32], "model.layers": [32], "model.activation": "relu"},
}
_METHODS = {"DPSGD": "dp_sgd", "Plaintext": "none"}
# What is asked for in other ways here, by how a task's model or method is named.
_VERTICAL = (
    "columns split over parties (VFL, hetero) are not built: here every party has all columns"
)
_ELSEWHERE = (
    (
        "FL_Stats",
        (
            "counts, means, quantiles and histograms are `homo-dp stats --ask ...`, with noise and "
            "a price"
        ),
    ),
    (
        "FL_Preprocess",
        "scaling is by public bounds (data.columns), or within wide ones by data.scaling: private",
    ),
    ("VFL", _VERTICAL),
    ("Hetero", _VERTICAL),
    ("XGB", "trees are not built"),
    (
        "Paillier",
        (
            "single updates are hidden by privacy.secure_aggregation=true with "
            "privacy.mechanism=dp_fedsgd"
        ),
    ),
)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class _Roles(Schema):
    client: Annotated[
        list[str], BeforeValidator(_listed), Field(min_length=1, max_length=MOST_CLIENTS)
    ]
    server: Any = None

    @property
    def aggregator(self) -> str | None:
        """The server's name, if the task names one; tasks of several servers name none that we
        could use.
        """
        return self.server if isinstance(self.server, str) else None


class _Part(Schema, extra="allow"):
    """What a task says about one party; what is neither of these has no counterpart here."""

    data_set: str | int | float | None = None
    model_path: str | None = None
    metric_path: str | None = None
    predict_path: str | None = None

    @property
    def paths(self) -> dict[str, str]:
        """Where its files go, by our names."""
        given = {
            "modelFileName": self.model_path,
            "indicatorFileName": self.metric_path,
            "predictFileName": self.predict_path,
        }
        return {name: path for name, path in given.items() if path is not None}

    @property
    def strangers(self) -> list[str]:
        return sorted(self.model_extra or {})


class _Common(Schema, extra="allow"):
    """The parameters that decide what is translated; the others are translated one by one."""

    model: str
    method: str | None = None
    process: str | None = None
    task: Any = None
    task_name: Any = None

    @field_validator("model")
    @classmethod
    def _known_model(cls, model: str) -> str:
        if model not in _MODELS:
            raise ValueError(
                f"model={model}: {_elsewhere(model)}translated are {', '.join(_MODELS)}"
            )
        return model

    @field_validator("method")
    @classmethod
    def _known_method(cls, method: str | None) -> str | None:
        if method is not None and method not in _METHODS:
            raise ValueError(
                f"method={method}: {_elsewhere(method)}translated are {', '.join(_METHODS)}"
            )
        return method

    @field_validator("process")
    @classmethod
    def _known_process(cls, process: str | None) -> str | None:
        if process not in (None, "train", "predict"):
            raise ValueError(f"process={process}: is neither train nor predict")
        return process

    @model_validator(mode="after")
    def _has_method(self) -> Self:
        if self.method is None and self.process != "predict":
            raise ValueError(f"method: is missing; translated are {', '.join(_METHODS)}")
        return self


def _elsewhere(word: str) -> str:
    said = (text for start, text in _ELSEWHERE if start.lower() in word.lower())
    return f"{next(said, 'has no counterpart')}; "


class _Component(Schema):
    common_params: _Common  # first: what kind of task it is explains what else is missing
    roles: _Roles
    role_params: dict[str, _Part] = Field(default_factory=dict)


class _TaskFile(Schema):
    component_params: _Component
    party_info: Any = None


@dataclass
class PrimihubTask(Translation):
    """A translated task file, with the data sets that need files."""

    data_sets: dict[str, str] = field(default_factory=dict)

    def place_data(self, merged: dict[str, Any]) -> None:
        """Put the addresses that the registry has for the task's data sets where no file is
        given, and refuse files of parties that are no clients.
        """
        names = names_in(merged)
        key = "data.files" if self.process == "train" else "data.test_file"
        for party, name in self.data_sets.items():
            given = get(merged, key)
            if name in names and not isinstance(given, str) and party not in (given or {}):
                put(merged, (*key.split("."), party), names[name])
        files = get(merged, "data.files")
        if self.process == "predict" or get(merged, "data.embedded") is not None:
            return
        if not self.tables_to_name(merged) and isinstance(files, dict):
            strangers = sorted(set(files) - set(self.data_sets))
            if strangers:
                raise ConfigError(
                    f"data.files.{strangers[0]}: is not a client of the task; its clients are "
                    f"{', '.join(self.data_sets)}"
                )

    def missing(self, merged: Mapping[str, Any]) -> list[str]:
        """What is still open that nothing runs without: the files of data sets, too."""
        missing = self.tables_to_name(merged)
        if not missing:
            return super().missing(merged)
        words = ",".join(f"data.files.{party}=FILE" for party in missing)
        text = (
            f"data.files.{missing[0]}: the file of data_set {self.data_sets[missing[0]]} is not "
            f"known; add --params {words}, or data.registry=FILE, a PrimiHub node config that "
            "names it"
        )
        return [text, *super().missing(merged)]

    def tables_to_name(self, merged: Mapping[str, Any]) -> list[str]:
        """The clients whose data set has no file yet."""
        files = get(merged, "data.files")
        elsewhere = get(merged, "data.embedded") is not None or isinstance(files, str)
        # homo_dp.infer asks for a table itself, and takes --data as well
        if self.process == "predict" or elsewhere:
            return []
        return [party for party in self.data_sets if party not in (files or {})]


def is_task(tree: Mapping[str, Any]) -> bool:
    """Whether a tree is a PrimiHub task and not a configuration of ours."""
    return "component_params" in tree


def translate_task(
    tree: Mapping[str, Any], _overrides: Mapping[str, Any], source: str
) -> PrimihubTask:
    """Translate a PrimiHub task file.

    Args:
        tree: what the file holds.
        _overrides: not used; PrimiHub's own have become keys of ours as they were read.
        source: what an error calls the file.

    Returns:
        The settings in our keys; what has no counterpart is a note.

    Raises:
        ConfigError: where the task cannot be run here.
    """
    component = (
        Foreign(source, "check the task file", ConfigError).check(_TaskFile, tree).component_params
    )
    task = PrimihubTask(system="PrimiHub")
    if component.common_params.process == "predict":
        return _translate_prediction(component, task)
    _translate_model(component.common_params, task)
    for name, value in tree["component_params"]["common_params"].items():
        _translate_parameter(name, value, task)
    if "party_info" in tree:
        task.notes.append(
            "party_info: there is no task manager here; parties are found through transport"
        )
    _leave_open(component.common_params, task)
    _translate_roles(component.roles, component.role_params, task)
    task.asks.append(_scaling(component.common_params))
    return task


def _translate_model(common: _Common, task: PrimihubTask) -> None:
    task.tree["model"] = dict(_MODELS[common.model])
    task.tree["privacy"] = {"mechanism": _METHODS[str(common.method)]}
    if common.method == "Plaintext":
        task.notes.append(
            "method Plaintext: the run is NOT PRIVATE; write privacy.mechanism=dp_sgd to change "
            "that"
        )
    if common.model in _NETWORKS:
        task.notes.append(
            f"{common.model}: PrimiHub keeps its layers in code; here their widths are "
            "model.layers and model.channels"
        )
    if "multiclass" in str(common.task_name) or common.model == "HFL_CNN":
        text = "classes: the task does not list them; give data.classes=[...]"
        task.asks.append(Ask(text, ("data.classes",)))
    if common.model == "HFL_linear_regression" or common.task == "regression":
        text = "label: a regression needs its public range; give data.target_bounds=[low, high]"
        task.asks.append(Ask(text, ("data.target_bounds",)))


def _leave_open(common: _Common, task: PrimihubTask) -> None:
    """Fill in what PrimiHub takes for parameters that the task does not give."""
    network, private = _NETWORKS.get(common.model), common.method == "DPSGD"
    values = _LEFT_OPEN | (_OF_NETWORKS if network else _OF_LINEAR_MODELS)
    for name, value in values.items():
        key = OLD_NAMES[name]
        unless = ("train.schedule",) if name == "learning_rate" else ()
        task.fallbacks.append(Fallback(key, value, name, unless=unless))
    for name, value in (_OF_DPSGD if private else {}).items():
        task.fallbacks.append(Fallback(OLD_NAMES[name], value, name, mechanisms=("dp_sgd",)))
    for key, value in (network or {}).items():
        task.fallbacks.append(Fallback(key, value, unless=("model.factory",)))
    weights = "PrimiHub: parties count by their rows (train.weighting=rows)"
    task.fallbacks.append(
        Fallback("train.weighting", "rows", note=weights, mechanisms=("dp_sgd", "none"))
    )


def _scaling(common: _Common) -> Ask:
    if common.model == "HFL_CNN":
        text = (
            "images: a zip or folder with annotations, .npz or IDX files; pixels are scaled by the "
            "public range data.image.scale, [0, 255] if left out"
        )
        return Ask(text, ("data.image.scale",))
    text = (
        "PrimiHub scales features by statistics that every party sends in the clear; here columns "
        "need public bounds: data.columns or data.columns_from; to draft them: python -m "
        "homo_dp.data describe FILE --no-files > columns.yaml, then replace every bound by public knowledge "
        "and add --config columns.yaml"
    )
    return Ask(text, ("data.columns", "data.columns_from", "data.scaling"))


def _translate_parameter(name: str, value: Any, task: PrimihubTask) -> None:
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


def _translate_roles(roles: _Roles, parts: Mapping[str, _Part], task: PrimihubTask) -> None:
    said = {party: parts.get(party, _Part()) for party in roles.client}
    for party, part in said.items():
        task.data_sets[party] = party if part.data_set is None else str(part.data_set)
        task.notes += [
            f"role_params.{party}.{name}: has no counterpart; ignored" for name in part.strangers
        ]
        if os.path.isfile(task.data_sets[party]):
            put(task.tree, ("data", "files", party), task.data_sets[party])
    put(task.tree, ("data", "name"), "+".join(task.data_sets.values()))
    if roles.aggregator is not None:
        metric_path = parts.get(roles.aggregator, _Part()).metric_path
        if metric_path is not None:
            put(task.tree, ("output", "indicatorFileName"), metric_path)
        task.notes.append(
            f"roles.server {roles.aggregator}: is the aggregator, which holds no data here"
        )
    for party, part in said.items():
        for key, path in part.paths.items():
            put(task.tree, ("output", "parties", party, key), path)
    if any(str(part.model_path).endswith(".pkl") for part in said.values()):
        task.notes.append(
            "model_path: the files are safetensors, whatever their name; nothing here is pickled"
        )


def _translate_prediction(component: _Component, task: PrimihubTask) -> PrimihubTask:
    """A task that scores: the client's table, model and where predictions go."""
    task.process = "predict"
    client = component.roles.client[0]
    part = component.role_params.get(client, _Part())
    if len(component.roles.client) > 1:
        task.notes.append(
            f"roles.client: predictions are made for one, {client}; run the task again for the "
            "others"
        )
    task.data_sets[client] = client if part.data_set is None else str(part.data_set)
    if os.path.isfile(task.data_sets[client]):
        put(task.tree, ("data", "test_file", client), task.data_sets[client])
    # training's file stays
    for key, path in ({"indicatorFileName": "out/test_indicator.json"} | part.paths).items():
        put(task.tree, ("output", key), path)
    return task


PRIMIHUB = System("PrimiHub", is_task, translate_task)
