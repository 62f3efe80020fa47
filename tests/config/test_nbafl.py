"""The nbafl section: of two keys that follow from each other, one is given."""

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.nbafl import NbaflConfig
from homo_dp.core.errors import ConfigError


def test_delta_gives_the_constant_unless_the_constant_is_given() -> None:
    assert (NbaflConfig().delta, NbaflConfig(constant=3.0).delta) == (0.01, None)


@pytest.mark.parametrize(
    "keys", [{"delta": 0.1, "constant": 2.0}, {"exposures": 2, "parties_per_round": 3}]
)
def test_both_of_a_pair_are_refused(keys: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        load_config(
            None,
            {
                "privacy.mechanism": "nbafl",
                **{f"nbafl.{name}": value for name, value in keys.items()},
            },
        )
