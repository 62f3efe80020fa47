"""What an MLflow model takes and gives: signature and example, from the public description of its
columns.

Nothing here looks at a row: the example is the middle of every declared range and the first of
every declared level.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homo_dp.core.errors import ModelFileError


@dataclass(frozen=True)
class Description:
    """The public part of a model file that a signature needs."""

    encoding: Mapping[str, Any]
    classes: Sequence[Any]
    threshold: float


def describe(path: Path) -> Description:
    """Read a model file's description, without its weights and without torch."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
        return Description(
            json.loads(metadata["encoding"]),
            json.loads(metadata["classes"]),
            float(json.loads(metadata["threshold"])),
        )
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ModelFileError(
            f"{path}: is damaged or not a homo_dp model ({error}); train it again"
        ) from error


def privacy_tags(path: Path) -> dict[str, str]:
    """What a model file says about its privacy, as tags of a registered version."""
    from safetensors import safe_open

    with safe_open(str(path), framework="np") as file:
        privacy = json.loads((file.metadata() or {})["privacy"])
    said = {key: privacy.get(key) for key in ("epsilon", "delta", "unit", "mechanism", "statement")}
    said["epsilon"] = said["epsilon"] if privacy.get("private") else None
    tags = {
        key: f"{value:.6g}" if isinstance(value, float) else str(value)
        for key, value in said.items()
        if value
    }
    return tags | {"privacy": "private" if privacy.get("private") else "NOT PRIVATE"}


def signature_of(description: Description) -> Any:
    """The model's MLflow signature; for two classes the threshold is a parameter of every call."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    outputs = Schema(
        [ColSpec(kind, name) for name, kind in output_columns(description.classes).items()]
    )
    params = None
    if len(description.classes) == 2:
        params = ParamSchema([ParamSpec("threshold", DataType.double, description.threshold)])
    return ModelSignature(_inputs(description.encoding), outputs, params)


def example_of(description: Description) -> Any:
    """One made-up record: a data frame, or for images an array."""
    import numpy as np
    import pandas as pd

    encoding = description.encoding
    if encoding["pixel_bounds"] is not None:
        low, high = encoding["pixel_bounds"]
        return np.full((1, *encoding["shape"]), (low + high) / 2, dtype=np.float64)
    return pd.DataFrame({column["name"]: [_example(column)] for column in encoding["columns"]})


def output_columns(classes: Sequence[Any]) -> dict[str, str]:
    """The columns that a call returns, with their MLflow types.

    >>> output_columns([0, 1]), output_columns([])
    ({'pred_prob': 'double', 'pred_y': 'long'}, {'pred_y': 'double'})
    """
    if not classes:
        return {"pred_y": "double"}
    probabilities = [f"prob_{name}" for name in classes] if len(classes) > 2 else []
    return {**dict.fromkeys([*probabilities, "pred_prob"], "double"), "pred_y": value_type(classes)}


def value_type(values: Sequence[Any]) -> str:
    """The MLflow type that holds all of these declared values.

    >>> value_type([1, 2]), value_type([1, 2.5]), value_type(["a", 1])
    ('long', 'double', 'string')
    """
    if all(isinstance(value, int) for value in values):
        return "long"
    return "double" if all(isinstance(value, int | float) for value in values) else "string"


def _inputs(encoding: Mapping[str, Any]) -> Any:
    from mlflow.types import ColSpec, Schema, TensorSpec

    if encoding["pixel_bounds"] is not None:
        import numpy as np

        return Schema([TensorSpec(np.dtype(np.float64), (-1, *encoding["shape"]))])
    return Schema([ColSpec(_spec_type(column), column["name"]) for column in encoding["columns"]])


def _spec_type(column: Mapping[str, Any]) -> Any:
    """Dates and booleans may come typed or as text, so their columns take any value; the
    encoding reads all of them.
    """
    from mlflow.types.schema import AnyType

    if "date" in column or any(
        str(level).lower() in ("true", "false") for level in column.get("levels", ())
    ):
        return AnyType()
    return _input_type(column)


def _input_type(column: Mapping[str, Any]) -> str:
    """Numbers as double, levels that are numbers too: a missing one is NaN, which whole numbers
    do not have.
    """
    return "string" if "levels" in column and value_type(column["levels"]) == "string" else "double"


def _example(column: Mapping[str, Any]) -> float | str:
    if "levels" in column:
        first = column["levels"][0]
        return str(first) if _input_type(column) == "string" else float(first)
    if "date" in column:
        return str(column["date"][0])
    low, high = column["bounds"]
    return (float(low) + float(high)) / 2
