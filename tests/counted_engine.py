"""Counts what goes through the privacy engine, in this process or in others that it starts."""

import functools
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ENGINE = "homo_dp.privacy.engine.engine"
FOLDER = "HOMO_DP_TEST_COUNTS"
ROOT = Path(__file__).parents[1]


def noting(note: Callable[[str, Any], None], name: str, real: Callable[..., Any]) -> Any:
    """A method that notes its calls, with the object that it is called on, and does its work."""

    @functools.wraps(real)
    def called(self: Any, *given: Any, **named: Any) -> Any:
        note(name, self)
        return real(self, *given, **named)

    return called


def count(note: Callable[[str, Any], None], put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Note each ``make_private`` of the engine, and each ``step`` of its optimizers."""
    from opacus.optimizers import DPOptimizer

    from homo_dp.privacy.engine.engine import PrivacyEngine

    for kind, name in ((PrivacyEngine, "make_private"), (DPOptimizer, "step")):
        put(kind, name, noting(note, name, getattr(kind, name)))


class _WhenImported(importlib.abc.MetaPathFinder):
    """Counts from the moment on in which a process imports the engine."""

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ENGINE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            sys.modules[fullname] = module
            count(_write)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def count_when_imported() -> None:
    """For a ``sitecustomize`` of processes: write what is noted to a file for this process."""
    sys.meta_path.insert(0, _WhenImported())


def environment(folder: Path) -> dict[str, str]:
    """The environment of processes that write their counts below a folder."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "from tests.counted_engine import count_when_imported\n\ncount_when_imported()\n"
    )
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), FOLDER: str(folder)}


def counts_of(folder: Path, process: int) -> dict[str, int]:
    """What a process noted; empty where it never imported the engine, or never used it."""
    file = folder / f"{process}.counts"
    lines = file.read_text().split() if file.exists() else []
    return {name: lines.count(name) for name in set(lines)}


def _write(name: str, _: Any) -> None:
    with open(Path(os.environ[FOLDER]) / f"{os.getpid()}.counts", "a") as file:
        file.write(f"{name}\n")
