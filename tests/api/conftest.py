"""Two small tables, and settings that train them quickly."""

from __future__ import annotations

import pytest

import homo_dp
from tests.api.parts import COMMON, QUICK, table


@pytest.fixture(scope="session")
def result() -> homo_dp.Result:
    return homo_dp.fit(
        {"a": table(200, 1), "b": table(150, 2)}, ledger=None, settings=QUICK, **COMMON
    )
