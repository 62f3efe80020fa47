"""Every rule of the schema: defaults, ranges, and keys that exclude or need each other."""

import math

import pytest
from pydantic import ValidationError

from homo_dp.config.load import config_from, dump_yaml, load, load_config
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
from homo_dp.config.schema import Config, ScheduleConfig
from homo_dp.config.text import parse_yaml
from homo_dp.core.errors import ConfigError


def test_defaults_are_private_and_embedded() -> None:
    config = Config()
    assert config.private
    assert config.privacy.mechanism == "dp_sgd"
    assert config.privacy.target_epsilon == 4.0
    assert config.privacy.delta == 1e-5
    assert config.privacy.secure_mode
    assert config.data.dataset == "breast_cancer"
    assert config.data.partition is not None
    assert config.data.partition.parties == 3
    assert config.output.predictFileName == "out/predict.csv"


def test_short_partition_with_its_alpha() -> None:
    config = load_config(None, {"data.files": "t.csv", "data.partition": "dirichlet(0.1)"})
    assert config.data.partition is not None
    assert (config.data.partition.kind, config.data.partition.alpha) == ("dirichlet", 0.1)
    with pytest.raises(ConfigError, match=r"data.partition=dirichlet\(x\): must be"):
        load_config(None, {"data.files": "t.csv", "data.partition": "dirichlet(x)"})


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        Config().train.rounds = 3


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


