"""Saved models: they come back the same, and a damaged or crafted file fails with one line and
runs nothing.
"""

import dataclasses
import json
import random
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from homo_dp.config.model import ModelConfig
from homo_dp.core.errors import InputError, ModelFileError
from homo_dp.models.files import LARGEST_HEADER, ModelCard, load_model, read_card, save_model
from homo_dp.models.registry import BuiltModel, build_model

CASES: list[tuple[dict[str, Any], tuple[int, ...], list[Any] | None]] = [
    ({"name": "logistic_regression"}, (4,), ["B", "M"]),
    ({"name": "logistic_regression"}, (4,), [1, 2, 3]),
    ({"name": "linear_regression", "bias": False}, (4,), None),
    ({"name": "mlp", "layers": [5], "activation": "tempered_sigmoid"}, (4,), [0, 1]),
    ({"name": "cnn", "channels": [4]}, (1, 8, 8), list(range(10))),
]


def card_of(model: BuiltModel, **changes: Any) -> ModelCard:
    card = ModelCard(
        model.architecture,
        model.task.classes,
        label="diagnosis",
        encoding={"columns": [{"name": "größe, \u2028", "bounds": [0, 1]}]},
        threshold=0.4,
        target_bounds=(0.0, 9.0) if model.task.kind == "regression" else None,
        privacy={"epsilon": 2.0, "private": True},
    )
    return dataclasses.replace(card, **changes)


def saved(
    path: Path, settings: dict[str, Any], shape: tuple[int, ...], classes: list[Any] | None
) -> BuiltModel:
    model = build_model(ModelConfig(**settings), shape, classes, seed=3)
    for parameter in model.module.parameters():
        torch.nn.init.normal_(parameter)
    save_model(path, model.module.state_dict(), card_of(model))
    return model


@pytest.fixture
def good(tmp_path: Path) -> Path:
    saved(tmp_path / "good", *CASES[3])
    return tmp_path / "good"


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_model_comes_back_as_it_was(case: int, tmp_path: Path) -> None:
    settings, shape, classes = CASES[case]
    path = tmp_path / "model.any"
    model = saved(path, settings, shape, classes)
    loaded = load_model(path)
    rows = torch.randn(6, *shape)
    assert torch.equal(loaded.module(rows), model.module(rows))
    assert loaded.card == card_of(model) == read_card(path)
    assert loaded.task.classes == model.task.classes
    assert loaded.task.kind == model.task.kind
    assert not loaded.module.training
    with safe_open(str(path), framework="pt") as file:
        assert file.metadata()["format"] == "homo_dp-model"


def test_a_factory_model_needs_trust_and_nothing_is_imported_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, path = tmp_path / "code", tmp_path / "model"
    here.mkdir()
    (here / "secret_sauce.py").write_text(
        "import os\nfrom torch import nn\nopen('ran', 'w').close()\ndef make(outputs): return "
        "nn.Linear(3, outputs)\n"
    )
    monkeypatch.chdir(here)
    saved(path, {"factory": "secret_sauce:make"}, (3,), [0, 1])
    (here / "ran").unlink()
    with monkeypatch.context() as fresh:
        fresh.delitem(sys.modules, "secret_sauce")
        with pytest.raises(ModelFileError, match=r"secret_sauce:make.*--trust-factory"):
            load_model(path)
        with pytest.raises(ModelFileError, match=r"give model.factory=secret_sauce:make"):
            load_model(path, trust_factory="my_own:make")
        assert read_card(path).architecture.factory == "secret_sauce:make"
        assert not (here / "ran").exists()
    for trust in (True, "secret_sauce:make"):
        assert load_model(path, trust_factory=trust).module(torch.zeros(2, 3)).shape == (2, 1)


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    model = build_model(ModelConfig(), (2,), [0, 1])
    weights = {name: value * float("nan") for name, value in model.module.state_dict().items()}
    with pytest.raises(ModelFileError, match="is not finite"):
        save_model(tmp_path / "m", weights, card_of(model))
    assert not (tmp_path / "m").exists()


def test_an_unwritable_path_is_one_line(tmp_path: Path) -> None:
    model = build_model(ModelConfig(), (2,), [0, 1])
    with pytest.raises(InputError, match="modelFileName="):
        save_model(tmp_path, model.module.state_dict(), card_of(model))


def reheaded(path: Path, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The bytes of a file with another header."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def with_metadata(path: Path, **changes: str | None) -> bytes:
    def change(header: dict[str, Any]) -> None:
        for key, value in changes.items():
            if value is None:
                header["__metadata__"].pop(key)
            else:
                header["__metadata__"][key] = value

    return reheaded(path, change)


def refused(path: Path, content: bytes, words: str | None = None) -> None:
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=words) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_every_cut_is_refused(good: Path, tmp_path: Path) -> None:
    content = good.read_bytes()
    for length in [*range(40), *range(40, len(content), 37), len(content) - 1]:
        refused(tmp_path / "cut", content[:length])


