"""One run with many canaries in networks, users of cohorts of a fixed size, and the ceiling of
attacks that see less.

Code that draws in another order gets other noise, so bounds are asked for at a confidence of 1 -
1e-7: a sound mechanism fails a test here less often than once in ten million such changes. What is
broken is broken by so much that missing it is rarer still.
"""

from dataclasses import replace

from homo_dp.evidence.audit import Scores, judge
from homo_dp.evidence.update_attacks import CanaryUser
from tests.evidence.parts import SURE, USERS, cohort_recipe


def test_users_of_a_fixed_cohort_with_too_little_noise_are_caught() -> None:
    attack = CanaryUser(cohort_recipe((3,), {**USERS, "privacy.target_epsilon": 1.0}))
    assert attack.claim.profile() is None  # no loss distribution is known for it
    sound = judge(attack, Scores(attack.scores(True, 200), attack.scores(False, 200)), SURE)
    assert not sound.refuted
    assert sound.ceiling is not None
    made = attack.mechanism
    made.numbers = replace(made.numbers, noise_multiplier=made.numbers.noise_multiplier / 20)
    broken = judge(attack, Scores(attack.scores(True, 200), attack.scores(False, 200)), SURE)
    assert broken.refuted
    assert broken.lower_bound > broken.claimed_epsilon


def test_the_ceiling_of_a_fixed_cohort_is_what_its_scores_reach() -> None:
    attack = CanaryUser(cohort_recipe((3,), {**USERS, "privacy.target_epsilon": 20.0}))
    found = judge(attack, Scores(attack.scores(True, 1000), attack.scores(False, 1000)), SURE)
    assert found.lower_bound <= found.claimed_epsilon
    assert found.lower_bound > 0.5 * (found.ceiling or 0) > 0.5