BAD: list[tuple[dict[str, object], str]] = [
    ({"privacy.delta": 2}, "privacy.delta=2: must be a number above 0 and below 1; for example privacy.delta=1e-05"),
    ({"privacy.delta": 0}, "privacy.delta=0: must be"),
    ({"privacy.delta": math.nan}, "privacy.delta=NaN: must be"),
    ({"privacy.target_epsilon": 0}, "privacy.target_epsilon=0: must be a number above 0"),
    ({"privacy.target_epsilon": -1}, "privacy.target_epsilon=-1: must be a number above 0"),
    ({"privacy.target_epsilon": math.inf}, "privacy.target_epsilon=Infinity: must be a finite number above 0"),
    ({"privacy.target_epsilon": True}, "privacy.target_epsilon=true: must be a finite number above 0"),
    ({"privacy.target_epsilon": None}, "DP needs noise"),
    ({"privacy.noise_multiplier": 0}, "privacy.noise_multiplier=0: must be a number above 0"),
    ({"privacy.target_epsilon": 1, "privacy.noise_multiplier": 1}, "one follows from the other"),
    ({"privacy.mechanism": None}, "write the word none"),
    ({"privacy.mechanism": False}, "write the word none"),
    ({"privacy.mechanism": ""}, "must be one of dp_sgd"),
    ({"privacy.mechanism": "dpsdg"}, "must be one of dp_sgd"),
    ({"privacy.mechanism": "none", "privacy.target_epsilon": 3}, "privacy.target_epsilon: is not used by"),
    ({"privacy.mechanism": "nbafl", "privacy.noise_multiplier": 3}, "nbafl.epsilon"),
    ({"privacy.clip_norm": 2}, "dp_sgd clips with privacy.max_grad_norm"),
    ({"privacy.unit": "user"}, "privacy.mechanism=dp_sgd hides a record"),
    ({"privacy.lifetime_delta": 1e-6}, "privacy.lifetime_epsilon"),
    ({"privacy.options.scale": 1}, "a mechanism of your own"),
    ({"privacy.max_grad_norm": 0}, "privacy.max_grad_norm=0: must be"),
    ({"privacy.secure_mode": "yes"}, "privacy.secure_mode=yes: must be true or false"),
    ({"privacy.secure_mode": 1}, "privacy.secure_mode=1: must be true or false"),
    ({"privacy.ledger": "out/predict.csv"}, "is the same file as output.predictFileName"),
    ({"privacy.lifetime_epsilon": 3, "data.files.a": "a.csv"}, "give data.name"),
    ({"data.rows.a": 100, "data.files.a": "a.csv", "privacy.delta": 0.01}, "must be below 1 / data.rows.a = 0.01"),
    ({"data.files.a": "a.csv", "data.files.b": "b.csv", "data.rows.c": 9}, "data.rows.c: no such party"),
    (
        {"data.files.a": "a.csv", "data.files.b": "b.csv", "data.test_file.c": "c.csv"},
        "data.test_file.c: no such party",
    ),
    ({"data.files": {"../a": "a.csv"}}, "must be a party name"),
    ({"data.files.a": 3}, "data.files.a=3: must be a file path"),
    ({"data.files.a": "a.csv", "data.embedded": "digits"}, "data.embedded, data.files: only one"),
    ({"data.files": {"a": "a", "b": "b"}, "data.partition": "iid"}, "data.partition: splits one table"),
    ({"data.partition": "iid", "data.party_column": "p"}, "only one can split"),
    ({"data.partition.parties": 0}, "data.partition.parties=0: must be a whole number of at least 1"),
    ({"data.partition": "dirichet"}, "did you mean dirichlet?"),
    ({"data.test_fraction": 0.2, "data.test_file": "t.csv"}, "only one can give the test rows"),
    ({"data.test_fraction": 1.2}, "data.test_fraction=1.2: must be"),
    ({"data.columns.a.bounds": [3, 1]}, "data.columns.a.bounds=[3, 1]: must have low < high"),
    ({"data.columns.a.bounds": [1, 1]}, "must have low < high"),
    ({"data.columns.a.bounds": [1]}, "must be a list of two numbers"),
    ({"data.columns.a.bounds": [0, math.inf]}, "must be a finite number"),
    ({"data.columns.a": {}}, "must have either bounds"),
    ({"data.columns.a": {"bounds": [0, 1], "levels": ["x"]}}, "must have either bounds"),
    ({"data.columns.a": {"bounds": [0, 1], "missing": "mean"}}, "missing must be error, middle, low, high"),
    ({"data.columns.a": {"levels": ["x", "y"], "missing": "z"}}, "missing must be error, unknown, level, or one of"),
    ({"data.columns.a": {"levels": ["x", "x"]}}, "levels must be a list of different values"),
    ({"data.columns.a.bound": [0, 1]}, "data.columns.a.bound: unknown key; did you mean data.columns.a.bounds?"),
    ({"data.classes": ["x"]}, "at least two classes"),
    ({"data.classes": [1, "1"]}, "has a class twice"),
    ({"data.id": "y"}, "the label cannot be the identifier"),
    ({"data.use": ["a", "b"], "data.drop": ["b"]}, "data.drop=b"),
    ({"data.target_bounds": [5, 0]}, "data.target_bounds=[5, 0]"),
    ({"train.rounds": 0}, "train.rounds=0: must be a whole number of at least 1; for example train.rounds=20"),
    ({"train.rounds": "many"}, "train.rounds=many: must be a whole number"),
    ({"train.rounds": 1.5}, "train.rounds=1.5: must be a whole number"),
    ({"train.local_epochs": 1, "train.local_steps": 1}, "train.local_epochs, train.local_steps"),
    ({"train.batch_size": 1, "train.sample_rate": 0.1}, "train.batch_size, train.sample_rate"),
    ({"train.sample_rate": 1.1}, "train.sample_rate=1.1: must be"),
    ({"train.schedule": "optimal"}, "give train.weight_decay"),
    ({"train.schedule": "warm"}, "must be one of constant, optimal"),
    ({"train.optimizer": "adam", "train.momentum": 0.9}, "belongs to train.optimizer: sgd"),
    ({"train.momentum": 1}, "must be below 1"),
    ({"train.learning_rate": 1e300}, "train.learning_rate=1e+300: must be a number above 0 and at most 1e+38"),
    ({"train.weight_decay": 1e300}, "train.weight_decay=1e+300: must be a number of at least 0 and at most 1e+38"),
    ({"train.proximal_mu": 1e300}, "train.proximal_mu=1e+300: must be"),
    ({"train.seed": 2**64}, "train.seed=18446744073709551616: must be a whole number of at least 0 and at most"),
    ({"train.device": "tpu"}, "train.device=tpu: must be one of auto, cpu, cuda"),
    ({"nbafl.epsilon": 1}, "write privacy.mechanism: nbafl"),
    ({"privacy.mechanism": "nbafl", "nbafl.delta": 0.1, "nbafl.constant": 3}, "nbafl.delta, nbafl.constant"),
    ({"privacy.mechanism": "nbafl", "nbafl.noise_at_upload": False}, "privacy.trust_aggregator: true"),
    ({"model.task": "regression"}, "model.name=logistic_regression does classification"),
    ({"model.options.a": 1}, "only a factory takes options"),
    ({"model.factory": "nothing"}, "must be an import path like package.module:name"),
    ({"model.layers": [0]}, "model.layers.0=0: must be a whole number"),
    ({"output.predictFileName": "x", "output.modelFileName": "./x"}, "is the same file as output.predictFileName"),
    ({"data.files.a": "a.csv", "output.modelFileName": "./a.csv"}, "is the same file as data.files.a"),
    ({"data.test_file": "t.csv", "output.predictFileName": "t.csv"}, "is the same file as data.test_file"),
    ({"data.files.a": "a", "data.test_file.a": "t", "privacy.ledger": "t"}, "is the same file as data.test_file.a"),
    ({"output.predictFileName": ""}, "must be a file path"),
    ({"federation.parties": ["a", "a"]}, "has a name twice"),
    ({"federation.parties": ["a"], "federation.min_parties": 2}, "must be at most the 1 parties"),
    ({"data.files": {"a": "a", "b": "b"}, "federation.min_parties": 3}, "must be at most the 2 parties of data.files"),
    ({"predict.threshold": 2}, "predict.threshold=2: must be"),
    ({"privacy": 3}, "privacy=3: must be a section"),
    ({"data.columns": 3}, "data.columns=3: must be a mapping"),
]


