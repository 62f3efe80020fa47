"""The user's own model: what it may be, and one line for everything that it may not be."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from homo_dp.config.model import ModelConfig
from homo_dp.core.errors import ConfigError
from homo_dp.models.factory import load_function, validate_private
from homo_dp.models.registry import BuiltModel, build_model


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def built(function: str, **settings: Any) -> BuiltModel:
    return build_model(
        ModelConfig(factory=f"factories:{function}", **settings), (3,), [0, 1], seed=1
    )


def test_a_factory_gets_what_it_asks_for_and_its_weights_come_from_the_seed() -> None:
    model = built("plain", options={"width": 6})
    again = built("plain", options={"width": 6})
    assert model.module.get_parameter("1.weight").shape == (6, 3)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.module.parameters(), again.module.parameters(), strict=True)
    )
    assert model.architecture.factory == "factories:plain"
    assert model.architecture.options == {"width": 6}
    assert built("fixed").task.kind == "binary"


def test_a_loss_of_its_own_is_used() -> None:
    task = built("with_loss").task
    assert task.loss(torch.tensor([[2.0], [0.0]]), torch.tensor([1.0, 0.0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("function", ["batch_norm", "batch_norm_without_weights"])
def test_layers_that_mix_records_are_refused_or_replaced(function: str) -> None:
    with pytest.raises(ValueError, match="BatchNorm1d mixes the rows"):
        built(function)
    fixed = built(function, fix=True)
    assert isinstance(fixed.module.get_submodule("1"), nn.GroupNorm)
    assert fixed.architecture.fix


def test_a_replaced_batch_norm_keeps_what_it_normalises() -> None:
    fixed = built("batch_norm", fix=True).module
    assert not torch.allclose(
        fixed(torch.tensor([[1.0, 2.0, 3.0]])), fixed(torch.tensor([[-3.0, 0.0, 1.0]]))
    )


def test_a_replaced_recurrent_layer_has_one_name_for_each_weight_and_the_same_first_weights() -> (
    None
):
    first, again = (built("recurrent", fix=True).module for _ in range(2))
    assert set(first.state_dict()) == {name for name, _ in first.named_parameters()}
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)
    )
    again.load_state_dict(first.state_dict())


def test_torchs_own_recurrent_layer_is_taken_as_it_is() -> None:
    assert any(type(layer) is nn.LSTM for layer in built("recurrent").module.modules())


@pytest.mark.parametrize("fix", [False, True])
def test_a_recurrent_layer_of_opacus_is_taken_as_the_message_about_torchs_advises(
    fix: bool,
) -> None:
    module = built("private_recurrent", fix=fix).module
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()}
    replaced = built("recurrent", fix=True).module
    assert {name: p.shape for name, p in module.named_parameters()} == {
        name: p.shape for name, p in replaced.named_parameters()
    }


def test_validation_leaves_a_good_model_alone() -> None:
    module = nn.Linear(2, 1)
    assert validate_private(module) is module


@pytest.mark.parametrize(
    ("function", "settings", "words"),
    [
        ("number", {}, "returned int"),
        ("needs_more", {}, "argument learning_rate is not given"),
        ("plain", {"options": {"depth": 2}}, "model.options.depth: .* no such argument"),
        (
            "raises",
            {},
            "failed with RuntimeError: two lines; input_shape is .* declare data.image.shape",
        ),
        ("wrong_width", {}, r"outputs of shape \(2, 7\), not \(2, 1\)"),
        ("squeezed", {}, r"1 record gives outputs of shape \(\), not \(1, 1\)"),
        ("leaves", {}, "failed with SystemExit"),
        ("wrong_input", {}, r"fails on records of shape \(3,\)"),
        ("mean_loss", {}, r"its loss gives shape \(\) for 2 records, not \(2,\)"),
        (
            "loss_for_more_classes",
            {},
            r"its loss fails on 1 output\(s\) and labels that are class numbers",
        ),
        ("shared", {}, "0.weight and 2.weight are one shared weight"),
        ("with_buffer", {}, "buffer seen .* may hold data"),
        ("with_buffer", {"fix": True}, "buffer seen .* may hold data"),
        (
            "local_class",
            {"fix": True},
            "cannot be copied and replaced .* define classes at the top level",
        ),
        ("absent", {}, "has no function absent"),
        ("NOT_A_FUNCTION", {}, "has no function"),
    ],
)
def test_every_mistake_is_one_line(function: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        built(function, **settings)
    assert "\n" not in str(caught.value)


def test_modules_of_the_working_directory_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_model.py").write_text("def make():\n    return 1\n")
    (tmp_path / "my_broken_model.py").write_text("raise SyntaxError('no')\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    assert load_function("my_own_model:make")() == 1
    assert sys.path == path
    with pytest.raises(ConfigError, match="importing my_broken_model failed with SyntaxError: no"):
        load_function("my_broken_model:make")
    for wrong in (
        "nowhere_at_all:make",
        "my_own_model",
        "my_own_model:",
        ":make",
        "my_own_model:a.b",
    ):
        with pytest.raises(ConfigError, match=r"model\.factory="):
            load_function(wrong)
