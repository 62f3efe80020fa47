"""A client of another framework: whatever it returns or raises, its update has the right shape,
and is zero if bad.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import PartyFacts
from homo_dp.federation.users.client_fit import ClientFit, arrays_of, client_function
from homo_dp.models.arrays import ArrayModel

START = [np.zeros((2, 3)), np.zeros(3)]


def moved(client: Callable[..., Any]) -> dict[str, torch.Tensor]:
    """What a round of this client changes."""
    fit = ClientFit(
        ArrayModel(START), PartyFacts("a", 1, 1, 1, 1.0), client, load_config(None).train
    )
    fit.start = {name: value.clone() for name, value in fit.model.state_dict().items()}
    fit.round_number = 3
    fit.train_round(fit.plain_training(), lambda: None)
    return {name: value - fit.start[name] for name, value in fit.model.state_dict().items()}


def test_a_client_that_trains_is_taken_with_or_without_its_count() -> None:
    for client in (
        lambda w, c: [a + c["round"] for a in w],
        lambda w, c: ([a + 3 for a in w], 17, {"loss": 1.0}),
    ):
        assert all(bool((change == 3).all()) for change in moved(client).values())


@pytest.mark.parametrize(
    "client",
    [
        lambda w, c: [w[0] + 1],
        lambda w, c: [w[0] + 1, w[1].reshape(1, 3) + 1],
        lambda w, c: [w[0] + 1, w[1] + math.nan],
        lambda w, c: None,
        lambda w, c: 1 / 0,
    ],
)
def test_a_client_that_fails_counts_as_one_that_changed_nothing(
    client: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert all(not change.any() for change in moved(client).values())
    assert "counts as zero" in caplog.text
    assert "division" not in caplog.text  # the text of an error may quote rows


def test_a_client_cannot_change_the_weights_that_it_was_given() -> None:
    model = ArrayModel(START)
    arrays_of(model.state_dict())[0][:] = 7.0
    assert not any(value.any() for value in model.state_dict().values())


def test_what_cannot_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no fit"):
        client_function(42)
