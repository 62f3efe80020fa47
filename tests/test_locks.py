"""What is installed is pinned, with hashes, for every supported Python."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = {path.stem: path.read_text() for path in (ROOT / "locks").glob("*.txt")}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# What Flower has in another version than we do.
CLASHES = {"fastapi", "packaging", "protobuf", "rich", "starlette", "uvicorn"}


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)={2,3}([^\s;+]+)", text, re.MULTILINE))


RUN = pins(LOCKS["run"]) | pins(LOCKS["torch-cpu"])
DEV = RUN | pins(LOCKS["dev"])


@pytest.mark.parametrize(
    ("needs", "locked"),
    [
        ([*PROJECT["dependencies"], *EXTRAS["nats"]], RUN),
        ([*EXTRAS["dev"][1:], *EXTRAS["notebooks"], *EXTRAS["sql"]], DEV),
        (EXTRAS["docs"], pins(LOCKS["docs"])),
        (EXTRAS["flower"], pins(LOCKS["flower"])),
    ],
    ids=["run", "dev", "docs", "flower"],
)
def test_each_requirement_has_a_pin_that_it_allows(
    needs: list[str], locked: dict[str, str]
) -> None:
    for need in map(Requirement, needs):
        assert need.specifier.contains(locked[canonicalize_name(need.name)]), need


def test_what_runs_needs_nothing_outside_of_its_lock() -> None:
    waiting, seen = list(PROJECT["dependencies"]), set()
    while waiting:
        need = Requirement(waiting.pop())
        name = canonicalize_name(need.name)
        environments = [{"extra": extra} for extra in (need.extras or {""})]
        assert name in RUN, need
        if name not in seen:
            seen.add(name)
            waiting += [
                inner
                for inner in metadata.requires(name) or []
                if (marker := Requirement(inner).marker) is None
                or any(marker.evaluate(each) for each in environments)
            ]


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_every_pin_has_a_hash_and_no_address(name: str) -> None:
    entries = re.split(r"^(?=[\w])", LOCKS[name].replace("-r run.txt\n", ""), flags=re.M)[1:]
    assert entries
    for entry in entries:
        assert re.fullmatch(
            r"\S+==[^\s;]+( ; sys_platform == '\w+')?( \\\n    --hash=sha256:[0-9a-f]{64})+\n",
            entry,
        ), entry
    assert "://" not in LOCKS[name]


def test_all_locks_have_the_versions_of_the_constraints() -> None:
    constraints = pins((ROOT / "constraints.txt").read_text())
    for name in LOCKS.keys() - {"flower"}:
        assert pins(LOCKS[name]).items() <= constraints.items(), name


def test_flower_has_other_versions_only_where_flwr_asks_for_them() -> None:
    flower = pins(LOCKS["flower"])
    assert {name for name in flower.keys() & RUN.keys() if flower[name] != RUN[name]} == CLASHES
    assert "torch" not in flower


def test_checks_need_no_tool_of_the_site_and_the_site_needs_no_torch() -> None:
    assert not {"mkdocs", "mkdocs-material", "mkdocstrings"} & DEV.keys()
    assert "torch" not in pins(LOCKS["docs"])


def test_make_and_images_check_the_hash_of_whatever_they_install() -> None:
    for name in ("Makefile", "Dockerfile"):
        text = (ROOT / name).read_text()
        assert "pipelines/install.py" in text
        installs = re.findall(r"^.*pip install.*$", text, re.MULTILINE)
        assert all("--require-hashes" in line for line in installs), installs
    for name in ("install.py", "flower_environment.py"):
        assert '"--require-hashes"' in (ROOT / "pipelines" / name).read_text()


def test_the_lock_holds_what_debian_12_can_install() -> None:
    lock = runpy.run_path(str(ROOT / "pipelines" / "lock.py"))
    assert lock["PYTHONS"][0] == "3.11.2"
    assert lock["_is_usable"]("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")
    assert lock["_is_usable"]("cryptography-50.0.2-cp311-abi3-macosx_10_9_universal2.whl")
    assert not lock["_is_usable"]("torch-2.13.0-cp310-cp310-manylinux_2_28_x86_64.whl")
    assert not lock["_is_usable"]("torch-2.13.0-cp313-cp313t-manylinux_2_28_x86_64.whl")
    assert not lock["_is_usable"]("torch-2.13.0-cp313-cp313-win_amd64.whl")
