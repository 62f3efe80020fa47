"""The loop of docs/from_opacus.md, as it stands on the page."""

import re
from pathlib import Path
from typing import Any

import opacus

from homo_dp.opacus import PrivacyEngine

PAGE = Path(__file__).parents[1] / "docs" / "from_opacus.md"


def test_the_loop_on_the_page_trains_privately() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    after: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), after)
    engine = after["engine"]
    assert isinstance(engine, PrivacyEngine)
    assert isinstance(engine, opacus.PrivacyEngine)
    assert engine.secure_mode
    assert engine.accountant.history == [(1.0, 64 / 512, 5 * 8)]
    assert 1 < after["epsilon"] < 10
    assert after["accuracy"] > 0.7
