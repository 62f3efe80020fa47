"""The privacy section: one class a mechanism, with the keys that it reads; DP is on unless it is
switched off.
"""

import pytest

from homo_dp.compat.load import load
from homo_dp.config.load import config_from, dump_yaml, load_config
from homo_dp.config.privacy import (
    DpFedAvgPrivacy,
    DpSgdPrivacy,
    NbaflPrivacy,
    NoPrivacy,
    OwnPrivacy,
    UserKeys,
    every_key,
    keys_of,
)
from homo_dp.config.yaml_text import parse_yaml
from homo_dp.core.errors import ConfigError


@pytest.mark.parametrize(
    "overrides",
    [
        {"privacy.mechanism": "none"},
        {"privacy.seeded_noise_for_tests": 1},
        {"privacy.not_private": True},
    ],
)
def test_not_private(overrides: dict[str, object]) -> None:
    assert not load_config(None, overrides).private


USERS: dict[str, object] = {
    "privacy.mechanism": "dp_fedavg",
    "privacy.trust_aggregator": True,
    "privacy.cohort_size": 20,
    "data.embedded": "users",
}
BAD_USERS: list[tuple[dict[str, object], str]] = [
    (
        {"privacy.trust_aggregator": False},
        "privacy.noise_at=server: the aggregator sees updates without noise",
    ),
    ({"privacy.noise_at": "parties"}, "write privacy.sampling: fixed or everyone"),
    ({"privacy.cohort_size": None}, "needs privacy.cohort_size or privacy.sample_rate"),
    ({"privacy.cohort_size": None, "privacy.sampling": "fixed"}, "give privacy.cohort_size"),
    ({"privacy.sample_rate": 0.1}, "privacy.cohort_size, privacy.sample_rate"),
    ({"privacy.sampling": "everyone"}, "takes no cohort_size"),
    ({"privacy.population": 10}, "must be at most privacy.population=10"),
    (
        {"privacy.population": 1000, "privacy.delta": 0.01},
        "must be below 1 / privacy.population = 0.001",
    ),
    ({"privacy.tolerated_dropouts": 1}, "is for privacy.noise_at: parties"),
    (
        {
            "privacy.noise_at": "parties",
            "privacy.sampling": "fixed",
            "privacy.tolerated_dropouts": 20,
        },
        "must be below the cohort of 20",
    ),
    ({"privacy.unit": "record"}, "privacy.mechanism=dp_fedavg hides a user"),
    ({"privacy.max_grad_norm": 0.5}, "dp_fedavg clips with privacy.clip_norm"),
]


