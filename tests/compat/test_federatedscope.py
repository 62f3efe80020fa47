"""FederatedScope's config in our words: every key is translated, left aside with a note, or
refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from homo_dp.compat.load import Loaded, load
from homo_dp.core.errors import ConfigError

# scripts/example_configs/femnist.yaml of FederatedScope, with the switches of its NbAFL test.
FEMNIST: dict[str, Any] = {
    "use_gpu": True,
    "device": 0,
    "early_stop": {"patience": 5},
    "seed": 12345,
    "federate": {
        "mode": "standalone",
        "total_round_num": 300,
        "sample_client_num": 4,
        "client_num": 10,
    },
    "data": {
        "root": "data/",
        "type": "femnist",
        "splits": [0.6, 0.2, 0.2],
        "subsample": 0.05,
        "transform": [["ToTensor"]],
    },
    "dataloader": {"batch_size": 16},
    "model": {"type": "convnet2", "hidden": 2048, "out_channels": 62},
    "train": {
        "local_update_steps": 2,
        "batch_or_epoch": "epoch",
        "optimizer": {"lr": 0.01, "weight_decay": 0.001},
    },
    "grad": {"grad_clip": 5.0},
    "criterion": {"type": "CrossEntropyLoss"},
    "trainer": {"type": "cvtrainer"},
    "eval": {"freq": 10, "metrics": ["acc", "correct"]},
    "nbafl": {"use": True, "mu": 0.01, "epsilon": 20.0, "constant": 30.0, "w_clip": 0.5},
}
IMAGES = {"data.files": "femnist.npz"}


def loaded(tmp_path: Path, tree: dict[str, Any], overrides: dict[str, Any] | None = None) -> Loaded:
    (tmp_path / "fs.yaml").write_text(yaml.safe_dump(tree))
    return load(tmp_path / "fs.yaml", IMAGES if overrides is None else overrides)


def changed(section: str, **values: Any) -> dict[str, Any]:
    return {**FEMNIST, section: {**FEMNIST.get(section, {}), **values}}


def test_its_own_example_is_translated(tmp_path: Path) -> None:
    found = loaded(tmp_path, FEMNIST)
    config = found.config
    assert config.privacy.mechanism == "nbafl"
    assert (
        config.nbafl.mu,
        config.nbafl.epsilon,
        config.nbafl.constant,
        config.nbafl.clip_norm,
    ) == (0.01, 20, 30, 0.5)
    assert config.nbafl.parties_per_round == 4
    assert config.data.partition is not None
    assert config.data.partition.parties == 10
    assert config.data.test_fraction == 0.2
    assert config.model.name == "cnn"
    train = config.train
    assert (train.rounds, train.local_epochs, train.local_steps, train.batch_size) == (
        300,
        2,
        None,
        16,
    )
    assert (train.learning_rate, train.weight_decay, train.seed) == (0.01, 0.001, 12345)
    assert (train.grad_clip, train.evaluate_every) == (5.0, 10)
    said = "\n".join(found.notes)
    for key in (
        "early_stop.patience",
        "data.root",
        "data.subsample",
        "data.transform",
        "trainer.type",
        "grad.grad_clip",
    ):
        assert f"{key}" in said
    assert "gives no privacy" in said


def test_its_keys_are_overrides_too(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        FEMNIST,
        IMAGES | {"federate.total_round_num": 7, "grad.grad_clip": -1, "nbafl.epsilon": 5},
    )
    assert found.config.train.rounds == 7
    assert found.config.nbafl.epsilon == 5


def test_without_nbafl_privacy_stays_on_and_a_batch_clip_is_no_privacy(tmp_path: Path) -> None:
    tree = {name: value for name, value in FEMNIST.items() if name != "nbafl"}
    found = loaded(tmp_path, tree)
    assert found.config.privacy.mechanism == "dp_sgd"
    assert found.config.train.grad_clip is None
    assert any("would train without privacy" in note for note in found.notes)
    assert any("bounds no record's part" in note for note in found.notes)
    assert any("every party takes part in every round" in note for note in found.notes)
    plain = loaded(tmp_path, {**tree, "privacy": {"mechanism": "none"}}).config
    assert plain.train.grad_clip == 5.0


def test_overrides_decide_what_keys_of_the_file_mean(tmp_path: Path) -> None:
    """Its own NbAFL script takes a file without `nbafl` and switches it on by overrides."""
    tree = {name: value for name, value in FEMNIST.items() if name != "nbafl"}
    found = loaded(
        tmp_path,
        tree,
        {**IMAGES, "nbafl.use": True, "nbafl.mu": 0.1, "federate.sample_client_num": 3},
    )
    assert found.config.privacy.mechanism == "nbafl"
    assert found.config.train.grad_clip == 5.0
    assert found.config.nbafl.parties_per_round == 3
    assert not any(
        "nbafl.use" in note or "left aside, privacy.max_grad_norm" in note for note in found.notes
    )
    assert len(set(found.notes)) == len(found.notes)


def test_data_sets_that_are_not_shipped_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.type=femnist: .* give data\.files=FILE"):
        loaded(tmp_path, FEMNIST, {})
    unset = {**changed("data", type=""), "model": {"type": "lr"}}
    found = loaded(tmp_path, unset, {})
    assert found.config.data.embedded is None or found.config.data.embedded == "breast_cancer"
    assert any("trains on the bundled breast-cancer table" in note for note in found.notes)


def test_a_rate_without_a_number_of_clients_is_said(tmp_path: Path) -> None:
    found = loaded(
        tmp_path, {**FEMNIST, "federate": {"total_round_num": 3, "sample_client_rate": 0.2}}
    )
    assert found.config.nbafl.parties_per_round is None
    assert any("federate.sample_client_rate=0.2" in note for note in found.notes)


@pytest.mark.parametrize(
    ("section", "values", "ours"),
    [
        ("train", {"batch_or_epoch": "batch"}, {"train.local_steps": 2}),
        ("train", {"optimizer": {"type": "Adam", "lr": 0.1}}, {"train.optimizer": "adam"}),
        ("train", {"scheduler": {"type": "CosineAnnealingLR"}}, {"train.schedule.kind": "cosine"}),
        (
            "fedopt",
            {"use": True, "optimizer": {"lr": 0.5}},
            {"train.server_optimizer.name": "fedavgm"},
        ),
        (
            "data",
            {"splitter": "lda", "splitter_args": [{"alpha": 0.3}]},
            {"data.partition.alpha": 0.3},
        ),
        ("model", {"type": "mlp", "hidden": 64, "layer": 3}, {"model.layers": (64, 64)}),
        ("federate", {"data_weighted_aggr": True}, {"train.weighting": "rows"}),
        (
            "federate",
            {"sample_client_num": -1, "sample_client_rate": 0.5},
            {"nbafl.parties_per_round": 5},
        ),
        ("federate", {"sample_client_num": 10}, {"nbafl.parties_per_round": None}),
    ],
)
def test_translated(
    tmp_path: Path, section: str, values: dict[str, Any], ours: dict[str, Any]
) -> None:
    config: Any = loaded(tmp_path, changed(section, **values)).config
    for key, value in ours.items():
        found = config
        for name in key.split("."):
            found = getattr(found, name)
        assert found == value


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("asyn", {"use": True}, "synchronous"),
        ("vertical", {"use": True}, "columns are not split"),
        ("sgdmf", {"use": True}, "matrix factorisation"),
        ("attack", {"attack_method": "gan_attack"}, r"homo_dp\.audit"),
        ("personalization", {"local_param": ["bn"]}, "every tensor is shared"),
        ("model", {"type": "gcn"}, r"model\.type=gcn: has no counterpart"),
        ("federate", {"method": "Ditto"}, r"federate\.method=Ditto"),
        ("train", {"optimizer": {"type": "LBFGS"}}, "ours are SGD and Adam"),
        ("fedswa", {"use": True, "freq": 10}, "fedswa is not built here"),
        ("criterion", {"type": "ContrastiveLoss"}, "follows from the task"),
    ],
)
def test_refused_with_the_reason(
    tmp_path: Path, section: str, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        loaded(tmp_path, changed(section, **values))


def test_a_batch_clip_is_refused_where_records_are_clipped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bounds no record's part"):
        load(None, {"train.grad_clip": 1.0})


# --- what a config leaves open, and overrides over a file

TOY: dict[str, Any] = {
    "federate": {"client_num": 10},
    "data": {"type": "toy"},
    "nbafl": {"use": True},
}


def toy(tmp_path: Path, overrides: dict[str, Any] | None = None, **sections: Any) -> Loaded:
    tree = {**TOY, **sections}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(tree))
    return load(tmp_path / "toy.yaml", overrides or {})


def test_what_is_left_open_has_federatedscopes_defaults(tmp_path: Path) -> None:
    """Its defaults are those of federatedscope/core/configs (cfg_fl_setting, cfg_training,
    cfg_data, cfg_differential_privacy).
    """
    found = toy(tmp_path)
    config, nbafl = found.config, found.config.nbafl
    assert (nbafl.epsilon, nbafl.constant, nbafl.clip_norm, nbafl.mu) == (100, 30, 1, 0)
    train = config.train
    assert (train.rounds, train.batch_size, train.learning_rate) == (50, 64, 0.1)
    assert (train.local_steps, train.local_epochs, train.weighting) == (1, None, "rows")
    assert (config.data.test_fraction, config.model.name) == (0.1, "logistic_regression")
    listed = next(note for note in found.notes if note.startswith("left open"))
    for name in (
        "federate.total_round_num=50",
        "dataloader.batch_size=64",
        "train.local_update_steps=1",
        "train.optimizer.lr=0.1",
        "nbafl.epsilon=100",
        "nbafl.constant=30",
        "nbafl.w_clip=1",
        "nbafl.mu=0",
    ):
        assert name in listed


def test_what_overrides_or_other_files_set_is_not_listed_as_left_open(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("train: {sample_rate: 0.1}\n")
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(TOY))
    overrides = {"nbafl.delta": 1e-3, "train.optimizer.lr": 0.5, "train.batch_or_epoch": "epoch"}
    found = load([tmp_path / "toy.yaml", tmp_path / "ours.yaml"], overrides)
    train = found.config.train
    assert (train.sample_rate, train.batch_size, train.learning_rate) == (0.1, None, 0.5)
    assert (train.local_epochs, train.local_steps) == (1, None)
    assert (found.config.nbafl.delta, found.config.nbafl.constant) == (1e-3, None)
    listed = next(note for note in found.notes if note.startswith("left open"))
    for name in ("batch_size", "optimizer.lr", "nbafl.constant"):
        assert name not in listed


@pytest.mark.parametrize(
    ("federate", "overrides", "drawn"),
    [
        ({"sample_client_num": 5}, {"federate.sample_client_rate": 1.0}, None),
        ({"sample_client_num": 5}, {"federate.sample_client_num": -1}, None),
        ({"sample_client_num": 5}, {"federate.sample_client_num": 10}, None),
        ({"sample_client_num": 5}, {"federate.sample_client_rate": 0.25}, 2),
        ({"sample_client_rate": 0.2}, {"federate.client_num": 20}, 4),
        ({}, {"federate.sample_client_num": 5}, 5),
        ({"sample_client_num": 10}, {"federate.client_num": 5}, None),
        ({"sample_client_num": 3, "sample_client_rate": 0.5}, {}, 5),
    ],
)
def test_an_override_is_put_over_the_file_before_either_is_read(
    tmp_path: Path, federate: dict[str, Any], overrides: dict[str, Any], drawn: int | None
) -> None:
    found = toy(tmp_path, overrides, federate={"client_num": 10, **federate})
    assert found.config.nbafl.parties_per_round == drawn


def test_a_number_that_the_rate_of_the_file_replaces_gets_a_note(tmp_path: Path) -> None:
    federate = {"client_num": 10, "sample_client_rate": 0.5}
    (note,) = (
        note
        for note in toy(tmp_path, {"federate.sample_client_num": 8}, federate=federate).notes
        if "sample_client_num" in note
    )
    assert "sample_client_rate=0.5 comes before it" in note
    assert "5 of 10 parties take part; for the number set federate.sample_client_rate=-1" in note
    more = {"federate.sample_client_num": 8, "federate.sample_client_rate": -1}
    found = toy(tmp_path, more, federate=federate)
    assert found.config.nbafl.parties_per_round == 8
    assert not any("sample_client" in note for note in found.notes)


@pytest.mark.parametrize(
    ("sections", "overrides", "ours"),
    [
        ({}, {"nbafl.use": False}, {"privacy.mechanism": "dp_sgd"}),
        ({"asyn": {"use": True}}, {"asyn.use": False}, {"privacy.mechanism": "nbafl"}),
        ({"grad": {"grad_clip": 5.0}}, {"grad.grad_clip": -1}, {"train.grad_clip": None}),
        (
            {"fedopt": {"use": True, "optimizer": {"type": "Adam"}}},
            {"fedopt.use": False},
            {"train.server_optimizer.name": "fedavg"},
        ),
        ({"data": {"type": "toy", "batch_size": 10}}, {}, {"train.batch_size": 10}),
        (
            {"data": {"type": "toy", "batch_size": 64}, "dataloader": {"batch_size": 16}},
            {},
            {"train.batch_size": 16},
        ),
    ],
)
def test_an_override_switches_off_what_the_file_switches_on(
    tmp_path: Path, sections: dict[str, Any], overrides: dict[str, Any], ours: dict[str, Any]
) -> None:
    config: Any = toy(tmp_path, overrides, **sections).config
    for key, value in ours.items():
        found = config
        for name in key.split("."):
            found = getattr(found, name)
        assert found == value


def test_a_table_of_ones_own_is_split_over_all_clients_of_the_file(tmp_path: Path) -> None:
    overrides = {"data.files": "mine.csv", "federate.sample_client_num": 5}
    found = toy(tmp_path, {**overrides, "data.columns.x.bounds": [0, 1]}).config
    assert found.data.partition is not None
    assert found.data.partition.parties == 10
    assert (found.data.embedded, found.nbafl.parties_per_round) == (None, 5)


def test_a_party_column_or_a_file_for_each_party_says_how_many_there_are(tmp_path: Path) -> None:
    column = {"data.files": "mine.csv", "data.party_column": "hospital"}
    described = {"data.columns.x.bounds": [0, 1]}
    for overrides, sections in (
        (column, {}),
        ({}, {"data": {"files": "mine.csv", "party_column": "hospital"}}),
    ):
        found = toy(tmp_path, {**described, **overrides}, **sections)
        assert (found.config.data.partition, found.config.data.party_column) == (None, "hospital")
    assert any("data.party_column names the party" in note for note in found.notes)
    files = {"data.files": {"a": "a.csv", "b": "b.csv"}, "federate.sample_client_rate": 0.5}
    found = toy(tmp_path, {**described, **files})
    assert (found.config.data.partition, found.config.nbafl.parties_per_round) == (None, 1)
    assert any("data.files names 2 parties" in note for note in found.notes)


def test_fedopt_is_torchs_sgd_without_momentum_or_adam(tmp_path: Path) -> None:
    federate = {"client_num": 10, "method": "FedOpt"}
    server = toy(tmp_path, federate=federate).config.train.server_optimizer
    assert (server.name, server.momentum, server.rate) == ("fedavgm", 0, 0.01)
    adam = {"optimizer": {"type": "Adam", "lr": 0.5}}
    server = toy(tmp_path, federate=federate, fedopt=adam).config.train.server_optimizer
    assert (server.name, server.rate, server.beta2) == ("fedadam", 0.5, 0.999)


def test_a_proximal_strength_counts_only_where_it_is_switched_on(tmp_path: Path) -> None:
    plain = {"nbafl": {}, "privacy": {"mechanism": "none"}}
    off = toy(tmp_path, fedprox={"mu": 0.3}, **plain)
    assert off.config.train.proximal_mu == 0
    assert any("fedprox.mu: is not used" in note for note in off.notes)
    on = toy(tmp_path, fedprox={"use": True, "mu": 0.3}, **plain)
    assert on.config.train.proximal_mu == 0.3


def test_numbers_are_fitted_where_the_criterion_is_of_numbers(tmp_path: Path) -> None:
    found = toy(
        tmp_path,
        {"data.target_bounds": [0, 1]},
        criterion={"type": "MSELoss"},
        model={"type": "mlp"},
    ).config
    assert (found.model.name, found.model.task, found.model.layers) == ("mlp", "regression", (256,))
    assert found.model.activation == "relu"
    linear = toy(tmp_path, {"data.target_bounds": [0, 1]}, criterion={"type": "MSELoss"}).config
    assert linear.model.name == "linear_regression"


def test_what_is_refused_says_how_an_override_switches_it_off(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"asyn\.use=True: .* set asyn\.use=false"):
        toy(tmp_path, asyn={"use": True})
    with pytest.raises(ConfigError, match=r"^overrides: asyn\.use=True"):
        toy(tmp_path, {"asyn.use": True})
