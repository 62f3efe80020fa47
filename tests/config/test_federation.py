"""Who takes part, and how messages travel: what cannot be meant is refused."""

from pathlib import Path

import pytest

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"federation.parties": [{"name": "a"}, {"name": "a"}]}, "has a name twice"),
        (
            {"federation.parties": [{"name": "a"}], "federation.min_parties": 2},
            "at most the 1 parties",
        ),
        ({"transport.kind": "carrier_pigeon"}, "memory, directory, nats, flower"),
        ({"transport.nats.password": "secret"}, "password"),
        ({"party.caps.epsilon": 0}, "must be a number above 0"),
        ({"party.serve.approve": "never"}, "approve"),
    ],
)
def test_what_cannot_be_meant_is_refused(keys: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(None, keys)


def test_a_party_has_limits_without_saying_so() -> None:
    caps = load_config(None).party.caps
    limits = (
        caps.rounds,
        caps.steps,
        caps.total_steps,
        caps.epochs,
        caps.parameters,
        caps.columns,
        caps.max_refusals,
    )
    assert None not in limits


def test_state_lies_in_a_folder_of_the_party() -> None:
    assert load_config(None, {"party.name": "bank_a"}).party.folder == Path("state/bank_a")
    assert load_config(None, {"party.name": "bank_a", "party.state_dir": "x"}).party.folder == Path(
        "x"
    )
