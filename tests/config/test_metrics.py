"""The metrics section: nothing is released unless somebody says so."""

import pytest

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError


def test_metrics_stay_local_by_default() -> None:
    found = load_config(None).metrics
    assert (found.release, found.per_party) == ("local", False)


@pytest.mark.parametrize(
    "keys", [{"metrics.share": 0}, {"metrics.share": 1}, {"metrics.bins": 1}, {"metrics.every": 0}]
)
def test_a_share_lies_within_the_budget_and_bins_are_few(keys: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        load_config(None, {"metrics.release": "noised", **keys})
