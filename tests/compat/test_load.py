"""Files and overrides in anybody's words become one configuration."""

from pathlib import Path
from typing import Any

import pytest

from homo_dp.compat.load import load
from homo_dp.config.load import flatten
from homo_dp.core.errors import ConfigError


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "overrides", "key", "value"),
    [
        ("nbafl: {delta: 0.1, use: true}", {"nbafl.constant": 5}, "nbafl.delta", None),
        ("nbafl: {clip_norm: 1, use: true}", {"nbafl.w_clip": 5}, "nbafl.clip_norm", 5.0),
        ("nbafl: {num_rounds: 7, use: true}", {}, "train.rounds", 7),
        ("train: {rounds: 7}", {"nbafl.num_rounds": 9, "nbafl.use": True}, "train.rounds", 9),
    ],
)  # fmt: skip
def test_command_line_wins(
    tmp_path: Path, text: str, overrides: dict[str, Any], key: str, value: Any
) -> None:
    assert flatten(load(_file(tmp_path, text), overrides).config).get(key) == value


def test_alias_beside_its_key_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nbafl.w_clip=2: is another name of nbafl.clip_norm=1"):
        load(_file(tmp_path, "nbafl: {clip_norm: 1, w_clip: 2, use: true}"))


def test_the_source_of_a_configuration_is_named(tmp_path: Path) -> None:
    path = _file(tmp_path, "train: {seed: 3}\n")
    assert load(path).source == f"config: {path}"
    assert load(None, {"train.seed": 3}).source == "no config: the built-in example"
    assert load(None, {"data.files.a": "a.csv"}).source == "no config"


def test_federatedscopes_switch_turned_off_contradicts_nbafl() -> None:
    with pytest.raises(ConfigError, match=r"nbafl\.use=false: privacy\.mechanism is nbafl"):
        load(None, {"privacy.mechanism": "nbafl", "nbafl.use": False})
    assert load(None, {"nbafl.use": False}).config.privacy.mechanism == "dp_sgd"
