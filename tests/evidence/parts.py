"""What tests of attacks share: small recipes, a training that was tampered with, and the
verdict.
"""

from collections.abc import Callable
from typing import Any

from homo_dp.compat.load import load
from homo_dp.evidence.attack import Attack
from homo_dp.evidence.audit import Scores, judge
from homo_dp.evidence.record_attacks import CanaryGradient, Recipe
from homo_dp.federation.mechanisms.dp_sgd import DpSgd
from homo_dp.federation.mechanisms.local_fit import LocalFit, Training
from homo_dp.federation.sessions.build import federation_facts, noise_source

SURE = 1 - 1e-7


USERS = {
    "privacy.mechanism": "dp_fedavg",
    "privacy.sampling": "fixed",
    "privacy.population": 40,
    "privacy.cohort_size": 36,
    "privacy.delta": 1e-3,
    "privacy.trust_aggregator": True,
    "train.rounds": 2,
}


def cohort_recipe(shape: tuple[int, ...], keys: dict[str, Any]) -> Recipe:
    config = load(
        None, [*keys.items(), ("train.batch_size", None), ("train.local_epochs", None)]
    ).config
    return Recipe(config, shape, (0, 1, 2), {"a": 50, "b": 50}, "a")


# with the canary, and as many without; the noise is the same in every run of these tests
RUNS = 250


def one_step_recipe(**train: Any) -> Recipe:
    keys = {
        "train.rounds": 1,
        "train.local_steps": 1,
        "train.sample_rate": 1.0,
        "privacy.target_epsilon": 4.0,
    } | train
    config = load(
        None, [*keys.items(), ("train.batch_size", None), ("train.local_epochs", None)]
    ).config
    return Recipe(config, (3,), (0, 1), {"a": 50}, "a")


def judged(attack: Attack, runs: int = RUNS) -> Any:
    return judge(attack, Scores(attack.scores(True, runs), attack.scores(False, runs)), 0.99)


Break = Callable[[Any], None]  # of what a party's training loop is made of


def broken_training(
    attacked: Recipe, broken: Break | None, attack: type[CanaryGradient]
) -> CanaryGradient:
    """An attack on DP-SGD whose training was tampered with."""

    class Broken(DpSgd):
        def training(self, fit: LocalFit) -> Training:
            first = self._training is None
            made = super().training(fit)
            if first and broken is not None:
                broken(made)
            return made

    config = attacked.config
    facts = federation_facts(config, attacked.rows, 4)
    return attack(attacked, lambda: Broken(config, facts, noise_source(config)))
