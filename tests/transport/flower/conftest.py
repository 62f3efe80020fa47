"""Waits of Flower's two ends are short in tests."""

import pytest

from homo_dp.transport.flower import grid, node


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_LAST_WORDS", 0.2)
    monkeypatch.setattr(node, "ANSWERS_WITHIN", 2.0)
    monkeypatch.setattr(grid, "_TROUBLE", 0.05)
    monkeypatch.setattr(grid, "_UNKNOWN", 0.05)
    monkeypatch.setattr(grid, "_LOOK_FOR_NODES", 0.05)
