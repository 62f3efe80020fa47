"""Memory that is free, by the system and by the container."""

from __future__ import annotations

from pathlib import Path

import pytest

from homo_dp.core import memory
from homo_dp.core.memory import available_memory, too_large


def test_there_is_some_and_not_without_end() -> None:
    assert 0 < available_memory() < 1 << 50
    assert too_large(0) is None


@pytest.mark.parametrize("limit", ["max", str(1 << 62), "damaged"])
def test_a_container_without_a_limit_leaves_the_system_s(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "max").write_text(limit)
    monkeypatch.setattr(memory, "_system", lambda: 12345)
    monkeypatch.setattr(memory, "_number", lambda path: _read(tmp_path / "max"))
    assert available_memory() == 12345


def test_a_container_s_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"/sys/fs/cgroup/memory.max": 1000, "/sys/fs/cgroup/memory.current": 400}
    monkeypatch.setattr(memory, "_number", values.get)
    monkeypatch.setattr(memory, "_system", lambda: 10**9)
    assert available_memory() == 600
    assert "not enough memory" in str(too_large(601))


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except ValueError:
        return None
