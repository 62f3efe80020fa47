"""Which attack goes with which mechanism and observer."""

from __future__ import annotations

from homo_dp.config.schema import Config
from homo_dp.core.errors import InputError
from homo_dp.evidence.attack import Attack

ATTACKS = ("canary_gradient", "canary_updates", "canary_model", "canary_user", "clip_bits", "canary_upload")
OBSERVERS = ("aggregator", "model_reader")
_BY_MECHANISM = {
    ("dp_sgd", "aggregator"): "canary_gradient",
    ("dp_sgd", "model_reader"): "canary_model",
    ("dp_fedavg", "model_reader"): "canary_user",
    ("nbafl", "aggregator"): "canary_upload",
    ("nbafl", "model_reader"): "canary_upload",
}


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
    from homo_dp.evidence.records import CanaryGradient, CanaryModel, CanaryUpdates, recipe_of
    from homo_dp.evidence.sums import CanaryUpload, CanaryUser, ClipBits

    recipe = recipe_of(config)
    match name:
        case "canary_gradient":
            return CanaryGradient(recipe)
        case "canary_updates":
            return CanaryUpdates(recipe)
        case "canary_model":
            return CanaryModel(recipe)
        case "canary_user":
            return CanaryUser(recipe)
        case "clip_bits":
            return ClipBits(recipe)
        case "canary_upload":
            return CanaryUpload(recipe, observer)
    raise InputError(f"--attack={name} is unknown; there are: {', '.join(ATTACKS)}")
