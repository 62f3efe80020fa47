"""Classes of one's own in Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import homo_dp
from homo_dp.config.mechanisms import DP_SGD
from homo_dp.core.errors import ModelFileError
from homo_dp.federation.mechanisms.dp_sgd import DpSgd
from tests.api.parts import COMMON, QUICK, table


def test_classes_of_ones_own_need_no_package(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(input_shape[0], 4), nn.Tanh(), nn.Linear(4, outputs)
            )

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layers(rows)
            return out

    class Louder(DpSgd):
        capabilities = replace(DP_SGD, name="louder")

    made = homo_dp.fit(
        {"a": table(100, 1)}, ledger=None, model=Net, mechanism=Louder, settings=QUICK, **COMMON
    )
    assert made.privacy["mechanism"] == "louder"
    made.model.save(tmp_path / "own.safetensors")
    with pytest.raises(ModelFileError, match="factory"):
        homo_dp.load(tmp_path / "own.safetensors")
    assert len(homo_dp.load(tmp_path / "own.safetensors", factory=Net).predict(table(5, 1))) == 5
