"""docs/architecture.md is true: a real round walks the files that the page names, in that order,
and is as short.
"""

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import opacus
import pytest

import homo_dp
import homo_dp.train as train
from homo_dp.privacy.engine.passes import OneOutputPasses

ROOT = Path(homo_dp.__file__).parents[1]
PACKAGES = Path(opacus.__file__).parents[1]
TESTED_ELSEWHERE = {  # where a test of the same name cannot be
    # stand before functions of the same name, and run the command behind them
    **{
        f"homo_dp/{name}.py": f"tests/commands/test_{name}.py"
        for name in ("aggregator", "audit", "party", "stats")
    },
    "homo_dp/data/__main__.py": "tests/data/test_main.py",
    # needs flwr, which has an environment of its own
    "homo_dp/runs/flower.py": "tests/flower/test_flower.py",
    "homo_dp/transport/flower/client_app.py": "tests/flower/test_flower.py",
    "homo_dp/transport/flower/server_app.py": "tests/flower/test_flower.py",
    "homo_dp/transport/nats/waiting_runs.py": "tests/transport/test_waiting_runs.py",
}
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def walked(arguments: list[str], patch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The frames from ``train.main`` to the function that clips, at its last call, which is one
    of a round; files of Opacus are named as in its repository.
    """
    found: list[tuple[str, str]] = []
    clip = OneOutputPasses.take_clipped_sum

    def look(*given: Any, **named: Any) -> Any:
        found[:] = [(clip.__name__, clip.__code__.co_filename)]
        at = sys._getframe(1)  # a profile of every call would take a minute
        while at.f_code is not train.main.__code__ and at.f_back is not None:
            found.append((at.f_code.co_name, at.f_code.co_filename))
            at = at.f_back
        found.append((at.f_code.co_name, at.f_code.co_filename))
        return clip(*given, **named)

    patch.setattr(OneOutputPasses, "take_clipped_sum", look)
    assert train.main(arguments) == 0
    return [(name, file_of(path)) for name, path in reversed(found)]


def file_of(path: str) -> str:
    ours = Path(path).is_relative_to(ROOT / "homo_dp")
    return Path(path).relative_to(ROOT if ours else PACKAGES).as_posix()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--params", "tracking.enabled=false"],
        ["--config", "homo_lr_dpsgd", "--params", "train.rounds=1,tracking.enabled=false"],
    ],
    ids=["the default job", "homo_lr_dpsgd"],
)
def test_a_round_walks_as_the_page_says(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frames = walked(["--quiet", *arguments], monkeypatch)
    assert frames == re.findall(r"^\| (\w+) \| ((?:homo_dp|opacus)/\S+\.py) \|$", PAGE, re.M)
    assert ("step", "opacus/optimizers/optimizer.py") in frames
    ours = [path for _, path in frames if path.startswith("homo_dp/")]
    assert len(ours) <= 12
    assert len(set(ours)) <= 7


def test_one_place_charges_and_one_loop_runs_rounds() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "homo_dp").rglob("*.py")}
    charging = [
        path.name
        for path, text in sources.items()
        if re.search(r"^ +(self\.)?ledger\.charge\(", text, re.M)
    ]
    opening = [path.name for path, text in sources.items() if re.search(r"\.start_round\(", text)]
    # a search is charged as one, before its first trial and without a message
    assert sorted(charging) == ["outbox.py", "private_search.py"]
    assert opening == ["aggregator_session.py"]


def imported(node: ast.AST) -> Iterator[str]:
    """What a module imports when it runs, inside functions too; imports for type checkers alone
    are left out.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            yield child.module
            yield from (f"{child.module}.{name.name}" for name in child.names)
        else:
            yield from imported(child)


def test_no_two_modules_need_each_other() -> None:
    paths = [
        path.relative_to(ROOT)
        for path in (ROOT / "homo_dp").rglob("*.py")
        if path.name != "__init__.py"
    ]
    modules = {".".join(path.with_suffix("").parts): ROOT / path for path in paths}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules.items()}
    needs = {name: set(imported(tree)) & (modules.keys() - {name}) for name, tree in trees.items()}
    assert sum(len(found) for found in needs.values()) > len(modules)  # the imports were found
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_module_has_a_test_of_its_own_name() -> None:
    missing = []
    for path in (ROOT / "homo_dp").rglob("*.py"):
        name, parts = path.relative_to(ROOT).as_posix(), path.relative_to(ROOT / "homo_dp").parts
        if path.name == "__init__.py" or len(path.read_text(encoding="utf-8").splitlines()) < 10:
            continue
        mirrored = Path("tests", *parts[:-1], f"test_{parts[-1]}")
        if not (ROOT / TESTED_ELSEWHERE.get(name, mirrored)).is_file():
            missing.append(f"{name}: write {mirrored}")
    assert not missing


# words that only a mechanism is called by: none and statistics mean other things as well
NAMES = {"dp_sgd", "dp_fedsgd", "dp_fedavg", "nbafl"}


def test_few_places_name_a_mechanism() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "homo_dp").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]
    assert len(found) <= 40, found


def test_no_code_compares_the_name_of_a_mechanism() -> None:
    found = []
    for path in sorted((ROOT / "homo_dp").rglob("*.py")):
        place = path.relative_to(ROOT / "homo_dp").as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and re.search(
                r"mechanism(\.name)?$", ast.unparse(node.left)
            ):
                constants = [
                    each.value
                    for side in node.comparators
                    for each in ast.walk(side)
                    if isinstance(each, ast.Constant)
                ]
                if {*NAMES, "none", "statistics"} & set(constants):
                    found.append(place)
    translated = {"config/aliases.py", "config/federatedscope.py"}
    assert {place for place in found if not place.startswith("compat/")} <= translated
