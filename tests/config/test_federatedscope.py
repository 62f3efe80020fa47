"""FederatedScope's config in our words: every key is translated, left aside with a note, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from homo_dp.config.load import Loaded, load
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
