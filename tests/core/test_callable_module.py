"""A module that can be called, and is a module all the same."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

import pytest

from homo_dp.core.callable_module import make_callable


def added(one: int, other: int = 1) -> int:
    """What the module below calls."""
    return one + other


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("made_up")
    made.answer = 42  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_up", made)
    monkeypatch.setitem(sys.modules, "behind", sys.modules[__name__])
    make_callable("made_up", "behind:added")
    return made


def test_it_is_called_as_the_function(module: ModuleType) -> None:
    assert module(1, other=2) == 3  # type: ignore[operator]
    assert module.answer == 42
    assert isinstance(module, ModuleType)


def test_help_shows_the_function_s_signature(module: ModuleType) -> None:
    assert list(inspect.signature(module).parameters) == ["one", "other"]  # type: ignore[arg-type]


def test_the_function_is_imported_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("made_up")
    monkeypatch.setitem(sys.modules, "made_up", made)
    make_callable("made_up", "no_such_module_anywhere:f")
    with pytest.raises(ModuleNotFoundError):
        made()  # type: ignore[operator]
