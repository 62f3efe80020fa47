"""What a run leaves behind: private metrics stay here by default, and addresses with passwords
are not shown.
"""

import pytest

from homo_dp.config.load import dump_yaml, load_config
from homo_dp.core.errors import ConfigError


def test_metrics_of_private_rows_stay_on_this_machine_by_default() -> None:
    assert not load_config(None).tracking.private_metrics


def test_a_password_in_an_address_is_not_written_out() -> None:
    config = load_config(None, {"tracking.uri": "postgresql://ann:verysecret@db.example/runs"})
    assert "verysecret" not in dump_yaml(config)


@pytest.mark.parametrize(
    "keys", [{"output.modelFileName": ""}, {"predict.threshold": 1.5}, {"report.purpose": " "}]
)
def test_empty_names_and_impossible_thresholds_are_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        load_config(None, keys)
