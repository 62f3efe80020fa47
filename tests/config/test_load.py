"""Layers, aliases, dumps: what wins over what, and that a dump reads back as the same
configuration.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from homo_dp.config.load import dump_yaml, flatten, load_config
from homo_dp.core.errors import ConfigError

RECIPE = Path(__file__).parents[2] / "conf" / "homo_lr_dpsgd.yaml"
CONFIGS: list[dict[str, Any]] = [
    {},
    {"privacy.noise_multiplier": 2.0},
    {"privacy.mechanism": "none"},
    {"privacy.mechanism": "mine.own:Thing", "privacy.options": {"a": [1, {"b": None}]}},
    {"privacy.mechanism": "nbafl", "nbafl.constant": 3.0, "nbafl.clip_norm": 2.0},
    {
        "privacy.mechanism": "dp_fedavg",
        "privacy.noise_at": "parties",
        "privacy.sampling": "everyone",
    },
    {
        "data.files": "all.csv",
        "data.classes": ["no", "yes", "1e5", "null", "0o7", "12:30"],
        "train.local_steps": 3,
    },
    {
        "data.files.a": "x.csv",
        "data.test_file.a": "t.csv",
        "data.columns.a": {"levels": [1, 2.5, True, "x: #y"]},
    },
    {
        "data.columns.'mean radius'.bounds": [0, 30],
        "data.image.shape": [1, 8, 8],
        "transport.nats.tls.ca_file": "ca",
    },
    {
        "federation.parties": {"a": "ed25519 abc", "b": None},
        "party.caps.releases": ["update"],
        "train.schedule": "step",
    },
]


@pytest.mark.parametrize("overrides", CONFIGS)
def test_dump_reads_back(tmp_path: Path, overrides: dict[str, Any]) -> None:
    config = load_config(None, overrides)
    path = tmp_path / "resolved.yaml"
    path.write_text(dump_yaml(config), encoding="utf-8")
    assert load_config(path) == config
    # and a plain YAML 1.1 reader sees the same values
    assert yaml.safe_load(path.read_text(encoding="utf-8")) == config.model_dump(mode="json")


@pytest.mark.parametrize("overrides", CONFIGS)
def test_flatten_holds_scalars(overrides: dict[str, Any]) -> None:
    flat = flatten(load_config(None, overrides))
    assert all(
        value is None or isinstance(value, str | int | float | bool) for value in flat.values()
    )
    assert flat["privacy.mechanism"] == load_config(None, overrides).privacy.mechanism


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "overrides", "key", "value"),
    [
        ("privacy: {target_epsilon: 2}", {"privacy.noise_multiplier": 1}, "privacy.target_epsilon", None),
        ("privacy: {noise_multiplier: 2}", {"privacy.target_epsilon": 1}, "privacy.noise_multiplier", None),
        ("train: {local_epochs: 2}", {"train.local_steps": 5}, "train.local_epochs", None),
        ("train: {sample_rate: 0.1}", {"train.batch_size": 5}, "train.sample_rate", None),
        ("data: {test_fraction: 0.3}", {"data.test_file": "t.csv"}, "data.test_fraction", None),
        ("data: {embedded: digits, partition: iid}", {"data.files": {"a": "a", "b": "b"}}, "data.partition", None),
        ("data: {party_column: hospital}", {"data.files": "all.csv"}, "data.party_column", "hospital"),
        ("data: {files: a.csv, party_column: p}", {"data.files": "b.csv"}, "data.party_column", None),
        ("privacy: {target_epsilon: 2}", {"privacy.mechanism": "none"}, "privacy.target_epsilon", None),
        ("privacy: {target_epsilon: 2}", {"privacy.mechanism": "dpsgd"}, "privacy.target_epsilon", 2.0),
        ("privacy: {mechanism: nbafl}\nnbafl: {delta: 0.1}", {"nbafl.constant": 5}, "nbafl.delta", None),
        ("privacy: {mechanism: nbafl}\nnbafl: {mu: 3}", {"privacy.mechanism": "dp_sgd"}, "nbafl.mu", 0.01),
        ("train: {averaging: ema}", {"train.averaging.decay": 0.5}, "train.averaging.kind", "ema"),
        ("train: {averaging: {kind: ema, decay: 0.5}}", {"train.averaging": "tail"}, "train.averaging.decay", 0.9),
        ("predictFileName: p.csv", {}, "output.predictFileName", "p.csv"),
        ("data: {columns: {a: {levels: [x]}}}", {"data.columns.b.bounds": [0, 2]}, "data.columns.a.missing", "level"),
    ],
)  # fmt: skip
def test_command_line_wins(
    tmp_path: Path, text: str, overrides: dict[str, Any], key: str, value: Any
) -> None:
    assert flatten(load_config(_file(tmp_path, text), overrides)).get(key) == value


def test_a_draft_over_a_recipe_says_how_the_table_of_the_command_line_is_split(
    tmp_path: Path,
) -> None:
    draft = _file(tmp_path, "data: {party_column: hospital, split_column: fold}")
    data = load_config([RECIPE, draft], {"data.files": "all.csv"}).data
    assert (data.party_column, data.split_column, data.partition) == ("hospital", "fold", None)


def test_both_in_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one follows from the other"):
        load_config(_file(tmp_path, "privacy: {target_epsilon: 2, noise_multiplier: 1}"))


def test_the_last_override_wins() -> None:
    pairs = [
        ("predictFileName", "a"),
        ("output.predictFileName", "b"),
        ("train.rounds", 3),
        ("train.rounds", 4),
    ]
    config = load_config(None, pairs)
    assert (config.output.predictFileName, config.train.rounds) == ("b", 4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"train: {rounds: 3", "is not valid YAML"),
        (b"train: {rounds: 3, rounds: 4}", "key rounds is given twice"),
        (b"a: !!python/object:os.system x", "is not valid YAML"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"- a\n- b\n", "must hold sections"),
        (b"just words", "must hold sections"),
        (b"trian: {rounds: 3}", "trian: unknown key; did you mean train?"),
        (
            b"privacy: {epsilon: 3}",
            "privacy.epsilon: unknown key; did you mean privacy.target_epsilon?",
        ),
        (
            b"privacy: {learning_rate: 3}",
            "privacy.learning_rate: unknown key; did you mean train.learning_rate?",
        ),
        (b"privacy: {lr: 3}", "privacy.lr: unknown key; did you mean train.learning_rate?"),
        (b"epsilon: 3", "epsilon: unknown key; did you mean privacy.target_epsilon?"),
        (b"predictFilename: 3", "predictFilename: unknown key; did you mean predictFileName?"),
        (b"nbafl: {zz: 3}", "nbafl.zz: unknown key; the keys of nbafl are "),
        (b"zzz: 3", "zzz: unknown key; the sections are "),
        (
            b"data: {columns: {a: {bounds: [0, 1]}, b: {bound: [0, 1]}}}",
            "did you mean data.columns.b.bounds?",
        ),
        (b"data: {test_file: {a: 3}}", "data.test_file.a=3: must be a file path"),
        (b"privacy: {delta: '1e-5'}", 'privacy.delta="1e-5": must be a number'),
        (b"privacy: {target_epsilon: -1}", "for example privacy.target_epsilon=4.0"),
        (b"data: {image: {shape: [8, 8]}}", "must be [channels, height, width]"),
        (
            b"train: {rounds: 0, seed: -1}\npredict: {threshold: 3}",
            "train.rounds=0: must be a whole number",
        ),
        (b"? [a, b]\n: 3\n", "is not valid YAML"),
        (b"1: 2", "1: unknown key"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a directory"):
        load_config(tmp_path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}\n", "---\n", "null\n"])
def test_a_file_without_settings_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="holds no settings; write sections such as"):
        load_config(_file(tmp_path, text))


def test_a_list_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must hold sections"):
        load_config(_file(tmp_path, "- a\n- b\n"))
