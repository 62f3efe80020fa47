"""Names of single keys at Flower, flower-dp, FederatedScope and PrimiHub, and the keys that they
are here. All but PrimiHub's may stand in a config and in overrides of ours.
"""

from typing import Any

from homo_dp.config.aliases import ALIASES, renamed
from homo_dp.config.aliases import rename as rename_ours
from homo_dp.config.layers import drop, get, put
from homo_dp.core.errors import ConfigError

KEYS = {
    "nbafl.w_clip": "nbafl.clip_norm",
    "nbafl.l2_norm_clip": "nbafl.clip_norm",
    "nbafl.num_rounds": "train.rounds",
    "nbafl.clients_per_round": "nbafl.parties_per_round",
    "nbafl.cohort_size": "nbafl.parties_per_round",
    "privacy.clients_per_round": "privacy.cohort_size",
    "privacy.num_sampled_clients": "privacy.cohort_size",
    "privacy.min_available_clients": "federation.min_parties",
    "privacy.clipping_norm": "privacy.clip_norm",
    "privacy.init_clip_norm": "privacy.adaptive.initial_clip_norm",
    "privacy.initial_clipping_norm": "privacy.adaptive.initial_clip_norm",
    "privacy.clip_norm_lr": "privacy.adaptive.learning_rate",
    "privacy.clip_norm_target_quantile": "privacy.adaptive.target_quantile",
    "privacy.target_clipped_quantile": "privacy.adaptive.target_quantile",
    "privacy.clip_count_stddev": "privacy.adaptive.bit_noise",
    "privacy.clipped_count_stddev": "privacy.adaptive.bit_noise",
}
# Flower's words that stand alone in `--params`; in a run with NbAFL flower-dp's come first.
FLOWER = {
    "num_rounds": "train.rounds",
    "num_sampled_clients": "privacy.cohort_size",
    "clients_per_round": "privacy.cohort_size",
    "min_available_clients": "federation.min_parties",
    "min_fit_clients": "federation.min_parties",
    "noise_multiplier": "privacy.noise_multiplier",
    "clip_norm": "privacy.clip_norm",
    "clipping_norm": "privacy.clip_norm",
    "init_clip_norm": "privacy.adaptive.initial_clip_norm",
    "initial_clipping_norm": "privacy.adaptive.initial_clip_norm",
    "clip_norm_lr": "privacy.adaptive.learning_rate",
    "clip_norm_target_quantile": "privacy.adaptive.target_quantile",
    "target_clipped_quantile": "privacy.adaptive.target_quantile",
    "clip_count_stddev": "privacy.adaptive.bit_noise",
    "clipped_count_stddev": "privacy.adaptive.bit_noise",
    "server_side_noising": "privacy.server_side_noising",
    "local_epochs": "train.local_epochs",
    "batch_size": "train.batch_size",
}
# flower-dp's words, which stand alone; they are read so only in a run with NbAFL.
FLOWER_DP = {
    "epsilon": "nbafl.epsilon",
    "delta": "nbafl.delta",
    "l2_norm_clip": "nbafl.clip_norm",
    "num_rounds": "train.rounds",
    "min_dataset_size": "nbafl.min_dataset_size",
    "num_exposures": "nbafl.exposures",
    "clients_per_round": "nbafl.parties_per_round",
    "num_sampled_clients": "nbafl.parties_per_round",
    "min_available_clients": "federation.min_parties",
}
# PrimiHub: parameters of old task commands and common_params of task files that have a counterpart.
OLD_NAMES = {
    "BatchSize": "train.batch_size",
    "batch_size": "train.batch_size",
    "NumIters": "train.rounds",
    "max_iter": "train.rounds",
    "global_epoch": "train.rounds",
    "local_epoch": "train.local_epochs",
    "learning_rate": "train.learning_rate",
    "alpha": "train.weight_decay",
    "optimizer": "train.optimizer",
    "noise_multiplier": "privacy.noise_multiplier",
    "l2_norm_clip": "privacy.max_grad_norm",
    "max_grad_norm": "privacy.max_grad_norm",
    "delta": "privacy.delta",
    "secure_mode": "privacy.secure_mode",
    "selected_column": "data.use",
    "feature_names": "data.use",
    "id": "data.id",
    "label": "data.label",
    "task_name": "tracking.run_name",
    "task": "model.task",
    "metric_path": "output.indicatorFileName",
    "predictFileName": "output.predictFileName",
    "indicatorFileName": "output.indicatorFileName",
    "modelFileName": "output.modelFileName",
}
IGNORED = {
    "hostLookupTable": "look-up tables belong to PrimiHub's tree models",
    "guestLookupTable": "look-up tables belong to PrimiHub's tree models",
    "print_metrics": "the final table is always printed, unless --quiet",
    "n_length": "it sizes Paillier keys, and no update is encrypted that way here",
    "need_encrypt": "it switches Paillier encryption, which is not used here",
    "need_one_vs_rest": "several classes are trained as one softmax model",
    "category": "the number of classes follows from data.classes",
}
NEEDS_FILES = frozenset({"Data_File", "TestData", "TrainData"})
ALL_KEYS = ALIASES | KEYS


def rename(tree: dict[str, Any]) -> dict[str, Any]:
    """Replace every other name in one layer by our key.

    >>> rename({"nbafl": {"w_clip": 2}, "predictFileName": "p.csv"})
    {'nbafl': {'clip_norm': 2}, 'output': {'predictFileName': 'p.csv'}}
    """
    tree = renamed(rename_ours(tree), KEYS)
    # FederatedScope's switch
    if get(tree, "nbafl.use") is True and get(tree, "privacy.mechanism") is None:
        put(tree, ("privacy", "mechanism"), "nbafl")
    return tree


def rename_for_nbafl(*layers: dict[str, Any]) -> list[dict[str, Any]]:
    """Replace flower-dp's words in all layers, if together they ask for NbAFL, and take
    FederatedScope's switch out.

    >>> rename_for_nbafl({"privacy": {"mechanism": "nbafl"}}, {"num_rounds": 3})
    [{'privacy': {'mechanism': 'nbafl'}}, {'train': {'rounds': 3}}]
    """
    asked = [get(layer, "privacy.mechanism") for layer in layers]
    mechanism = next((name for name in reversed(asked) if name is not None), None)
    used = [get(layer, "nbafl.use") for layer in layers]
    if (
        mechanism == "nbafl"
        and next((use for use in reversed(used) if use is not None), None) is False
    ):
        raise ConfigError(
            "nbafl.use=false: privacy.mechanism is nbafl; choose another privacy.mechanism, or "
            "leave nbafl.use out"
        )
    for layer in layers:
        drop(layer, "nbafl.use")
    words = FLOWER | FLOWER_DP if mechanism == "nbafl" else FLOWER
    return [_where_noise_is_added(renamed(layer, words)) for layer in layers]


def _where_noise_is_added(layer: dict[str, Any]) -> dict[str, Any]:
    """Flower's `server_side_noising`: `noise_at: server`, which needs trust that the user must
    state, or `parties`.
    """
    given = get(layer, "privacy.server_side_noising")
    if given is None:
        return layer
    if not isinstance(given, bool):
        raise ConfigError(f"server_side_noising={given}: must be true or false")
    drop(layer, "privacy.server_side_noising")
    put(layer, ("privacy", "noise_at"), "server" if given else "parties")
    return layer
