"""The wheel, installed into a fresh environment outside of the checkout, trains."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist, built from a copy of what git knows, so that no stray file of the
    checkout gets in.
    """
    folder = tmp_path_factory.mktemp("package")
    source, dist = folder / "source", folder / "dist"
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for name in (each.decode() for each in names if each):
        if name.startswith(("homo_dp/", "conf/", "data/")) or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():
                (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dist


def test_the_wheel_carries_types_recipes_and_licence(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        text = next(opened.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert "homo_dp/py.typed" in names
    here = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("homo_dp/tracking/report/templates/*.html")
    }
    assert here
    assert here <= set(names)
    assert any(name.endswith("share/homo_dp/conf/homo_lr_dpsgd.yaml") for name in names)
    assert any(name.endswith("/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)
    assert "License-Expression: Apache-2.0" in text
    assert "Provides-Extra: nats" in text
    assert "Classifier: Typing :: Typed" in text


def test_the_sdist_has_what_the_wheel_is_built_from(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "LICENSE", "homo_dp/py.typed", "conf/homo_lr_dpsgd.yaml"} <= names
    assert "homo_dp/tracking/report/templates/report.html" in names


def test_the_installed_command_trains_outside_of_the_checkout(built: Path, tmp_path: Path) -> None:
    """In a new environment that sees the packages of this one, but has its own homo_dp."""
    (wheel,) = built.glob("*.whl")
    place = tmp_path / "venv"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, capture_output=True
    )
    packages = next((place / "lib").glob("python*")) / "site-packages"
    seen = [path for path in sys.path if path.endswith("site-packages") and Path(path).is_dir()]
    (packages / "seen.pth").write_text("\n".join(seen) + "\n")
    python = str(place / "bin" / "python")
    install = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--ignore-installed",
        str(wheel),
    ]
    done = subprocess.run(install, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    where = subprocess.run(
        [python, "-c", "import homo_dp; print(homo_dp.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=clean,
    )
    assert Path(where.stdout.strip()).is_relative_to(place), where.stderr
    params = "train.rounds=2,tracking.enabled=false"
    command = [
        str(place / "bin" / "homo-dp"),
        "train",
        "--config",
        "homo_lr_dpsgd",
        "--params",
        params,
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=clean
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / "model.safetensors").is_file()
    command = [str(place / "bin" / "homo-dp"), "report", "out", "-o", "report.html"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=clean
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Privacy report" in (tmp_path / "report.html").read_text(encoding="utf-8")
