"""PrimiHub's command line: ``python -m homo_dp.primihub [primihub-cli] --task_lang=python
--task_code=FILE ...``.

Takes the whole line, the older one with a task's Python file and the newer one with
``--task_config_file=TASK.json``, and trains or scores here. A Python file is read for its `config`
and data sets, never run.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from homo_dp.config.aliases import ALIASES, rename
from homo_dp.config.layers import merge, put, split_key
from homo_dp.config.load import read_tree
from homo_dp.config.params import format_item, parse_params
from homo_dp.config.primihub import IGNORED, OLD_NAMES
from homo_dp.config.translation import Fallback
from homo_dp.console.options import Parser, add_screen_arguments, run, screen_from_arguments
from homo_dp.core.errors import ConfigError
from homo_dp.core.untrusted_text import Foreign

EXAMPLES = """examples:
  python -m homo_dp.primihub primihub-cli --task_type=0 --task_lang=python \\
      --task_code=python/primihub/FL/model/logistic_regression/homo_lr_dpsgd.py \\
      --params='predictFileName:STRING:0:out/p.csv,indicatorFileName:STRING:0:out/i.json,modelFileName:STRING:0:out/m'
  python -m homo_dp.primihub --task_lang=python --task_code=.../homo_lr_infer.py --params='modelFileName:STRING:0:out/m'
  python -m homo_dp.primihub --task_config_file=example/FL/logistic_regression/hfl_binclass_dpsgd.json \\
      --registry config/node1.yaml --registry config/node2.yaml
where data are found:
  --registry takes PrimiHub's node configs (their `datasets:`); without one, --params data.files.<client>=FILE. The
  older example without either trains on the bundled breast-cancer table, which is what PrimiHub's data set holds."""

TASK_TYPES = {2: "PIR", 3: "PSI", 6: "TEE"}
NO_NODE = ("server", "job_id", "task_id", "use_tls", "cert_config", "input_datasets")
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
INFER_DATA = "test_homo_lr"
MODES = {"DPSGD": "dp_sgd", "Plaintext": "none"}
# Public descriptions of the tables of PrimiHub's examples, by the first word of their data sets'
# names.
DESCRIPTIONS = {
    "binclass": "primihub_binclass",
    "multiclass": "primihub_multiclass",
    "regression": "primihub_regression",
}


@dataclass
class Job:
    """What a line asks for, in our words."""

    command: str = "train"
    arguments: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Translate the line and hand over to training or scoring."""
    options = make_parser().parse_args(_flags(arguments))
    job = _job(options)
    screen_from_arguments(options).notes(job.notes)
    given = [
        part
        for key, value in _not_overridden(job.settings, options).items()
        for part in ("--params", format_item(key, value))
    ]
    line = [
        "--no-working-config",
        *job.arguments,
        *given,
        *(part for text in options.params for part in ("--params", text)),
    ]
    line += [name for name in ("--quiet", "--json") if getattr(options, name[2:])]
    if job.command == "infer":
        from homo_dp.infer import main as infer

        return infer(line)
    from homo_dp.train import main as train

    return train(
        [*line, *(["--dry-run"] if options.dry_run else []), *(["--keep"] if options.keep else [])]
    )


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.primihub", description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "--task_type",
        type=int,
        default=0,
        help="0: a task of federated learning; others are refused",
    )
    parser.add_argument(
        "--task_lang", default="python", help="python; proto tasks (MPC) are refused"
    )
    parser.add_argument(
        "--task_code", metavar="FILE.py", help="the task's Python file; it need not be here"
    )
    parser.add_argument(
        "--task_config_file", metavar="TASK.json", help="a task file: process train or predict"
    )
    parser.add_argument(
        "--params",
        action="append",
        default=[],
        help="name:TYPE:is_array:value,... or key=value,...",
    )
    for name in NO_NODE:
        parser.add_argument(f"--{name}", help="read and not used: there is no node to talk to")
    ours = parser.add_argument_group("ours")
    ours.add_argument(
        "--registry",
        action="append",
        default=[],
        metavar="FILE",
        help="a node config that names data sets",
    )
    ours.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="a YAML config over the task"
    )
    ours.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be released; releases and charges nothing",
    )
    ours.add_argument(
        "--keep", action="store_true", help="write into a new folder (output.keep: true)"
    )
    add_screen_arguments(parser)
    return parser


def _flags(arguments: Sequence[str] | None) -> list[str]:
    """The flags of a pasted line: without the program before them, and with one dash or two."""
    import sys

    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and not given[0].startswith("-") and Path(given[0]).name in ("primihub-cli", "cli"):
        del given[0]
    return [
        f"-{flag}" if flag.startswith(("-task_", "-params", "-server")) else flag for flag in given
    ]


def _job(options: argparse.Namespace) -> Job:
    if options.task_type != 0:
        what = TASK_TYPES.get(options.task_type, "unknown")
        raise ConfigError(
            f"--task_type={options.task_type}: is {what}, not training; homo_dp does federated "
            "learning, 0"
        )
    if (options.task_code is None) == (options.task_config_file is None):
        raise ConfigError(
            "--task_code, --task_config_file: give one of them, a task's Python file or its JSON "
            "file"
        )
    job = Job()
    unused = [name for name in NO_NODE if getattr(options, name) is not None]
    job.notes += [f"--{name}: there is no PrimiHub node to talk to; ignored" for name in unused]
    if options.task_config_file is not None:
        _config_file(options.task_config_file, job)
    elif options.task_lang != "python":
        raise ConfigError(
            f"--task_lang={options.task_lang}: is secure computation (MPC), not training here; use "
            "python"
        )
    else:
        given = "data." in " ".join(options.params)
        _code(
            Path(options.task_code),
            job,
            has_data=bool(options.registry) or given,
            by_name=not given,
        )
    if options.registry:
        job.settings["data.registry"] = list(options.registry)
    job.arguments += [part for path in options.config for part in ("--config", path)]
    return job


def _not_overridden(settings: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a task that neither `--config` nor `--params` sets or replaces."""
    over: dict[str, Any] = {}
    for path in options.config:
        over = merge(over, rename(read_tree(Path(path))))
    for key, value in parse_params(options.params).items:
        put(over, split_key(ALIASES.get(key, key)), value)
    return {key: value for key, value in settings.items() if Fallback(key, value).is_open(over)}


