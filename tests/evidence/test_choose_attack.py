"""Attacks that see less say how little they could show."""

from homo_dp.evidence.audit import Scores, judge
from homo_dp.evidence.sum_attacks import CanaryDifference
from homo_dp.evidence.update_attacks import ClipBits
from tests.evidence.low_bits_attack import LowBits
from tests.evidence.parts import USERS, cohort_recipe


def test_attacks_that_look_at_less_say_how_little_they_could_show() -> None:
    adaptive = {
        **USERS,
        "privacy.sampling": "everyone",
        "privacy.cohort_size": None,
        "privacy.clipping": "adaptive",
    }
    sums = {"privacy.mechanism": "dp_fedsgd", "train.rounds": 1, "train.sample_rate": 1.0}
    for attack, own in (
        (ClipBits(cohort_recipe((3,), {**adaptive, "privacy.target_epsilon": 8.0})), None),
        (CanaryDifference(cohort_recipe((3,), {**sums, "privacy.target_epsilon": 8.0})), None),
        (LowBits(cohort_recipe((30,), {**sums, "privacy.target_epsilon": 8.0})), 0.0),
    ):
        found = judge(attack, Scores(attack.scores(True, 100), attack.scores(False, 100)), 0.999)
        assert found.ceiling is not None
        assert found.ceiling_of_attack is not None
        assert found.ceiling_of_attack < found.ceiling
        assert own is None or found.ceiling_of_attack == own
