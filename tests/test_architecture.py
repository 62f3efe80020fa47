"""docs/architecture.md is true: a real round walks the files that the page names, in that order, and is as short."""

import re
import sys
from pathlib import Path
from types import CodeType, FrameType

import pytest

import homo_dp
from homo_dp import train
from homo_dp.privacy.gradients.fast.linear import OneOutputGradients

ROOT = Path(homo_dp.__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CLIPS: CodeType = OneOutputGradients.clipped_sum.__code__


def walked(arguments: list[str]) -> list[tuple[str, str]]:
    """The frames from ``train.main`` to the line that clips, at its last call, which is one of a round."""
    found: list[tuple[str, str]] = []

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is CLIPS:
            found.clear()
            at: FrameType | None = frame
            while at is not None:
                found.append((at.f_code.co_name, at.f_code.co_filename))
                at = None if at.f_code is train.main.__code__ else at.f_back

    sys.setprofile(look)
    try:
        assert train.main(arguments) == 0
    finally:
        sys.setprofile(None)
    return [(name, Path(path).relative_to(ROOT).as_posix()) for name, path in reversed(found)]


def test_a_round_walks_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frames = walked(["--quiet", "--params", "train.rounds=1,tracking.enabled=false"])
    assert frames == re.findall(r"^\| (\w+) \| (homo_dp/\S+\.py) \|$", PAGE, re.MULTILINE)
    files = list(dict.fromkeys(path for _, path in frames))
    handled = len(frames) - [name for name, _ in frames].index("handle")
    counts = [int(number) for number in re.findall(r"^\| f[^|]*\| \d+ \| (\d+) \|$", PAGE, re.MULTILINE)]
    assert [len(frames), len(files), handled] == counts
    assert len(frames) <= 12
    assert len(files) <= 6
    assert handled <= 5


def test_one_place_charges_and_one_loop_runs_rounds() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "homo_dp").rglob("*.py")}
    charging = [path.name for path, text in sources.items() if re.search(r"ledger\.charge\(", text)]
    opening = [path.name for path, text in sources.items() if re.search(r"\.start_round\(", text)]
    assert charging == ["outbox.py"]
    assert opening == ["aggregator_session.py"]
