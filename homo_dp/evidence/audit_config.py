"""An audit of a configuration: which attack goes with which mechanism and observer, and the audit itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from homo_dp.config.schema import Config
from homo_dp.core.errors import InputError
from homo_dp.evidence.attack import Attack
from homo_dp.evidence.audit import Audited, Scores, Wanted, judge, judge_one_run, run_attack
from homo_dp.runs.dry_run import settled_by_plan

ATTACKS = (
    "canary_gradient",
    "canary_updates",
    "canary_model",
    "canary_sum",
    "canary_difference",
    "canary_count",
    "low_bits",
    "uncharged_fits",
    "canary_user",
    "clip_bits",
    "canary_upload",
    "canary_answers",
)
OBSERVERS = ("aggregator", "model_reader")
_BY_MECHANISM = {
    ("dp_sgd", "aggregator"): "canary_gradient",
    ("dp_sgd", "model_reader"): "canary_model",
    ("dp_fedsgd", "aggregator"): "canary_sum",
    ("dp_fedsgd", "model_reader"): "canary_sum",
    ("dp_fedavg", "model_reader"): "canary_user",
    ("statistics", "aggregator"): "canary_answers",
    ("nbafl", "aggregator"): "canary_upload",
    ("nbafl", "model_reader"): "canary_upload",
}


def audited(config: Config, wanted: Wanted, state: Path | None, done: Callable[[int], None]) -> Audited:
    """Audit a configuration by many runs, or by one with many canaries; ``state`` keeps scores for an interrupted one.

    What the command and ``homo_dp.audit`` both call.
    """
    if config.privacy.mechanism == "none":
        raise InputError("privacy.mechanism=none: claims nothing, so there is nothing to refute")
    config, _ = settled_by_plan(config)
    found = _one_run(config, wanted) if wanted.canaries is not None else _many_runs(config, wanted, state, done)
    return replace(found, outcome=replace(found.outcome, mechanism=config.privacy.mechanism))


def _one_run(config: Config, wanted: Wanted) -> Audited:
    from homo_dp.evidence.many_canaries import NAME, many_canaries
    from homo_dp.evidence.record_attacks import recipe_of

    if config.privacy.mechanism != "dp_sgd" or (wanted.canaries or 0) < 100:
        raise InputError(f"--canaries={wanted.canaries}: give 100 or more, for privacy.mechanism: dp_sgd")
    found = many_canaries(recipe_of(config), wanted.canaries or 0)
    outcome = judge_one_run(found.scores, found.present, found.claim, NAME, "aggregator", wanted.confidence)
    return Audited(outcome, Scores(found.scores[found.present], found.scores[~found.present]), found.claim)


def _many_runs(config: Config, wanted: Wanted, state: Path | None, done: Callable[[int], None]) -> Audited:
    name, observer = attack_name(config, wanted.attack, wanted.observer)
    attack = attack_on(config, name, observer)
    tree = config.model_dump(mode="json")
    scores = run_attack(tree, name, observer, wanted.runs, max(1, wanted.jobs), state, done)
    return Audited(judge(attack, scores, wanted.confidence), scores, attack.claim)


def attack_name(config: Config, name: str | None, observer: str | None) -> tuple[str, str]:
    """The attack and observer to use where none, or only one, was given."""
    mechanism = config.privacy.mechanism
    if observer is None:
        trusting = mechanism == "dp_fedavg" or name in ("canary_model", "canary_user", "clip_bits")
        observer = "model_reader" if trusting else "aggregator"
    if name is None:
        name = _BY_MECHANISM.get((mechanism, observer))
    if name is None:
        known = ", ".join(f"{each} towards the {who}" for each, who in _BY_MECHANISM)
        raise InputError(f"privacy.mechanism={mechanism}: no attack on it towards the {observer}; there are: {known}")
    return name, observer


def attack_on(config: Config, name: str, observer: str) -> Attack:
    """Build an attack; reads of the data its shape and counts, no values."""
    from homo_dp.evidence import failing_fits_attack, record_attacks, statistics_attack, sum_attacks, update_attacks

    recipe = record_attacks.recipe_of(config)
    match name:
        case "canary_sum":
            return sum_attacks.CanarySum(recipe, observer=observer)
        case statistics_attack.NAME:
            return statistics_attack.CanaryAnswers(config, dict(recipe.rows))
        case "canary_upload":
            return update_attacks.CanaryUpload(recipe, observer)
        case "canary_user":
            return update_attacks.CanaryUser(recipe)
        case "clip_bits":
            return update_attacks.ClipBits(recipe)
    by_record: dict[str, type[record_attacks.CanaryGradient] | type[sum_attacks.CanaryDifference]] = {
        each.name: each
        for each in (
            record_attacks.CanaryGradient,
            record_attacks.CanaryUpdates,
            record_attacks.CanaryModel,
            sum_attacks.CanaryDifference,
            sum_attacks.CanaryCount,
            sum_attacks.LowBits,
            failing_fits_attack.UnchargedFits,
        )
    }
    if name not in by_record:
        raise InputError(f"--attack={name} is unknown; there are: {', '.join(ATTACKS)}")
    return by_record[name](recipe)
