"""The command of reports: what is not a run is one line, and nothing is made."""

from pathlib import Path

import pytest

from homo_dp.core.errors import InputError
from homo_dp.report import main


def test_what_is_not_a_run_is_refused_and_no_store_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for arguments in (["empty"], ["nowhere", "--uri", "sqlite:///none.db"]):
        with pytest.raises(InputError):
            main([*arguments, "-o", "report.html"])
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
