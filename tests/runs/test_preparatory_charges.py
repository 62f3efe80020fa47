"""A plan that hides what a party has paid before it is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homo_dp.federation.sessions.plan import PlanRefused
from homo_dp.privacy.accounting.dp_event import GaussianDpEvent
from homo_dp.privacy.accounting.events import to_json
from homo_dp.runs.preparatory_charges import _check_counted


def test_a_plan_that_hides_what_was_paid_is_refused(tmp_path: Path) -> None:
    """Releases of the ledger must be among those that a plan counts, with no more noise there than was added."""

    def row(noise: float) -> Any:
        return SimpleNamespace(event=to_json(GaussianDpEvent(noise)))

    _check_counted([row(10.0), row(12.0)], [12.0, 10.0, 8.0])
    for claimed in ((), (10.0,), (10.0, 13.0)):
        with pytest.raises(PlanRefused, match="does not count"):
            _check_counted([row(10.0), row(12.0)], claimed)
