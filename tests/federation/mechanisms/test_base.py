"""What every mechanism inherits: rounds with other sums, the mean by public weights, and
refusals of what it lacks.
"""

import pytest
import torch

from homo_dp.federation.mechanisms.base import Update, weighted_mean
from homo_dp.federation.protocol.round_sums import SUM
from homo_dp.privacy.errors import PrivacyError
from tests.federation.small import small_config, small_mechanism, zeros

NOISED = {
    "privacy__noise_multiplier": None,
    "privacy__target_epsilon": 4,
    "metrics__release": "noised",
}


def test_the_mean_is_by_weight_and_changes_no_update() -> None:
    updates = [
        Update(name, {"w": torch.full((2,), value)}, weight)
        for name, value, weight in [("a", 1.0, 1.0), ("b", 4.0, 2.0)]
    ]
    torch.testing.assert_close(weighted_mean(updates), {"w": torch.tensor([3.0, 3.0])})
    assert updates[0].tensors["w"].tolist() == [1.0, 1.0]


def test_the_answer_of_another_sum_is_one_float64_vector() -> None:
    mechanism = small_mechanism(small_config(train__rounds=2, **NOISED), {"a": 2000})
    asked = next(iter(mechanism.run.sums.values()))
    assert mechanism.signature_of(zeros(), asked) == {SUM: ((asked.dimension,), torch.float64)}
    assert mechanism.signature_of(zeros(), None).keys() == zeros().keys()


def test_what_a_mechanism_has_not_is_refused_by_name() -> None:
    mechanism = small_mechanism(small_config(), {"a": 20})
    with pytest.raises(PrivacyError, match="mechanism=dp_sgd: shares no noise"):
        mechanism.noise_alone()
    with pytest.raises(PrivacyError, match="mechanism=dp_sgd: has no masked sum"):
        mechanism.on_total(torch.zeros(1), ["a"], zeros(), 1)
