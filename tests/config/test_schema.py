"""Every rule of the schema: defaults, ranges, and keys that exclude or need each other."""

import math

import pytest
from pydantic import ValidationError

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError


def test_defaults_are_private_and_embedded() -> None:
    config = Config()
    assert config.private
    assert config.privacy.mechanism == "dp_sgd"
    assert config.privacy.target_epsilon == 4.0
    assert config.delta == 1e-5
    assert config.privacy.secure_mode
    assert config.data.dataset == "breast_cancer"
    assert config.data.partition is not None
    assert config.data.partition.parties == 3
    assert config.output.predictFileName == "out/predict.csv"


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        Config().train.rounds = 3


BAD: list[tuple[dict[str, object], str]] = [
    (
        {"privacy.delta": 2},
        "privacy.delta=2: must be a number above 0 and below 1; see docs/config.md",
    ),
    ({"privacy.delta": 0}, "privacy.delta=0: must be"),
    ({"privacy.delta": math.nan}, "privacy.delta=NaN: must be"),
    ({"privacy.target_epsilon": 0}, "privacy.target_epsilon=0: must be a number above 0"),
    ({"privacy.target_epsilon": -1}, "privacy.target_epsilon=-1: must be a number above 0"),
    (
        {"privacy.target_epsilon": math.inf},
        "privacy.target_epsilon=Infinity: must be a finite number above 0",
    ),
    (
        {"privacy.target_epsilon": True},
        "privacy.target_epsilon=true: must be a finite number above 0",
    ),
    ({"privacy.target_epsilon": None}, "DP needs noise"),
    ({"privacy.noise_multiplier": 0}, "privacy.noise_multiplier=0: must be a number above 0"),
    ({"privacy.target_epsilon": 1, "privacy.noise_multiplier": 1}, "one follows from the other"),
    ({"privacy.mechanism": None}, "write the word none"),
    ({"privacy.mechanism": False}, "write the word none"),
    ({"privacy.mechanism": ""}, "must be one of dp_sgd"),
    ({"privacy.mechanism": "dpsdg"}, "must be one of dp_sgd"),
    (
        {"privacy.mechanism": "none", "privacy.target_epsilon": 3},
        "privacy.target_epsilon: is not used by",
    ),
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
    (
        {"data.rows.a": 100, "data.files.a": "a.csv", "privacy.delta": 0.01},
        "must be below 1 / data.rows.a = 0.01",
    ),
    (
        {"data.files.a": "a.csv", "data.files.b": "b.csv", "data.rows.c": 9},
        "data.rows.c: no such party",
    ),
    (
        {"data.files.a": "a.csv", "data.files.b": "b.csv", "data.test_file.c": "c.csv"},
        "data.test_file.c: no such party",
    ),
    ({"data.files": {"../a": "a.csv"}}, "must be a party name"),
    ({"data.files.a": 3}, "data.files.a=3: must be a file path"),
    ({"data.files.a": "a.csv", "data.embedded": "digits"}, "data.embedded, data.files: only one"),
    (
        {"data.files": {"a": "a", "b": "b"}, "data.partition": "iid"},
        "data.partition: splits one table",
    ),
    ({"data.partition": "iid", "data.party_column": "p"}, "only one can split"),
    (
        {"data.partition.parties": 0},
        "data.partition.parties=0: must be a whole number of at least 1",
    ),
    ({"data.partition": "dirichet"}, "did you mean dirichlet?"),
    ({"data.test_fraction": 0.2, "data.test_file": "t.csv"}, "only one can give the test rows"),
    ({"data.test_fraction": 1.2}, "data.test_fraction=1.2: must be"),
    ({"data.columns.a.bounds": [3, 1]}, "data.columns.a.bounds=[3, 1]: must have low < high"),
    ({"data.columns.a.bounds": [1, 1]}, "must have low < high"),
    ({"data.columns.a.bounds": [1]}, "must be a list of two numbers"),
    ({"data.columns.a.bounds": [0, math.inf]}, "must be a finite number"),
    ({"data.columns.a": {}}, "must have either bounds"),
    ({"data.columns.a": {"bounds": [0, 1], "levels": ["x"]}}, "must have either bounds"),
    (
        {"data.columns.a": {"bounds": [0, 1], "missing": "mean"}},
        "missing must be error, middle, low, high",
    ),
    (
        {"data.columns.a": {"levels": ["x", "y"], "missing": "z"}},
        "missing must be error, unknown, level, or one of",
    ),
    ({"data.columns.a": {"levels": ["x", "x"]}}, "levels must be a list of different values"),
    (
        {"data.columns.a.bound": [0, 1]},
        "data.columns.a.bound: unknown key; did you mean data.columns.a.bounds?",
    ),
    ({"data.classes": ["x"]}, "at least two classes"),
    ({"data.classes": [1, "1"]}, "has a class twice"),
    ({"data.id": "y"}, "the label cannot be the identifier"),
    ({"data.use": ["a", "b"], "data.drop": ["b"]}, "data.drop=b"),
    ({"data.target_bounds": [5, 0]}, "data.target_bounds=[5, 0]"),
    (
        {"train.rounds": 0},
        "train.rounds=0: must be a whole number of at least 1; for example train.rounds=20",
    ),
    ({"train.rounds": "many"}, "train.rounds=many: must be a whole number"),
    ({"train.rounds": 1.5}, "train.rounds=1.5: must be a whole number"),
    ({"train.local_epochs": 1, "train.local_steps": 1}, "train.local_epochs, train.local_steps"),
    ({"train.batch_size": 1, "train.sample_rate": 0.1}, "train.batch_size, train.sample_rate"),
    ({"train.sample_rate": 1.1}, "train.sample_rate=1.1: must be"),
    ({"train.schedule": "optimal"}, "give train.weight_decay"),
    ({"train.schedule": "warm"}, "must be one of constant, optimal"),
    ({"train.optimizer": "adam", "train.momentum": 0.9}, "belongs to train.optimizer: sgd"),
    ({"train.momentum": 1}, "must be below 1"),
    (
        {"train.learning_rate": 1e300},
        "train.learning_rate=1e+300: must be a number above 0 and at most 1e+38",
    ),
    (
        {"train.weight_decay": 1e300},
        "train.weight_decay=1e+300: must be a number of at least 0 and at most 1e+38",
    ),
    ({"train.proximal_mu": 1e300}, "train.proximal_mu=1e+300: must be"),
    (
        {"train.seed": 2**64},
        "train.seed=18446744073709551616: must be a whole number of at least 0 and at most",
    ),
    ({"train.device": "tpu"}, "train.device=tpu: must be one of auto, cpu, cuda"),
    ({"nbafl.epsilon": 1}, "write privacy.mechanism: nbafl"),
    (
        {"privacy.mechanism": "nbafl", "nbafl.delta": 0.1, "nbafl.constant": 3},
        "nbafl.delta, nbafl.constant",
    ),
    (
        {"privacy.mechanism": "nbafl", "nbafl.noise_at_upload": False},
        "privacy.trust_aggregator: true",
    ),
    ({"model.task": "regression"}, "model.name=logistic_regression does classification"),
    ({"model.options.a": 1}, "only a factory takes options"),
    ({"model.factory": "nothing"}, "must be an import path like package.module:name"),
    ({"model.layers": [0]}, "model.layers.0=0: must be a whole number"),
    (
        {"output.predictFileName": "x", "output.modelFileName": "./x"},
        "is the same file as output.predictFileName",
    ),
    (
        {"data.files.a": "a.csv", "output.modelFileName": "./a.csv"},
        "is the same file as data.files.a",
    ),
    (
        {"data.test_file": "t.csv", "output.predictFileName": "t.csv"},
        "is the same file as data.test_file",
    ),
    (
        {"data.files.a": "a", "data.test_file.a": "t", "privacy.ledger": "t"},
        "is the same file as data.test_file.a",
    ),
    ({"output.predictFileName": ""}, "must be a file path"),
    ({"federation.parties": ["a", "a"]}, "has a name twice"),
    ({"federation.parties": ["a"], "federation.min_parties": 2}, "must be at most the 1 parties"),
    (
        {"data.files": {"a": "a", "b": "b"}, "federation.min_parties": 3},
        "must be at most the 2 parties of data.files",
    ),
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
