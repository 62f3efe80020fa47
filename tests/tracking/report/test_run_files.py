"""What a folder of outputs holds is found, checked against the ledger, and contradictions are
named.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from homo_dp.core.errors import InputError
from homo_dp.tracking.report.run_files import find_record
from tests.tracking.report.parts import Shell, change


def test_a_folder_without_or_with_two_trainings(shell: Shell, folder: Path) -> None:
    (shell.folder / "empty").mkdir()
    assert "no indicators" in shell.report("empty").error_lines[0]
    shutil.copy(folder / "numbers.dat", folder / "second.dat")
    change(folder / "second.dat", lambda value: value.update(run="another"))
    assert "several trainings" in shell.report(str(folder)).error_lines[0]
    assert shell.report(str(folder / "numbers.dat")).code == 0
    with pytest.raises(InputError):
        find_record(folder)
