"""All users of a table as one party: its answer is one bounded sum, and says nothing of who was
drawn.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError, DataError
from homo_dp.data.rows import Table
from homo_dp.federation.mechanisms.base import FederationFacts, PartyFacts
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.federation.sessions.build import build_mechanism
from homo_dp.federation.users.users_fit import UsersFit, users_fit
from homo_dp.models.registry import build_model
from homo_dp.privacy.noise.source import SeededNoise
from tests.federation.user_parts import user_config

USERS = 20
CONFIG = user_config(
    {"privacy.population": USERS, "privacy.cohort_size": 10, "train.local_epochs": 1}
)
FACTS = PartyFacts("all", USERS, 10, 1, 1.0)


def fit_of(table: Table) -> UsersFit:
    model = build_model(CONFIG.model, (2,), (0, 1), 0)
    return users_fit(
        CONFIG, model, table, "all", FACTS, np.array([f"u{number}" for number in range(USERS)])
    )


def table(labels: Tensor | None) -> Table:
    numbers = torch.arange(USERS).repeat_interleave(3)
    features = torch.randn(len(numbers), 2, generator=torch.Generator().manual_seed(1)) * 100
    return Table(features, labels, users=numbers)


def mechanism() -> DpFedAvg:
    found = build_mechanism(CONFIG, FederationFacts({"all": FACTS}, 10, 3), SeededNoise(1))
    assert isinstance(found, DpFedAvg)
    found.one_party_holds_all = True
    return found


def test_a_round_answers_with_the_sum_of_a_cohort_and_its_size_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit, used = fit_of(table(torch.ones(USERS * 3))), mechanism()
    # the last one never replies
    monkeypatch.setattr(used, "draw", lambda: torch.tensor([1, 4, USERS + 3]))
    release = fit.fit(used, fit.model.state_dict(), 1, {})
    assert set(release.tensors) == {"cohort_sum"}
    assert float(release.tensors["cohort_sum"].norm()) <= 2 * 3.0  # two users that replied, C = 3
    assert release.info["replies"] == 2
    assert set(release.info) == {"bits", "replies"}


def test_rows_without_labels_and_mechanisms_without_cohorts_are_refused() -> None:
    with pytest.raises(DataError, match="has no labels"):
        fit_of(table(None))
    plain = build_mechanism(
        load_config(None), FederationFacts({"all": FACTS}, 10, 3), SeededNoise(1)
    )
    fit = fit_of(table(torch.ones(USERS * 3)))
    with pytest.raises(ConfigError, match="is not a sum over users"):
        fit.fit(plain, fit.model.state_dict(), 1, {})
