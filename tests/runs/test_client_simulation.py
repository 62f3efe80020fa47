"""Clients of another framework in one process: they get their own arrays back, in order and
type.
"""

from pathlib import Path
from typing import Any

import numpy as np

import homo_dp


def test_clients_see_arrays_as_they_gave_them(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[list[np.ndarray]] = []

    def fit(weights: list[np.ndarray], config: dict[str, Any]) -> list[np.ndarray]:
        seen.append(weights)
        return [array + 1 for array in weights]

    start = [np.full((2, 3), 5.0), np.zeros(3)]
    homo_dp.train_clients(
        {f"c{n}": fit for n in range(4)},
        start,
        rounds=1,
        clip_norm=1.0,
        noise_multiplier=1.0,
        ledger=None,
    )
    assert [array.shape for array in seen[0]] == [(2, 3), (3,)]
    assert np.allclose(seen[0][0], 5.0)