def _config_file(path: str, job: Job) -> None:
    """A task file is a config of ours; PrimiHub's own tables are described where it names them."""
    tree = Foreign(f"--task_config_file={path}", "check the task file", ConfigError).json(
        _read(path)
    )
    component = tree.get("component_params") if isinstance(tree, dict) else None
    if not isinstance(component, dict):
        raise ConfigError(
            f"--task_config_file={path}: has no component_params; give a task of example/FL"
        )
    common = component.get("common_params") or {}
    job.command = (
        "infer" if isinstance(common, dict) and common.get("process") == "predict" else "train"
    )
    job.arguments += ["--config", path]
    if job.command == "infer":
        return
    names = {
        str(part.get("data_set"))
        for part in (component.get("role_params") or {}).values()
        if isinstance(part, dict)
    }
    for start, recipe in DESCRIPTIONS.items():
        if any(name.startswith(f"{start}_hfl_") for name in names):
            job.arguments += ["--config", recipe]
            job.notes.append(
                f"columns: by conf/{recipe}.yaml, which describes PrimiHub's {start} tables; "
                "--config gives others"
            )
    if any(name.startswith("mnist_") for name in names):
        job.settings["data.classes"] = list(range(10))


def _code(path: Path, job: Job, *, has_data: bool, by_name: bool) -> None:
    """A task in Python: its settings and data sets, read from the file or known from its name."""
    stem = path.stem
    if stem.endswith("_infer"):
        job.command = "infer"
        if not has_data:
            job.notes.append(
                "data: no --registry and no table given; scores the test rows of the training"
            )
        elif by_name:
            job.arguments += [
                "--data",
                (_infer_data(path) if path.is_file() else None) or INFER_DATA,
            ]
        return
    if stem.endswith("paillier"):
        raise ConfigError(
            f"--task_code={path}: trains under Paillier encryption, which is not used here; take "
            "homo_lr_dpsgd.py"
        )
    settings, sets = _literals(path) if path.is_file() else (EXAMPLE_TASKS.get(stem), {})
    if settings is None:
        known = ", ".join(f"{name}.py" for name in EXAMPLE_TASKS)
        raise ConfigError(
            f"--task_code={path}: no such file, and no example of PrimiHub's; known are {known}"
        )
    mode = str(settings.get("mode", "Plaintext"))
    if mode not in MODES:
        raise ConfigError(
            f"--task_code={path}: mode={mode} has no counterpart; translated are {', '.join(MODES)}"
        )
    job.settings |= {
        "model.name": "logistic_regression",
        "privacy.mechanism": MODES[mode],
        "train.auto": False,
        "train.local_steps": 1,
    }
    example = EXAMPLE_TASKS["homo_lr_dpsgd" if mode == "DPSGD" else "homo_lr"]
    # a looser delta than ours is only taken where the task writes it
    left_open = {
        name: value for name, value in example.items() if name not in {*settings, "mode", "delta"}
    }
    if left_open:
        values = ", ".join(f"{name}={value}" for name, value in left_open.items())
        job.notes.append(f"left open, so the values of PrimiHub hold: {values}")
    for name, value in (left_open | settings).items():
        _setting(name, value, job)
    if has_data:
        files = {role: name for role, name in sets.items() if role != "arbiter"}
        job.settings |= {f"data.files.{role}": name for role, name in files.items()}
        if files:
            job.settings["data.columns_from"] = "breast_cancer"
    else:
        job.settings |= {"data.embedded": "breast_cancer", "data.partition.parties": 2}
        job.notes.append(
            "data: no --registry and no files given; trains on the bundled breast-cancer table, "
            "two parties"
        )


def _setting(name: str, value: Any, job: Job) -> None:
    if name == "mode" or value is None:
        return
    if name in IGNORED:
        job.notes.append(f"{name}: {IGNORED[name]}; ignored")
    elif name == "learning_rate" and value == "optimal":
        job.settings["train.schedule"] = "optimal"
    elif name not in OLD_NAMES:
        job.notes.append(f"{name}: has no counterpart; ignored")
    elif not (
        OLD_NAMES[name].startswith("privacy.") and job.settings["privacy.mechanism"] == "none"
    ):
        job.settings[OLD_NAMES[name]] = value


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
        return ast.parse(_read(str(path)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(
            f"--task_code={path}: is not readable as Python; give the task's file"
        ) from None


def _infer_data(path: Path) -> str | None:
    """The data set that a file for scoring names: ``infer_data = ['test_homo_lr']``."""
    for node in _parsed(path).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "infer_data" for t in node.targets
        ):
            found = _literal(node.value)
            if isinstance(found, list) and found and isinstance(found[0], str):
                return found[0]
    return None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _read(path: str) -> bytes:
    file = Foreign(path, "give the task's file", ConfigError)
    try:
        return file.read(Path(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; check the path") from None


if __name__ == "__main__":
    run(main)
