"""PrimiHub's command line: ``python -m homo_dp.primihub [primihub-cli] --task_lang=python
--task_code=FILE ...``.

Takes the whole line, the older one with a task's Python file and the newer one with
``--task_config_file=TASK.json``, and trains or scores here. A Python file is read for its `config`
and data sets, never run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from homo_dp.compat.names import ALL_KEYS, rename
from homo_dp.compat.params import parse_params
from homo_dp.compat.primihub.python_task import read_foreign, read_python_task, scored_data_set
from homo_dp.compat.translation import Fallback
from homo_dp.config.layers import merge, put, split_key
from homo_dp.config.load import read_tree
from homo_dp.config.params import format_item
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
INFER_DATA = "test_homo_lr"
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
        put(over, split_key(ALL_KEYS.get(key, key)), value)
    return {key: value for key, value in settings.items() if Fallback(key, value).is_open(over)}


def _config_file(path: str, job: Job) -> None:
    """A task file is a config of ours; PrimiHub's own tables are described where it names them."""
    tree = Foreign(f"--task_config_file={path}", "check the task file", ConfigError).json(
        read_foreign(path)
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
    if path.stem.endswith("_infer"):
        job.command = "infer"
        if not has_data:
            job.notes.append(
                "data: no --registry and no table given; scores the test rows of the training"
            )
        elif by_name:
            job.arguments += [
                "--data",
                (scored_data_set(path) if path.is_file() else None) or INFER_DATA,
            ]
        return
    task = read_python_task(path)
    job.settings |= task.settings
    job.notes += task.notes
    if has_data:
        job.settings |= {f"data.files.{role}": name for role, name in task.data_sets.items()}
        if task.data_sets:
            job.settings["data.columns_from"] = "breast_cancer"
    else:
        job.settings |= {"data.embedded": "breast_cancer", "data.partition.parties": 2}
        job.notes.append(
            "data: no --registry and no files given; trains on the bundled breast-cancer table, "
            "two parties"
        )


if __name__ == "__main__":
    run(main)
