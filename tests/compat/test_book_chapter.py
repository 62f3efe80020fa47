"""The conf.json of the DP-FedAvg chapter, and Flower's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from homo_dp.compat.load import Loaded, load
from homo_dp.config.data import ONE_TABLE
from homo_dp.config.privacy import UserKeys, keys_of
from homo_dp.core.errors import ConfigError
from homo_dp.flower_dp import calculate_c, calculate_sigma_d, calculate_sigma_u

CONF = {
    "model_name": "resnet18",
    "no_models": 20,
    "type": "cifar",
    "global_epochs": 4,
    "local_epochs": 3,
    "k": 8,
    "batch_size": 32,
    "lr": 0.05,
    "momentum": 0.0001,
    "lambda": 0.1,
    "dp": True,
    "C": 2.0,
    "sigma": 0.3,
    "q": 0.1,
    "W": 1,
}


def loaded(tmp_path: Path, **changes: Any) -> Loaded:
    return overridden(tmp_path, {}, **changes)


def overridden(tmp_path: Path, overrides: dict[str, Any], **changes: Any) -> Loaded:
    tree = {name: value for name, value in (CONF | changes).items() if value is not ...}
    (tmp_path / "conf.json").write_text(json.dumps(tree))
    return load(tmp_path / "conf.json", overrides)


def test_every_key_is_mapped_or_answered(tmp_path: Path) -> None:
    found = loaded(tmp_path)
    config, privacy = found.config, keys_of(found.config.privacy, UserKeys)
    assert (config.train.rounds, config.train.local_epochs, config.train.batch_size) == (4, 3, 32)
    assert (config.train.learning_rate, config.train.momentum) == (0.05, 0.0001)
    # lambda times the sum of k is 0.8 times the mean
    assert config.train.server_optimizer.rate == pytest.approx(0.8)
    assert (privacy.population, privacy.cohort_size, privacy.clip_norm) == (20, 8, 2.0)
    assert config.privacy.mechanism == "dp_fedavg"
    # one client moves lambda * sum by lambda * C = 0.2, and 0.3 is added to it
    assert config.privacy.noise_multiplier == pytest.approx(1.5)
    said = "\n".join(found.notes)
    for key in ("model_name", "type", "lambda", "sigma", "q", "W", "dp"):
        assert f"{key}" in said
    assert "privacy.noise_multiplier=1.5 = sigma / (lambda C)" in said


def test_notes_speak_of_the_bundled_data_and_model_only_where_they_are_used(tmp_path: Path) -> None:
    found = loaded(tmp_path)
    assert (found.config.data.embedded, found.config.model.name) == ("digits", "cnn")
    assert any("bundled digits" in note for note in found.notes)
    overrides = {"data.files": "mine.csv", "data.columns.x.bounds": [0, 1], "model.name": "mlp"}
    found = overridden(tmp_path, overrides)
    config = found.config
    assert (config.data.embedded, config.data.files) == (None, {ONE_TABLE: "mine.csv"})
    assert config.model.name == "mlp"
    assert config.data.partition is not None
    assert config.data.partition.parties == 20  # no_models, for the table of one's own too
    assert not any("digits" in note or "model_name" in note for note in found.notes)


def test_several_files_or_a_party_column_are_not_split_over_no_models(tmp_path: Path) -> None:
    files = {f"data.files.c{number}": f"{number}.csv" for number in range(3)}
    column = {"data.files": "mine.csv", "data.party_column": "clinic"}
    for overrides in (files, column):
        found = overridden(tmp_path, {**overrides, "data.columns.x.bounds": [0, 1]})
        assert found.config.data.partition is None


def test_what_is_left_open_is_that_of_the_chapters_own_file(tmp_path: Path) -> None:
    open_keys = dict.fromkeys(["local_epochs", "batch_size", "lr", "momentum", "lambda"], ...)
    found = loaded(tmp_path, **open_keys)
    train = found.config.train
    assert (train.local_epochs, train.batch_size) == (3, 32)
    assert (train.learning_rate, train.momentum) == (0.01, 0.0001)
    listed = next(note for note in found.notes if note.startswith("left open"))
    assert "local_epochs=3, batch_size=32, lr=0.01, momentum=0.0001" in listed


def test_clients_clip_after_every_batch_as_in_the_chapter(tmp_path: Path) -> None:
    assert keys_of(loaded(tmp_path).config.privacy, UserKeys).clip_each_step


def test_privacy_is_not_left_off_where_dp_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"conf\.json: dp=None: must be true .* or false"):
        loaded(tmp_path, dp=...)
    plain = overridden(tmp_path, {"privacy.mechanism": "none"}, dp=...)
    assert plain.config.privacy.mechanism == "none"


def test_without_dp_it_is_not_private_and_says_so(tmp_path: Path) -> None:
    found = loaded(tmp_path, dp=False)
    assert found.config.privacy.mechanism == "none"
    assert any("NOT PRIVATE" in note for note in found.notes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sigma": 0}, "sigma=0: must be"),
        ({"k": 30}, "k=30: must be at most"),
        ({"C": "x"}, "C=x: must be a number"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loaded(tmp_path, **changes)


def test_noise_that_hides_nothing_is_said(tmp_path: Path) -> None:
    assert any("hardly anything is hidden" in note for note in loaded(tmp_path, sigma=0.001).notes)


def test_the_words_of_flower(tmp_path: Path) -> None:
    words = {
        "num_rounds": 3,
        "num_sampled_clients": 50,
        "clipping_norm": 0.5,
        "server_side_noising": True,
    }
    config = load("conf/dp_fedavg.yaml", words | {"noise_multiplier": 1.0}).config
    privacy = keys_of(config.privacy, UserKeys)
    assert (config.train.rounds, privacy.cohort_size, privacy.clip_norm, privacy.noise_at) == (
        3,
        50,
        0.5,
        "server",
    )
    assert config.privacy.noise_multiplier == 1.0
    adaptive = {
        "clip_norm_target_quantile": 0.6,
        "clip_norm_lr": 0.3,
        "clip_count_stddev": 7,
        "init_clip_norm": 0.2,
    }
    found = keys_of(
        load("conf/dp_fedavg_adaptive.yaml", adaptive).config.privacy, UserKeys
    ).adaptive
    assert (
        found.target_quantile,
        found.learning_rate,
        found.bit_noise,
        found.initial_clip_norm,
    ) == (0.6, 0.3, 7, 0.2)


def test_noise_at_the_server_needs_trust_in_words_of_ours() -> None:
    words = {"privacy.trust_aggregator": False, "server_side_noising": True}
    with pytest.raises(ConfigError, match="trust_aggregator: true if you trust it"):
        load("conf/dp_fedavg.yaml", words)


def test_the_words_of_flower_dp() -> None:
    config = load(
        "conf/nbafl.yaml", {"clients_per_round": 4, "min_available_clients": 4, "num_rounds": 20}
    ).config
    assert (config.nbafl.parties_per_round, config.federation.min_parties, config.train.rounds) == (
        4,
        4,
        20,
    )


def test_its_functions_have_its_own_values() -> None:
    assert calculate_c(2 / 1e5) == 4.699557816587533  # flower-dp's doctests
    assert calculate_sigma_d(0.8, 1 / 1e5, 1.5, 2, 3, 2, 1e4) == 0.0009084009867385104
    assert calculate_sigma_u(0.8, 1e-5, 1.5, 2, 1e4) == pytest.approx(
        2 * calculate_c(1e-5) * 1.5 * 2 / (1e4 * 0.8)
    )
