"""Write constraints.txt and locks/: ``python pipelines/lock.py [--upgrade NAME ...]``.

uv, installed into a temporary environment, resolves pyproject.toml once for all supported Pythons
and platforms. The pins of constraints.txt are kept, except where a requirement excludes them or
``--upgrade`` names them.

- constraints.txt: every package, without hashes, for ``pip install -c`` in any environment.
- locks/run.txt: what training, a party and an aggregator need, but for torch.
- locks/torch-cpu.txt: the build of torch for CPUs.
- locks/torch-cuda.txt: the default build of torch and, on Linux, the CUDA libraries that it needs.
- locks/dev.txt: run.txt and what the checks need.
- locks/docs.txt: what builds the site.
- locks/flower.txt: what an environment with Flower adds to run.txt or has in another version.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[1]
CONSTRAINTS, LOCKS = ROOT / "constraints.txt", ROOT / "locks"
# The oldest Python of each minor version on a stock system: 3.11.2 is Debian 12's.
PYTHONS = ("3.11.2", "3.12.3", "3.13.0", "3.14.0")
MACHINES = {"linux": ("x86_64", "aarch64"), "darwin": ("arm64", "x86_64")}
TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
_USABLE = re.compile(r"any|(many)?linux.*_(x86_64|aarch64)|macosx_.*_(arm64|x86_64|universal2)")


@dataclass(frozen=True)
class Package:
    """One pinned package: its name, its version, the values of ``sys.platform`` that need it, and
    the SHA-256 of each file that a supported Python can install.
    """

    name: str
    version: str
    platforms: frozenset[str]
    hashes: tuple[str, ...] = ()

    def lines(self, operator: str = "==") -> str:
        """The package as a requirement with its hashes."""
        pin = f"{self.name}{operator}{self.version}"
        if self.platforms != MACHINES.keys():
            pin += f" ; sys_platform == '{next(iter(self.platforms))}'"
        return " \\\n    ".join([pin, *(f"--hash=sha256:{each}" for each in self.hashes)]) + "\n"


class Resolver:
    """uv in an environment of its own; ``folder`` is empty and temporary."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=True)
        self._python = str(folder / "venv" / "bin" / "python")
        self._folder = folder
        subprocess.run([self._python, "-m", "pip", "install", "-q", "uv"], check=True)
        versions = f"python_full_version < '3.{int(PYTHONS[-1].split('.')[1]) + 1}'"
        environments = [f"sys_platform == '{each}' and {versions}" for each in MACHINES]
        (folder / "pyproject.toml").write_text(f"[tool.uv]\nenvironments = {environments}\n")

    def pins(self, needs: Sequence[str], preferred: str, upgrade: Iterable[str]) -> str:
        """Versions for ``needs`` and all that they need.

        Args:
            needs: requirements.
            preferred: pins to keep where no requirement excludes them.
            upgrade: packages whose newest version is wanted.

        Returns:
            The pins, one a line.
        """
        output = self._folder / "pins.txt"
        output.write_text(preferred)
        options = [option for name in upgrade for option in ("--upgrade-package", name)]
        self._compile(needs, output, "--no-annotate", "--no-header", *options)
        found = re.findall(r"^(\S+)==(\S+)", output.read_text(), re.MULTILINE)
        names = [name for name, _ in found]
        if several := sorted({name for name in names if names.count(name) > 1}):
            raise SystemExit(
                f"two versions of {', '.join(several)}, as its pin does not fit {PYTHONS[0]}:"
                f" give --upgrade {' '.join(several)}"
            )
        return "".join(f"{name}=={version}\n" for name, version in found)

    def packages(self, needs: Sequence[str], pins: str) -> list[Package]:
        """``needs`` and all that they need, at the versions of ``pins``, with hashes."""
        (self._folder / "constraints.txt").write_text(pins)
        output = self._folder / "pylock.toml"
        output.unlink(missing_ok=True)
        self._compile(needs, output, "--format", "pylock.toml", "-c", "constraints.txt")
        found = tomllib.loads(output.read_text())["packages"]
        return [_package(each) for each in found]

    def _compile(self, needs: Sequence[str], output: Path, *options: str) -> None:
        (self._folder / "needs.in").write_text("\n".join(needs))
        command = [self._python, "-m", "uv", "pip", "compile", "--quiet", "--universal"]
        command += ["--python-version", PYTHONS[0], "--fork-strategy", "fewest"]
        command += ["-o", output.name, *options, "needs.in"]
        subprocess.run(command, cwd=self._folder, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Resolve, then write every file."""
    parser = argparse.ArgumentParser(description="Write constraints.txt and locks/.")
    parser.add_argument("--upgrade", nargs="+", default=[], metavar="NAME")
    upgrade = parser.parse_args().upgrade
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    run = [*project["build-system"]["requires"], *_needs(project, "", "nats")]
    dev, docs = [*run, *_needs(project, "dev")], _needs(project, "docs")
    flower = [*run, *_needs(project, "flower")]
    with tempfile.TemporaryDirectory() as folder:
        resolver = Resolver(Path(folder))
        kept = CONSTRAINTS.read_text(encoding="utf-8")
        pins = resolver.pins([*dev, *docs], kept, upgrade)
        running = resolver.packages(run, pins)
        flower_pins = resolver.pins(flower, _preferred_by_flower(pins), upgrade)
        torch = [each for each in running if TORCH.fullmatch(each.name)]
        with_flower = resolver.packages(flower, flower_pins)
        locks = {
            "run": [each for each in running if each not in torch],
            "dev": [each for each in resolver.packages(dev, pins) if each not in running],
            "docs": resolver.packages(docs, pins),
            "flower": [each for each in with_flower if each not in running],
        }
    CONSTRAINTS.write_text(pins, encoding="utf-8")
    _write_torch(torch)
    for name, packages in locks.items():
        first = "-r run.txt\n" if name == "dev" else ""
        text = first + "".join(each.lines() for each in packages)
        (LOCKS / f"{name}.txt").write_text(text, encoding="utf-8")
    return 0


def _needs(project: dict[str, Any], *extras: str) -> list[str]:
    """Requirements of extras ("" is the project without any), and of the extras that they name."""
    needs: list[str] = []
    described = project["project"]
    listed = {"": described["dependencies"], **described["optional-dependencies"]}
    for extra in extras:
        for need in listed[extra]:
            ours = re.fullmatch(r"homo_dp\[(.*)\]", need)
            needs += _needs(project, *ours[1].split(",")) if ours else [need]
    return needs


def _preferred_by_flower(pins: str) -> str:
    """``pins``, with the versions that locks/flower.txt has where it has others."""
    found = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
    locked = LOCKS / "flower.txt"
    others = locked.read_text(encoding="utf-8") if locked.exists() else ""
    merged = dict(found.findall(pins)) | dict(found.findall(others))
    return "".join(f"{name}=={version}\n" for name, version in merged.items())


def _package(described: dict[str, Any]) -> Package:
    """One entry of a pylock.toml."""
    name, version = described["name"], described["version"]
    needed = Marker(described.get("marker", "python_version > '3'"))
    platforms = set()
    for platform, machines in MACHINES.items():
        answers = {
            needed.evaluate(_environment(platform, machine, python))
            for machine in machines
            for python in PYTHONS
        }
        if len(answers) > 1:
            raise SystemExit(f"{name}: {needed} differs between Pythons; locks cannot say that yet")
        if answers.pop():
            platforms.add(platform)
    files = {each["url"].rsplit("/", 1)[1]: each["hashes"]["sha256"] for each in _files(described)}
    usable = {file: digest for file, digest in files.items() if _is_usable(file)}
    return Package(name, version, frozenset(platforms), tuple(sorted(usable.values())))


def _files(described: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The wheels of a package; its source only where there is no wheel that Linux can use."""
    wheels = described.get("wheels", [])
    yield from wheels
    if not any(_is_usable(each["url"].rsplit("/", 1)[1]) for each in wheels):
        yield described["sdist"]


def _environment(platform: str, machine: str, python: str) -> dict[str, str]:
    """What a marker can ask for."""
    return {
        "sys_platform": platform,
        "platform_machine": machine,
        "platform_system": platform.capitalize(),
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "python_version": python.rpartition(".")[0],
        "python_full_version": python,
    }


def _is_usable(file: str) -> bool:
    """Whether a supported Python can install a file.

    >>> _is_usable("numpy-2.4.6-cp312-cp312-manylinux_2_28_x86_64.whl")
    True
    >>> _is_usable("numpy-2.4.6-cp314-cp314t-manylinux_2_28_x86_64.whl")
    False
    """
    if not file.endswith(".whl"):
        return True
    minors = [int(python.split(".")[1]) for python in PYTHONS]
    own = {(f"cp3{minor}", abi) for minor in minors for abi in (f"cp3{minor}", "none")}
    own |= {(f"py3{minor}", "none") for minor in minors} | {("py3", "none")}
    own |= {(f"cp3{minor}", "abi3") for minor in range(2, minors[-1] + 1)}
    tags = parse_wheel_filename(file)[3]
    return any(
        (tag.interpreter, tag.abi) in own and _USABLE.fullmatch(tag.platform) for tag in tags
    )


def _write_torch(packages: Sequence[Package]) -> None:
    """The two builds of torch. The hashes of the CPU build that are known stay: an index seldom
    has this build for every Python and machine.
    """
    (torch,) = [each for each in packages if each.name == "torch"]
    cpu = LOCKS / "torch-cpu.txt"
    pin = f"torch=={torch.version}+cpu"
    known = cpu.read_text(encoding="utf-8") if cpu.exists() else ""
    hashes = set(re.findall(r"sha256:(\w+)", known)) if known.startswith(f"{pin} ") else set()
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, pin]
        subprocess.run(download, check=False)
        for wheel in Path(folder).iterdir():
            hashes.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    build = Package("torch", f"{torch.version}+cpu", torch.platforms, tuple(sorted(hashes)))
    cpu.write_text(build.lines(), encoding="utf-8")
    # "===" keeps the CPU build out, which "==" would take.
    lines = [each.lines("===" if each is torch else "==") for each in packages]
    (LOCKS / "torch-cuda.txt").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
