"""The saved model: one safetensors file whose metadata say how to rebuild the model, read without
running anything.

Keeping a model safe to open is the point of this format: there is no pickle, shapes are checked
before memory is taken, and a model from a factory, which needs the user's code, loads only when the
reader says that it trusts it.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from homo_dp.core.errors import ConfigError, ModelFileError, error_text
from homo_dp.core.files import atomic_write
from homo_dp.core.strict_json import strict_json
from homo_dp.models.architecture import Architecture
from homo_dp.models.registry import build_module
from homo_dp.models.task import Task, task_for

FORMAT = "homo_dp-model"
VERSION = 1
LARGEST_HEADER = 16 << 20  # bytes; a table of thousands of columns describes itself in far less
_JSON_KEYS = ("classes", "encoding", "label", "privacy", "split", "target_bounds", "threshold")


@dataclass(frozen=True)
class ModelCard:
    """What a model file says about its model."""

    architecture: Architecture
    classes: tuple[Any, ...] = ()  # in label order; none for regression
    label: str | None = None
    encoding: Mapping[str, Any] = field(default_factory=dict)  # Encoding.to_json() of the columns
    threshold: float = 0.5
    target_bounds: tuple[float, float] | None = None
    privacy: Mapping[str, Any] = field(default_factory=dict)  # the privacy statement of the run
    split: Mapping[str, Any] = field(default_factory=dict)  # which rows were held out

    @property
    def outputs(self) -> int:
        """How many outputs the classes ask for."""
        return len(self.classes) if len(self.classes) > 2 else 1


@dataclass(frozen=True)
class SavedModel:
    """A model read from its file: ready to score."""

    module: nn.Module
    card: ModelCard
    task: Task
    path: str | Path = ""

    def check_encoding(self, input_shape: Sequence[int], classes: Sequence[Any] | None) -> None:
        """Refuse a file whose column description (as read from ``card.encoding``) does not
        belong to its weights.
        """
        expected = self.card.architecture.input_shape
        if tuple(input_shape) != expected:
            raise ModelFileError(
                f"{self.path}: its columns give records of shape {tuple(input_shape)}, its weights "
                f"take {expected}; the file is damaged"
            )
        if tuple(classes or ()) != self.card.classes:
            raise ModelFileError(
                f"{self.path}: its label and its weights have different classes; the file is "
                "damaged"
            )


def save_model(
    path: str | Path, weights: Mapping[str, Tensor], card: ModelCard, name: str = "modelFileName"
) -> None:
    """Write weights and card to one file, whole or not at all; ``name`` is how an error calls
    the path.
    """
    from safetensors.torch import save

    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in weights.items()}
    for key, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ModelFileError(
                f"{name}={path}: weight {key} is not finite; lower train.learning_rate and train "
                "again"
            )
    values = {key: getattr(card, key) for key in _JSON_KEYS}
    metadata = {
        key: json.dumps(value, sort_keys=True, allow_nan=False) for key, value in values.items()
    }
    metadata |= {
        "format": FORMAT,
        "version": str(VERSION),
        "architecture": card.architecture.to_json(),
        "factory": card.architecture.factory or "",
    }
    with atomic_write(path, name) as file:
        file.write(save(tensors, metadata))


def load_model(path: str | Path, trust_factory: bool | str | None = False) -> SavedModel:
    """Read a model file; a damaged or crafted one is a `ModelFileError`, and no code from it or
    named by it is run.

    With ``trust_factory=True`` a model from a factory imports and calls the factory that the file
    names; with an import path, only if the file names that one.
    """
    card, tensors = _read(path)
    architecture = card.architecture
    if architecture.factory is not None and trust_factory not in (True, architecture.factory):
        # training runs no other factory than its config names
        named = f"model.factory={architecture.factory}"
        way = (
            "--trust-factory (in MLflow: set HOMO_DP_TRUST_FACTORY=1)"
            if trust_factory is False
            else named
        )
        raise ModelFileError(
            f"{path}: this model needs the code of its factory {architecture.factory}; if you "
            f"trust it, give {way}"
        )
    try:
        module, loss = build_module(
            architecture, seed=None, public_tensors=tensors
        )  # no seed: it is scored, not trained
    except ConfigError as error:
        raise ModelFileError(f"{path}: cannot be rebuilt: {error}") from error
    except (ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise ModelFileError(
            f"{path}: cannot be rebuilt from its description; it may be damaged"
        ) from error
    _check_tensors(path, module, tensors)
    module.load_state_dict(tensors, assign=True)
    module.eval()
    return SavedModel(module, card, task_for(card.classes, loss, card.target_bounds), path)


def read_card(path: str | Path) -> ModelCard:
    """What a model file says about itself; never needs the factory's code."""
    return _read(path)[0]


