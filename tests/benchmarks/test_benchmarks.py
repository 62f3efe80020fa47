"""Benchmarks run, tiny: they print the figures that the table of results looks for. Their times
are not tested.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from homo_dp.config.load import config_from

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(FOLDER))  # as Python does for a script: they import each other


def lines_of(script: str, *arguments: str) -> list[dict[str, Any]]:
    """What a benchmark prints; it may miss its bars, but not fail."""
    command = [sys.executable, str(FOLDER / script), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_tables() -> None:
    line, parquet, predictions = lines_of(
        "tables.py", "--rows", "50", "--features", "3", "--repeats", "1"
    )
    assert {"ratio", "bar", "cpu_ratio", "seconds"} <= set(line)
    assert {"cpu_ratio", "bar"} <= set(parquet)
    assert {"cpu", "bar"} <= set(predictions)


def test_ledger() -> None:
    (line,) = lines_of("ledger.py", "--rows", "60", "--repeats", "1")
    assert {"open", "show", "verify"} <= set(line)


def test_a_command_that_only_helps_imports_nothing_heavy() -> None:
    startup = loaded("startup")
    for name in startup.HELP:
        assert startup.heavy_imports(f"homo_dp.{name}", "--help") == []


def test_growth() -> None:
    sizes = ("--rows", "40", "--parties", "1", "--shared", "3000", "--many", "2", "--repeats", "1")
    rows, parties, many = lines_of("growth.py", *sizes)
    assert list(rows["cpu_seconds"]) == ["120", "480", "1920"]
    assert list(parties["cpu_seconds"]) == ["1", "10", "100"]
    assert many["parties"] == 2
    assert many["cpu"] > 0


def test_job_accounts_for_all_of_its_seconds(tmp_path: Path) -> None:
    config = loaded("samples").write_job(tmp_path, {"a": 60, "b": 50}, features=2, rounds=1)
    (line,) = lines_of("job.py", "--once", str(config))
    assert {"imports", "training", "reading", "ledger", "files", "mlflow"} <= set(line["wall"])
    assert min(line["wall"].values()) >= 0
    assert len(line["mlflow_process"]) == 2
    assert (tmp_path / "model.safetensors").exists()


def test_job_config_is_a_config(tmp_path: Path) -> None:
    tree = loaded("samples").job_config(tmp_path, {"files": {"a": "a.csv"}}, features=2, rounds=3)
    assert config_from(tree).train.rounds == 3


@pytest.mark.parametrize(
    ("value", "bar", "met"),
    [
        (0.5, "<= 0.7", True),
        (9.9, ">= 10", False),
        (1.0, "< 1", False),
        (None, "< 1", False),
        (3.0, "", None),
    ],
)
def test_bars(value: float | None, bar: str, met: bool | None) -> None:
    assert loaded("run_all").meets(value, bar) is met


def test_results_name_the_machine_and_every_figure() -> None:
    run_all = loaded("run_all")
    found = [dict(figure.where) | {figure.key: 1.0} for figure in run_all.FIGURES]
    rows, _ = run_all.table(found)
    assert len(rows) == len(run_all.FIGURES) + 2
    assert not any("missing" in row for row in rows)
    about = run_all.machine()
    text = run_all.report(about, rows, {"job.py": 60.0}, found)
    assert "processor" in text
    assert "torch" in text
    assert str(Path.home()) not in text
    assert str(FOLDER) not in text
    rows, passed = run_all.table([])
    assert not passed
    assert "missing" in rows[-1]


def test_every_script_of_the_list_is_there() -> None:
    assert all((FOLDER / script.split()[0]).is_file() for script in loaded("run_all").SCRIPTS)


@pytest.mark.parametrize("script", ["run_all.py", "noise.py"])
def test_help_teaches_and_other_arguments_are_refused(script: str) -> None:
    command = [sys.executable, str(FOLDER / script)]
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert (loaded(script.removesuffix(".py")).__doc__ or "").strip() in told
    refused = subprocess.run([*command, "--only", "nothing"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "error: " in refused.stderr


def test_counts_are_whole_numbers_from_one_on() -> None:
    count = loaded("arguments").count
    assert count("5") == 5
    for text in ("0", "-1", "x", "1.5"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number >= 1"):
            count(text)


def test_networks(tmp_path: Path) -> None:
    """The rule and what is moved by hand are trained; test images are not opened."""
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    pixels, labels = (
        rng.integers(0, 255, (60, 8, 8), dtype=np.uint8),
        (np.arange(60) % 10).astype(np.uint8),
    )
    (folder / "train-images-idx3-ubyte").write_bytes(
        np.array([0x803, 60, 8, 8], ">i4").tobytes() + pixels.tobytes()
    )
    (folder / "train-labels-idx1-ubyte").write_bytes(
        np.array([0x801, 60], ">i4").tobytes() + labels.tobytes()
    )
    sizes = (
        "--models",
        "mlp",
        "--rows",
        "60",
        "--used",
        "4",
        "--shrink",
        "2",
        "--only",
        "rule",
        "last model",
    )
    command = [sys.executable, str(FOLDER / "networks.py"), "--data", str(tmp_path), *sizes]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(" | ")[1] for line in done.stdout.splitlines()[2:]] == [
        "no privacy",
        "rule",
        "last model",
    ]
