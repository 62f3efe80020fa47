"""A task of PrimiHub in Python: its settings and data sets, read from the file and never run, or
known from the name of one of PrimiHub's examples.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from homo_dp.compat.names import IGNORED, OLD_NAMES
from homo_dp.core.errors import ConfigError
from homo_dp.core.untrusted_text import Foreign

# What PrimiHub's own example files say, for a line that is pasted where they are not.
EXAMPLE_TASKS: dict[str, dict[str, Any]] = {
    "homo_lr_dpsgd": {
        "mode": "DPSGD",
        "delta": 1e-3,
        "noise_multiplier": 2.0,
        "l2_norm_clip": 1.0,
        "secure_mode": True,
        "learning_rate": "optimal",
        "alpha": 0.0001,
        "batch_size": 50,
        "max_iter": 100,
    },
    "homo_lr": {
        "mode": "Plaintext",
        "learning_rate": "optimal",
        "alpha": 0.0001,
        "batch_size": 100,
        "max_iter": 200,
    },
}
MODES = {"DPSGD": "dp_sgd", "Plaintext": "none"}


@dataclass
class PythonTask:
    """A training task: settings by dotted key, notes, and the data set of each role."""

    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    data_sets: dict[str, str] = field(default_factory=dict)


def read_python_task(path: Path) -> PythonTask:
    """Translate a task that trains; the file need not be there for PrimiHub's own examples."""
    if path.stem.endswith("paillier"):
        raise ConfigError(
            f"--task_code={path}: trains under Paillier encryption, which is not used here; take "
            "homo_lr_dpsgd.py"
        )
    given, sets = _literals(path) if path.is_file() else (EXAMPLE_TASKS.get(path.stem), {})
    if given is None:
        known = ", ".join(f"{name}.py" for name in EXAMPLE_TASKS)
        raise ConfigError(
            f"--task_code={path}: no such file, and no example of PrimiHub's; known are {known}"
        )
    mode = str(given.get("mode", "Plaintext"))
    if mode not in MODES:
        raise ConfigError(
            f"--task_code={path}: mode={mode} has no counterpart; translated are {', '.join(MODES)}"
        )
    files = {role: name for role, name in sets.items() if role != "arbiter"}
    settings = {
        "model.name": "logistic_regression",
        "privacy.mechanism": MODES[mode],
        "train.auto": False,
        "train.local_steps": 1,
    }
    task = PythonTask(settings, data_sets=files)
    example = EXAMPLE_TASKS["homo_lr_dpsgd" if mode == "DPSGD" else "homo_lr"]
    # a looser delta than ours is only taken where the task writes it
    left_open = {
        name: value for name, value in example.items() if name not in {*given, "mode", "delta"}
    }
    if left_open:
        values = ", ".join(f"{name}={value}" for name, value in left_open.items())
        task.notes.append(f"left open, so the values of PrimiHub hold: {values}")
    for name, value in (left_open | given).items():
        _setting(name, value, task)
    return task


def scored_data_set(path: Path) -> str | None:
    """The data set that a file for scoring names: ``infer_data = ['test_homo_lr']``."""
    for node in _parsed(path).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "infer_data" for t in node.targets
        ):
            found = _literal(node.value)
            if isinstance(found, list) and found and isinstance(found[0], str):
                return found[0]
    return None


def _setting(name: str, value: Any, task: PythonTask) -> None:
    if name == "mode" or value is None:
        return
    if name in IGNORED:
        task.notes.append(f"{name}: {IGNORED[name]}; ignored")
    elif name == "learning_rate" and value == "optimal":
        task.settings["train.schedule"] = "optimal"
    elif name not in OLD_NAMES:
        task.notes.append(f"{name}: has no counterpart; ignored")
    elif not (
        OLD_NAMES[name].startswith("privacy.") and task.settings["privacy.mechanism"] == "none"
    ):
        task.settings[OLD_NAMES[name]] = value


def _literals(path: Path) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """The `config` of a task's file and the data set of each role; the file is parsed and never
    run.
    """
    tree = _parsed(path)
    config: dict[str, Any] | None = None
    sets: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "config" for t in node.targets
        ):
            found = _literal(node.value)
            config = found if isinstance(found, dict) else config
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            said = (
                {k.arg: _literal(k.value) for k in call.keywords}
                if isinstance(call, ast.Call)
                else {}
            )
            names = said.get("datasets")
            if (
                isinstance(said.get("role"), str)
                and isinstance(names, list)
                and names
                and isinstance(names[0], str)
            ):
                sets[said["role"]] = names[0]
    return config, sets


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(read_foreign(str(path)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(
            f"--task_code={path}: is not readable as Python; give the task's file"
        ) from None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def read_foreign(path: str) -> bytes:
    """What a task's file holds."""
    file = Foreign(path, "give the task's file", ConfigError)
    try:
        return file.read(Path(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; check the path") from None
