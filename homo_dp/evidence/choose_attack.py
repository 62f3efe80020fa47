"""Which attack goes with which mechanism and observer, and how it is built from a configuration."""

from __future__ import annotations

from homo_dp.config.mechanisms import records
from homo_dp.config.schema import Config
from homo_dp.core.errors import InputError
from homo_dp.evidence.attack import Attack

ATTACKS = (
    "canary_gradient",
    "canary_updates",
    "canary_model",
    "canary_sum",
    "canary_difference",
    "canary_count",
    "canary_user",
    "clip_bits",
    "canary_upload",
)
OBSERVERS = ("aggregator", "model_reader")
OF_MODELS = ("canary_model", "canary_user", "clip_bits")  # what they see is published


def attack_name(config: Config, name: str | None, observer: str | None) -> tuple[str, str]:
    """The attack and observer to use where none, or only one, was given."""
    mechanism, attacks = config.privacy.mechanism, config.privacy.capabilities.attacks
    if observer is None:
        trusting = "aggregator" not in (attacks or OBSERVERS) or name in OF_MODELS
        observer = "model_reader" if trusting else "aggregator"
    if name is None:
        name = attacks.get(observer)
    if name is None:
        known = ", ".join(
            f"{each.name} towards the {who}" for each in records() for who in each.attacks
        )
        raise InputError(
            f"privacy.mechanism={mechanism}: no attack on it towards the {observer}; there are: "
            f"{known}"
        )
    return name, observer


def attack_on(config: Config, name: str, observer: str) -> Attack:
    """Build an attack; reads of the data its shape and counts, no values."""
    from homo_dp.evidence import (
        record_attacks,
        sum_attacks,
        update_attacks,
    )

    recipe = record_attacks.recipe_of(config)
    match name:
        case "canary_sum":
            return sum_attacks.CanarySum(recipe, observer=observer)
        case "canary_upload":
            return update_attacks.CanaryUpload(recipe, observer)
        case "canary_user":
            return update_attacks.CanaryUser(recipe)
        case "clip_bits":
            return update_attacks.ClipBits(recipe)
    by_record: dict[
        str, type[record_attacks.CanaryGradient] | type[sum_attacks.CanaryDifference]
    ] = {
        each.name: each
        for each in (
            record_attacks.CanaryGradient,
            record_attacks.CanaryUpdates,
            record_attacks.CanaryModel,
            sum_attacks.CanaryDifference,
            sum_attacks.CanaryCount,
        )
    }
    if name not in by_record:
        raise InputError(f"--attack={name} is unknown; there are: {', '.join(ATTACKS)}")
    return by_record[name](recipe)