def _read(path: str | Path) -> tuple[ModelCard, dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    _check_header(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            card = _card(path, metadata)
            # not a dict
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (
        SafetensorError,
        OSError,
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
    ) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(
            f"{path}: is damaged or not a model file ({error_text(error)}); copy or train it again"
        ) from error
    return card, tensors


def _check_header(path: str | Path) -> None:
    """Refuse what is not a safetensors file of sane header before anything is allocated for it."""
    target = Path(path)
    if target.is_dir():
        raise ModelFileError(f"{path}: is a directory; give the model file")
    try:
        with target.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(9)
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{path}: no such model file; train first or correct the path"
        ) from error
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"{path}: cannot be read ({error_text(error)}); check the path and its permissions"
        ) from error
    header = int.from_bytes(start[:8], "little")
    if len(start) < 9 or start[8:] != b"{" or header > min(size - 8, LARGEST_HEADER):
        raise ModelFileError(
            f"{path}: is damaged or not a model file (bad header); copy or train it again"
        )


def _card(path: str | Path, metadata: Mapping[str, str]) -> ModelCard:
    if metadata.get("format") != FORMAT:
        raise ModelFileError(
            f"{path}: is a safetensors file but not a homo_dp model; give the file that training "
            "wrote"
        )
    if metadata.get("version") != str(VERSION):
        shown = str(metadata.get("version"))[:20]
        raise ModelFileError(
            f"{path}: model format version={shown}, this program reads {VERSION}; upgrade homo_dp"
        )
    absent = [key for key in ("architecture", *_JSON_KEYS) if key not in metadata]
    if absent:
        raise ModelFileError(
            f"{path}: its metadata have no {absent[0]}; the file is damaged, copy or train it again"
        )
    try:
        architecture = Architecture.from_json(metadata["architecture"])
        values = {key: strict_json(metadata[key], unique=False) for key in _JSON_KEYS}
        card = ModelCard(
            architecture,
            tuple(values["classes"]),
            values["label"],
            values["encoding"],
            float(values["threshold"]),
            (
                None
                if values["target_bounds"] is None
                else (float(values["target_bounds"][0]), float(values["target_bounds"][1]))
            ),
            values["privacy"],
            values["split"],
        )
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ModelFileError(
            f"{path}: its metadata are damaged ({error_text(error)}); copy or train it again"
        ) from error
    _check_card(path, card)
    return card


def _check_card(path: str | Path, card: ModelCard) -> None:
    scalars = all(isinstance(name, str | int | float) for name in card.classes)
    wrong = [
        (
            "classes",
            not scalars
            or len(card.classes) == 1
            or len(set(map(str, card.classes))) != len(card.classes),
        ),
        ("label", not isinstance(card.label, str | None)),
        ("encoding", not isinstance(card.encoding, dict)),
        ("privacy", not isinstance(card.privacy, dict)),
        ("split", not isinstance(card.split, dict)),
        ("threshold", not 0.0 <= card.threshold <= 1.0),
        (
            "target_bounds",
            card.target_bounds is not None and not all(map(math.isfinite, card.target_bounds)),
        ),
        ("outputs", card.outputs != card.architecture.outputs),
    ]
    for key, bad in wrong:
        if bad:
            raise ModelFileError(
                f"{path}: its metadata are damaged ({key}); copy or train it again"
            )


def _check_tensors(path: str | Path, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    expected = module.state_dict()
    if set(expected) != set(tensors):
        odd = sorted(set(expected) ^ set(tensors))[0][:80]
        raise ModelFileError(
            f"{path}: its weights do not fit its architecture ({odd!r}); the file is damaged"
        )
    for name, value in tensors.items():
        if value.shape != expected[name].shape or value.dtype != expected[name].dtype:
            raise ModelFileError(
                f"{path}: weight {name} has shape {tuple(value.shape)} and type {value.dtype}, its "
                f"architecture asks for {tuple(expected[name].shape)} and {expected[name].dtype}; "
                "the file is damaged"
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ModelFileError(
                f"{path}: weight {name} holds NaN or infinity; the file is damaged"
            )
