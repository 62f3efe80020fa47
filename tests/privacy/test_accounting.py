"""What mechanisms of one's own import from the room of accounting, and that events alone stay
light.
"""

import subprocess
import sys

import pytest

from homo_dp.privacy import accounting
from homo_dp.privacy.accounting import accountants


def test_the_three_names_are_those_of_the_accountants() -> None:
    for name in ("calibrate", "check_delta", "epsilon"):
        assert getattr(accounting, name) is getattr(accountants, name)
    with pytest.raises(AttributeError, match="has no attribute"):
        accounting.guess  # noqa: B018


def test_events_alone_load_neither_scipy_nor_torch() -> None:
    code = (
        "import sys, homo_dp.privacy.accounting.dp_event; print(sorted({'scipy', 'torch'} & "
        "set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