def test_damage_never_gives_anything_but_a_model_or_a_clean_error(
    good: Path, tmp_path: Path
) -> None:
    content = good.read_bytes()
    draw = random.Random(7)
    for _ in range(300):
        broken = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        (tmp_path / "broken").write_bytes(broken)
        with suppress(ModelFileError):
            load_model(tmp_path / "broken")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "other"}, "not a homo_dp model"),
        ({"version": "99"}, "upgrade"),
        ({"version": None}, "version"),
        ({"classes": None}, "no classes"),
        ({"classes": "[0]"}, "classes"),
        ({"classes": "[0, 0]"}, "classes"),
        ({"classes": '[[], {"a": 1}]'}, "classes"),
        ({"classes": "[0, 1, 2]"}, "outputs"),
        ({"classes": "[" * 100_000}, "damaged"),
        ({"classes": "7"}, "damaged"),
        ({"threshold": "NaN"}, "damaged"),
        ({"threshold": '"high"'}, "damaged"),
        ({"threshold": "2"}, "threshold"),
        ({"threshold": "1e999"}, "threshold"),
        ({"label": "3"}, "label"),
        ({"encoding": "[]"}, "encoding"),
        ({"privacy": "null"}, "privacy"),
        ({"target_bounds": "[1]"}, "damaged"),
        ({"target_bounds": "[0, 1e999]"}, "target_bounds"),
        ({"architecture": "{}"}, "exactly the keys"),
        ({"architecture": "[" * 100_000}, "not JSON"),
        ({"architecture": "nonsense"}, "not JSON"),
    ],
)
def test_crafted_metadata_are_refused(
    changes: dict[str, str | None], words: str, good: Path, tmp_path: Path
) -> None:
    refused(tmp_path / "crafted", with_metadata(good, **changes), words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": [1 << 24] * 200}, "do not fit"),
        ({"layers": [1 << 24]}, "its architecture asks"),
        ({"layers": [1 << 40]}, "whole number"),
        ({"layers": [-1]}, "whole number"),
        ({"layers": [True]}, "whole number"),
        ({"layers": [5] * 1000}, "at most"),
        ({"layers": 5}, "must be a list"),
        ({"layers": [5, 5]}, "do not fit"),
        ({"layers": [6]}, "its architecture asks"),
        ({"name": "os.system"}, "unknown"),
        ({"name": "cnn"}, "images"),
        ({"activation": "exec"}, "unknown"),
        ({"activation": 3}, "wrong type"),
        ({"bias": 1}, "wrong type"),
        ({"outputs": 1 << 24}, "outputs"),
        ({"input_shape": []}, "no feature columns"),
        ({"input_shape": [1 << 24, 1 << 24, 1 << 24]}, "numbers a record"),
        ({"factory": "os:system"}, "--trust-factory"),
        ({"options": []}, "wrong type"),
    ],
)
def test_crafted_architectures_are_refused_before_memory_is_taken(
    changes: dict[str, Any], words: str, good: Path, tmp_path: Path
) -> None:
    architecture = json.loads(read_card(good).architecture.to_json())
    text = json.dumps({**architecture, **changes})
    refused(tmp_path / "crafted", with_metadata(good, architecture=text), words)


def test_crafted_headers_are_refused(good: Path, tmp_path: Path) -> None:
    content, target = good.read_bytes(), tmp_path / "crafted"
    refused(target, struct.pack("<Q", 1 << 60) + content[8:], "bad header")
    refused(
        target,
        struct.pack("<Q", LARGEST_HEADER + 1) + b"{" + b" " * (LARGEST_HEADER + 1),
        "bad header",
    )
    refused(target, b"\x80\x04\x95 a pickle and nothing else", "bad header")
    refused(target, b"PK\x03\x04" + bytes(100), "bad header")

    def longer(header: dict[str, Any]) -> None:
        header["output.weight"]["shape"] = [1, 1 << 40]

    refused(target, reheaded(good, longer), "damaged")


def test_wrong_weights_are_refused(good: Path, tmp_path: Path) -> None:
    with safe_open(str(good), framework="pt") as file:
        metadata = file.metadata()
    weights, target = load_file(good), tmp_path / "crafted"

    def check(changed: dict[str, torch.Tensor], words: str) -> None:
        save_file(changed, target, metadata)
        refused(target, target.read_bytes(), words)

    check({**weights, "extra": torch.zeros(1)}, "extra")
    check(
        {name: value for name, value in weights.items() if name != "output.bias"}, r"output\.bias"
    )
    check({**weights, "output.bias": torch.zeros(2)}, "its architecture asks")
    check({**weights, "output.bias": torch.zeros(1, dtype=torch.float64)}, "float64")
    check({**weights, "output.bias": torch.zeros(1, dtype=torch.int64)}, "int64")
    check({**weights, "output.bias": torch.tensor([float("nan")])}, "NaN")
    check({**weights, "output.bias": torch.tensor([float("inf")])}, "NaN or infinity")


def test_columns_that_do_not_belong_to_the_weights_are_refused(good: Path) -> None:
    model = load_model(good)
    model.check_encoding([4], [0, 1])
    with pytest.raises(ModelFileError, match=r"records of shape \(3,\), its weights take \(4,\)"):
        model.check_encoding((3,), (0, 1))
    for classes in ((1, 0), (0, 1, 2), None):
        with pytest.raises(ModelFileError, match="different classes"):
            model.check_encoding((4,), classes)


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, "directory"),
        (tmp_path / "absent", "no such model file"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(ModelFileError, match=words):
            load_model(path)
