"""Pictures of a budget plan."""

import json
import struct
from pathlib import Path

import pytest

from tests.shell import budget_command

GOLDEN = ["plan", "--rows", "60000", "--batch-size", "256", "--epochs", "60", "--delta", "1e-5"]


KEYS = [
    "epsilon_pld",
    "epsilon_rdp",
    "noise_multiplier",
    "steps",
    "sample_rate",
    "delta",
    "neighbouring_relation",
]


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "new" / "epsilon.png"
    assert (
        budget_command(*GOLDEN, "--noise-multiplier", "1.1", "--json", "--plot", str(picture)) == 0
    )
    assert list(json.loads(capsys.readouterr().out)) == KEYS
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 900
    assert height > 600
