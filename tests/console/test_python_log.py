"""Warnings in a Python program, in processes of their own: imports decide who shows them."""

import subprocess
import sys

import pytest

CALL = """
import homo_dp.api.training, logging
import opacus
logging.getLogger("homo_dp.runs").warning("rows of %s", "a")
"""


def shown(before: str, after: str = "") -> str:
    program = before + CALL + after
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stderr.strip()


def test_a_warning_is_shown_once_as_the_commands_show_it() -> None:
    """It was shown with the date and format that opacus gives the root logger."""
    assert shown("").splitlines() == ["warning: rows of a"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_logging_of_the_program_is_left_as_it_is(moment: str) -> None:
    own = "import logging; logging.basicConfig(format='own %(message)s')\n"
    if moment == "before":
        assert shown(own).splitlines() == ["own rows of a"]
        return
    again = own + "logging.getLogger('homo_dp.runs').warning('again')"
    assert shown("", again).splitlines() == ["warning: rows of a", "own again"]