@pytest.mark.parametrize(("overrides", "said"), BAD, ids=[said for _, said in BAD])
def test_refused_in_one_line(overrides: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


USERS: dict[str, object] = {
    "privacy.mechanism": "dp_fedavg",
    "privacy.trust_aggregator": True,
    "privacy.cohort_size": 20,
    "data.embedded": "users",
}
BAD_USERS: list[tuple[dict[str, object], str]] = [
    ({"privacy.trust_aggregator": False}, "privacy.noise_at=server: the aggregator sees updates without noise"),
    ({"privacy.noise_at": "parties"}, "write privacy.sampling: fixed or everyone"),
    ({"privacy.cohort_size": None}, "needs privacy.cohort_size or privacy.sample_rate"),
    ({"privacy.cohort_size": None, "privacy.sampling": "fixed"}, "give privacy.cohort_size"),
    ({"privacy.sample_rate": 0.1}, "privacy.cohort_size, privacy.sample_rate"),
    ({"privacy.sampling": "everyone"}, "takes no cohort_size"),
    ({"privacy.population": 10}, "must be at most privacy.population=10"),
    ({"privacy.population": 1000, "privacy.delta": 0.01}, "must be below 1 / privacy.population = 0.001"),
    ({"privacy.tolerated_dropouts": 1}, "is for privacy.noise_at: parties"),
    (
        {"privacy.noise_at": "parties", "privacy.sampling": "fixed", "privacy.tolerated_dropouts": 20},
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
    at_parties = {"privacy.noise_at": "parties", "privacy.sampling": "fixed", "privacy.trust_aggregator": False}
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
def test_adaptive_clipping_starts_from_the_clip_norm_that_is_given(keys: dict[str, object], start: float) -> None:
    trusted = {"privacy.mechanism": "dp_fedavg", "privacy.trust_aggregator": True, "privacy.cohort_size": 10}
    config = load_config(None, {**trusted, "privacy.clipping": "adaptive", **keys})
    assert keys_of(config.privacy, UserKeys).adaptive.initial_clip_norm == start
    assert config_from(parse_yaml(dump_yaml(config))) == config


def test_noise_multiplier_alone_leaves_no_target() -> None:
    privacy = load_config(None, {"privacy.noise_multiplier": 1.5}).privacy
    assert (privacy.target_epsilon, privacy.noise_multiplier) == (None, 1.5)


def test_own_mechanism_has_options_and_no_default_target() -> None:
    overrides = {"privacy.mechanism": "mine.laplace:Laplace", "privacy.options.scale": 2}
    privacy = keys_of(load_config(None, overrides).privacy, OwnPrivacy)
    assert (privacy.target_epsilon, privacy.options, privacy.built_in) == (None, {"scale": 2}, False)


def test_each_mechanism_has_the_keys_that_it_reads_and_no_others() -> None:
    kinds = {"dp_sgd": DpSgdPrivacy, "none": NoPrivacy, "nbafl": NbaflPrivacy, "mine.laplace:Laplace": OwnPrivacy}
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
    assert {note.partition(":")[0] for note in loaded.notes} == {"privacy.max_grad_norm", "privacy.cohort_size"}
    with pytest.raises(ConfigError, match=r"privacy\.noise_multiplier: is not used by"):
        load_config(None, {**given, "privacy.noise_multiplier": 1})


def test_one_table_is_split() -> None:
    config = load_config(None, {"data.files": "all.csv"})
    assert config.data.one_table == "all.csv"
    assert config.data.partition is not None
    by_column = load_config(None, {"data.files.x": "all.csv", "data.party_column": "site"})
    assert by_column.data.one_table == "all.csv"
    assert load_config(None, {"data.files.x": "x.csv"}).data.one_table is None


def test_shorthands() -> None:
    given = {"train.schedule": "cosine", "train.server_optimizer": "fedadam", "train.averaging": "ema"}
    train = load_config(None, given).train
    assert (train.schedule.kind, train.server_optimizer.name, train.averaging.kind) == ("cosine", "fedadam", "ema")
    assert train.server_optimizer.rate == 0.1


def test_optimal_schedule_equals_scikit_learn() -> None:
    # scikit-learn's SGDClassifier(learning_rate="optimal"): eta = 1 / (alpha (t0 + t)), t0 = 1 / (typw alpha) since
    # the loss derivative at -typw is below 1, typw = sqrt(1 / sqrt(alpha)); PrimiHub's homo_lr copies it.
    alpha = 1e-4
    schedule = ScheduleConfig(kind="optimal")
    typw = math.sqrt(1 / math.sqrt(alpha))
    for step in (0, 1, 99):
        expected = 1 / (alpha * (1 / (typw * alpha) + step))
        assert schedule.rate(123.0, step, 100, alpha=alpha) == pytest.approx(expected, rel=1e-12)
    assert schedule.rate(1.0, 99, 100, alpha=alpha) == pytest.approx(9.099, abs=1e-3)


def test_other_schedules() -> None:
    assert ScheduleConfig().rate(0.5, 7, 10) == 0.5
    assert ScheduleConfig(kind="inverse_sqrt").rate(1.0, 3, 10) == 0.5
    step = ScheduleConfig(kind="step", every=0.25, factor=0.5)
    assert [step.rate(1.0, s, 8) for s in range(8)] == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert ScheduleConfig(kind="cosine", floor=0.1).rate(1.0, 10, 10) == pytest.approx(0.1)


def test_shared_noise_without_a_mechanism_chooses_one_that_shares() -> None:
    assert load_config(None, {"privacy.secure_aggregation": True}).privacy.mechanism == "dp_fedsgd"
    with pytest.raises(ConfigError, match="is not used by"):
        load_config(None, {"privacy.secure_aggregation": True, "privacy.mechanism": "dp_sgd"})
