"""A mechanism over sums: what users send adds up in float64, and one with other hooks trains
them one at a time.
"""

import torch

from homo_dp.federation.mechanisms.cohort_mechanism import CohortSum, Contributions
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.federation.mechanisms.local_fit import LocalFit
from tests.federation.user_parts import mean_of, sent_by, user_config, user_mechanism, zeros


def test_a_sum_counts_everybody_once_and_keeps_small_ones() -> None:
    total = CohortSum(1.0, torch.zeros(1, dtype=torch.float64))
    total.add(Contributions(torch.tensor([[1e8], [1.0]]), torch.tensor([0.5, -0.5])))
    total.add(Contributions(torch.tensor([[1.0]]), torch.tensor([0.5])))
    # float32 would lose the ones
    assert (float(total.updates), total.bits, total.replies) == (1e8 + 2, 0.5, 3)


def test_hooks_of_ones_own_train_users_one_at_a_time() -> None:
    class Own(DpFedAvg):
        def before_fit(self, fit: LocalFit) -> None:
            super().before_fit(fit)

    assert user_mechanism(user_config()).trains_together
    assert not user_mechanism(user_config(), Own).trains_together


def test_the_divisor_does_not_depend_on_who_replied() -> None:
    quiet = user_config({"privacy.noise_multiplier": 1e-6})
    rows = torch.ones(50, 1)
    means = [
        float(mean_of(mechanism, sent_by(mechanism, rows[:count]), 1))
        for count in (50, 25)
        for mechanism in [user_mechanism(quiet)]
    ]
    assert abs(means[0] - 2 * means[1]) < 1e-3
    mechanism = user_mechanism(quiet)
    assert mechanism.open_sum(zeros(3)).updates.shape == (3,)
