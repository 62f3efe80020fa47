"""One run with many canaries in networks, users of cohorts of a fixed size, and the ceiling of attacks that see less.

Noise is drawn without a seed, so bounds are asked for at a confidence of 1 - 1e-7: a sound mechanism fails a test here
less often than once in ten million runs. What is broken is broken by so much that missing it is rarer still.
"""

from dataclasses import replace
from typing import Any

import pytest

from homo_dp.config.load import load
from homo_dp.evidence.audit import Scores, judge, judge_one_run
from homo_dp.evidence.many_canaries import OneRun, many_canaries
from homo_dp.evidence.record_attacks import Recipe
from homo_dp.evidence.sum_attacks import CanaryDifference, LowBits
from homo_dp.evidence.update_attacks import CanaryUser, ClipBits
from homo_dp.privacy.training.private_training import PrivateTraining

SURE = 1 - 1e-7
CANARIES = 100
NETWORKS = {
    "mlp": {"model.name": "mlp", "model.layers": [8]},
    "cnn": {"model.name": "cnn", "model.channels": [4], "model.layers": []},
    "deep cnn": {"model.name": "cnn", "model.channels": [4, 4], "model.layers": [8], "model.activation": "relu"},
}
ONE_STEP = {"train.rounds": 1, "train.local_steps": 1, "train.sample_rate": 1.0}
USERS = {
    "privacy.mechanism": "dp_fedavg",
    "privacy.sampling": "fixed",
    "privacy.population": 40,
    "privacy.cohort_size": 36,
    "privacy.delta": 1e-3,
    "privacy.trust_aggregator": True,
    "train.rounds": 2,
}


def recipe(shape: tuple[int, ...], keys: dict[str, Any]) -> Recipe:
    config = load(None, [*keys.items(), ("train.batch_size", None), ("train.local_epochs", None)]).config
    return Recipe(config, shape, (0, 1, 2), {"a": 50, "b": 50}, "a")


def run_of(network: str, epsilon: float) -> OneRun:
    keys = {"privacy.mechanism": "dp_sgd", **NETWORKS[network], **ONE_STEP, "privacy.target_epsilon": epsilon}
    return many_canaries(recipe((64,) if network == "mlp" else (1, 8, 8), keys), CANARIES)


def is_refuted(found: OneRun) -> bool:
    return judge_one_run(found.scores, found.present, found.claim, "many_canaries", "aggregator", SURE).refuted


@pytest.mark.parametrize("network", NETWORKS)
def test_canaries_are_told_apart_by_their_gradients(network: str) -> None:
    """At epsilon 300 the two worlds are 18 standard deviations apart or more, behind convolutions too."""
    found = run_of(network, 300.0)
    assert not is_refuted(found)
    assert found.scores[found.present].min() > 0 > found.scores[~found.present].max()


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_without_noise_is_caught_and_a_sound_one_is_not(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_refuted(run_of(network, 0.2))
    monkeypatch.setattr(PrivateTraining, "_add_noise", lambda self, vectors: None)
    assert is_refuted(run_of(network, 0.2))


def test_users_of_a_fixed_cohort_with_too_little_noise_are_caught() -> None:
    attack = CanaryUser(recipe((3,), {**USERS, "privacy.target_epsilon": 1.0}))
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
    attack = CanaryUser(recipe((3,), {**USERS, "privacy.target_epsilon": 20.0}))
    found = judge(attack, Scores(attack.scores(True, 1000), attack.scores(False, 1000)), SURE)
    assert found.lower_bound <= found.claimed_epsilon
    assert found.lower_bound > 0.5 * (found.ceiling or 0) > 0.5


def test_attacks_that_look_at_less_say_how_little_they_could_show() -> None:
    adaptive = {**USERS, "privacy.sampling": "everyone", "privacy.cohort_size": None, "privacy.clipping": "adaptive"}
    sums = {"privacy.mechanism": "dp_fedsgd", "train.rounds": 1, "train.sample_rate": 1.0}
    for attack, own in (
        (ClipBits(recipe((3,), {**adaptive, "privacy.target_epsilon": 8.0})), None),
        (CanaryDifference(recipe((3,), {**sums, "privacy.target_epsilon": 8.0})), None),
        (LowBits(recipe((30,), {**sums, "privacy.target_epsilon": 8.0})), 0.0),
    ):
        found = judge(attack, Scores(attack.scores(True, 100), attack.scores(False, 100)), 0.999)
        assert found.ceiling is not None
        assert found.ceiling_of_attack is not None
        assert found.ceiling_of_attack < found.ceiling
        assert own is None or found.ceiling_of_attack == own
