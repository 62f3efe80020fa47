"""homo-dp status: it starts quickly, and its page escapes what others wrote."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from homo_dp import status
from homo_dp.runs.approval import ROWS_TOLD


def test_the_page_escapes_what_others_wrote_and_keeps_an_undeclared_row_count_out(
    tmp_path: Path,
) -> None:
    event = {"time": "2027-01-01T00:00:00Z", "event": "<script>alert(1)</script>"}
    asked = {"given_away": {ROWS_TOLD: "no", "rows": 98765, "releases": "<b>update</b>"}}
    run = {
        "run": "loans",
        "state": "running",
        "round": 1,
        "rounds": 2,
        "replied": {},
        "missing": [],
        "epsilon": None,
    }
    found: dict[str, Any] = {"side": "party", "name": "party_1", "asked": "now", "budget": None}
    found |= {
        "runs": [run | {"waits_for_approval": asked, "last_event": event, "last_error": event}]
    }
    text = status.page(found)
    assert "98765" not in text
    assert "<script>alert" not in text
    assert "<b>update" not in text
    asked["given_away"][ROWS_TOLD] = 98765
    assert "98765" in status.page(found)


def test_status_is_quick_to_start() -> None:
    code = "import sys; import homo_dp.runs.run_status, homo_dp.status; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
