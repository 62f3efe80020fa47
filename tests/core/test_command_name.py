"""Advice names commands as the user types them."""

from collections.abc import Iterator

import pytest

from homo_dp.core.command_name import as_typed, use_script_name


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    use_script_name(False)


def test_only_commands_are_rewritten() -> None:
    use_script_name()
    assert as_typed("python -m homo_dp.budget ledger show") == "homo-dp budget ledger show"
    inner = "python -m homo_dp.tracking.mlflow.sender out"  # no command of its own
    assert as_typed(inner) == inner