@pytest.mark.parametrize(("overrides", "said"), BAD_USERS, ids=[said for _, said in BAD_USERS])
def test_user_level_refused(overrides: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        load_config(None, {**USERS, **overrides})


def test_user_level_accepted() -> None:
    config = load_config(None, USERS)
    assert config.privacy.unit == "user"
    assert config.privacy.target_epsilon == 4.0
    at_parties = {
        "privacy.noise_at": "parties",
        "privacy.sampling": "fixed",
        "privacy.trust_aggregator": False,
    }
    privacy = load_config(None, {**USERS, **at_parties, "privacy.tolerated_dropouts": 3}).privacy
    assert keys_of(privacy, UserKeys).noise_at == "parties"


@pytest.mark.parametrize(
    ("keys", "start"),
    [
        ({}, 0.1),
        ({"privacy.clip_norm": 100}, 100.0),
        ({"privacy.clip_norm": 100, "privacy.adaptive.target_quantile": 0.9}, 100.0),
        ({"privacy.clip_norm": 100, "privacy.adaptive.initial_clip_norm": 3}, 3.0),
    ],
)
def test_adaptive_clipping_starts_from_the_clip_norm_that_is_given(
    keys: dict[str, object], start: float
) -> None:
    trusted = {
        "privacy.mechanism": "dp_fedavg",
        "privacy.trust_aggregator": True,
        "privacy.cohort_size": 10,
    }
    config = load_config(None, {**trusted, "privacy.clipping": "adaptive", **keys})
    assert keys_of(config.privacy, UserKeys).adaptive.initial_clip_norm == start
    assert config_from(parse_yaml(dump_yaml(config))) == config


def test_noise_multiplier_alone_leaves_no_target() -> None:
    privacy = load_config(None, {"privacy.noise_multiplier": 1.5}).privacy
    assert (privacy.target_epsilon, privacy.noise_multiplier) == (None, 1.5)


def test_own_mechanism_has_options_and_no_default_target() -> None:
    overrides = {"privacy.mechanism": "mine.laplace:Laplace", "privacy.options.scale": 2}
    privacy = keys_of(load_config(None, overrides).privacy, OwnPrivacy)
    assert (privacy.target_epsilon, privacy.options, privacy.built_in) == (
        None,
        {"scale": 2},
        False,
    )


def test_each_mechanism_has_the_keys_that_it_reads_and_no_others() -> None:
    kinds = {
        "dp_sgd": DpSgdPrivacy,
        "none": NoPrivacy,
        "nbafl": NbaflPrivacy,
        "mine.laplace:Laplace": OwnPrivacy,
    }
    for mechanism, kind in kinds.items():
        assert type(load_config(None, {"privacy.mechanism": mechanism}).privacy) is kind
    assert type(load_config(None, USERS).privacy) is DpFedAvgPrivacy
    assert not hasattr(load_config().privacy, "clip_norm")
    with pytest.raises(ConfigError, match=r"privacy\.mechanism=none: lacks the settings"):
        keys_of(load_config(None, {"privacy.mechanism": "none"}).privacy, UserKeys)


def test_a_config_that_spells_out_the_keys_of_all_mechanisms_still_loads() -> None:
    for overrides in ({}, {"privacy.mechanism": "none"}, {"privacy.mechanism": "nbafl"}, USERS):
        config = load_config(None, overrides)
        tree = {**config.model_dump(mode="json"), "privacy": every_key(config.privacy)}
        assert {"max_grad_norm", "clip_norm", "adaptive", "options"} <= set(tree["privacy"])
        assert config_from(tree) == config


def test_one_word_switches_privacy_off_whatever_else_is_given() -> None:
    given = {"privacy.mechanism": "none", "privacy.max_grad_norm": 0.5, "privacy.cohort_size": 3}
    loaded = load(None, given)
    assert loaded.config == load_config(None, {"privacy.mechanism": "none"})
    assert {note.partition(":")[0] for note in loaded.notes} == {
        "privacy.max_grad_norm",
        "privacy.cohort_size",
    }
    with pytest.raises(ConfigError, match=r"privacy\.noise_multiplier: is not used by"):
        load_config(None, {**given, "privacy.noise_multiplier": 1})


def test_shared_noise_without_a_mechanism_chooses_one_that_shares() -> None:
    assert load_config(None, {"privacy.secure_aggregation": True}).privacy.mechanism == "dp_fedsgd"
    with pytest.raises(ConfigError, match="is not used by"):
        load_config(None, {"privacy.secure_aggregation": True, "privacy.mechanism": "dp_sgd"})


def test_masks_that_so_many_parties_cannot_take_off_are_refused_when_a_config_is_loaded() -> None:
    """It was found when the run began, by every party on its own."""
    keys = {"privacy.secure_aggregation": True, "privacy.tolerated_dropouts": 1}
    named = {f"federation.parties.p{number}": f"p{number}.pub" for number in range(3)}
    with pytest.raises(ConfigError, match="of 3 parties 3 must sign each sum and only 2"):
        load_config(None, {"privacy.mechanism": "dp_fedsgd", **keys, **named})
    load_config(
        None, {"privacy.mechanism": "dp_fedsgd", **keys, **named, "federation.parties.p3": "p3.pub"}
    )
    alone = {"privacy.mechanism": "dp_fedsgd", "privacy.secure_aggregation": True}
    with pytest.raises(ConfigError, match="with 1 parties nobody is left to share the noise"):
        load_config(None, {**alone, "federation.parties.p0": "p0.pub"})
    load_config(None, {**alone, "data.files.p0": "p0.csv"})
