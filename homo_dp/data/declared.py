"""From the `data` section of the config to an Encoding: which columns are features, and what is
public about them.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from homo_dp.config.model import IMAGE_FEATURES
from homo_dp.core.errors import DataError
from homo_dp.data.columns import LATER, Categorical, Column, Date, Label, Level, Numeric
from homo_dp.data.embedded import shipped_columns, shipped_label
from homo_dp.data.encoding import Encoding, missing_columns, short
from homo_dp.data.in_memory import MARK
from homo_dp.data.raw_rows import raw_encoding
from homo_dp.data.values import text_of

if TYPE_CHECKING:
    from homo_dp.config.data import ColumnConfig, DataConfig
    from homo_dp.config.schema import Config


def table_encoding(
    config: Config, names: Sequence[str], source: str, shape: tuple[int, ...] | None = None
) -> Encoding:
    """The encoding of tables with these column names; a column without a public description is
    refused.
    """
    data = config.data
    identifier = _id_column(data, names, source)
    if data.private_levels and not config.privacy.asks_raw_values:
        raise DataError(
            f"data.columns.{data.private_levels[0]}.levels=private: are estimated in the first "
            "round of a training; list them here (those of its resolved config are public)"
        )
    encoding = Encoding(
        columns=feature_columns(data, names, source),
        label=label_of(config),
        id=identifier,
        missing_values=tuple(str(text) for text in data.missing_values),
        shape=shape if wants_images(config) else None,
        curves=bool(data.curves),
    )
    return raw_encoding(encoding) if config.privacy.asks_raw_values else encoding


def image_encoding(config: Config, shape: tuple[int, ...]) -> Encoding:
    """The encoding of image files of this (channels, height, width); models that take vectors
    get each image flat.
    """
    image = config.data.image
    return Encoding(
        columns=(),
        label=label_of(config),
        id="id",
        shape=shape if wants_images(config) else (math.prod(shape),),
        pixel_bounds=(0.0, 255.0) if image is None else image.scale,
        curves=bool(config.data.curves),
    )


def feature_columns(data: DataConfig, names: Sequence[str], source: str) -> tuple[Column, ...]:
    """Descriptions of the feature columns, in the order of the declaration (never of one party's
    file).
    """
    left_out = _left_out(data)
    plain = [name for name in names if name not in left_out]
    known: dict[str, Column] = {
        name: _column(name, block) for name, block in _spelled_out(data, plain).items()
    }
    if data.columns_from is not None:
        shipped = shipped_columns(data.columns_from)
        alone = not known and data.default_bounds is None
        # else it describes another table
        if alone or any(column.name in names for column in shipped):
            known |= {column.name: column for column in shipped if column.name not in known}
    _check_named(data, names, source)
    if data.use is None:
        wanted = [name for name in known if name not in left_out]
        undescribed = [name for name in names if name not in left_out and name not in known]
    else:
        wanted = [name for name in data.use if name not in data.drop]
        undescribed = [name for name in wanted if name in names and name not in known]
    if undescribed and data.default_bounds is not None:
        low, high = data.default_bounds
        known |= {name: Numeric(name, low, high, "middle") for name in undescribed}
        wanted += [name for name in undescribed if name not in wanted]
    elif undescribed:
        raise DataError(
            f"{source}: column {undescribed[0]!r} has no bounds or levels{_in_all(undescribed)}; "
            f"{_misnamed(undescribed[0], [*known, *data.drop], names)}describe it in data.columns "
            "or list it in data.drop, where free text belongs; "
            f"{_how_to_describe(source)}"
        )
    absent = [name for name in wanted if name not in names]
    if absent:
        raise DataError(
            f"{source}: {missing_columns(absent)}{_nearest(absent[0], names)}; every party needs "
            "the same columns (data.drop leaves one out everywhere)"
        )
    return tuple(known[name] for name in wanted)


def described_columns(data: DataConfig, names: Sequence[str]) -> dict[str, Column]:
    """Those of the named columns that the config describes as features, by itself or by a
    shipped description.
    """
    left_out = _left_out(data)
    plain = [name for name in names if name not in left_out]
    known = (
        {column.name: column for column in shipped_columns(data.columns_from)}
        if data.columns_from
        else {}
    )
    known |= {name: _column(name, block) for name, block in _spelled_out(data, plain).items()}
    return {name: known[name] for name in plain if name in known}


def _left_out(data: DataConfig) -> set[str | None]:
    roles = {data.id, data.label, data.party_column, data.split_column, data.user_column}
    return (roles | set(data.drop)) - set(data.use or ())


def described_names(data: DataConfig) -> list[str]:
    """The columns that the config describes, where no table is at hand; patterns need `data.use`
    to stand for names.
    """
    patterns = [name for name in data.columns if is_pattern(name)]
    if patterns and data.use is None:
        raise DataError(
            f"data.columns: {patterns[0]!r} is a pattern, and there is no table here whose columns "
            "it could match; list the columns in data.use"
        )
    return list(
        dict.fromkeys([*(name for name in data.columns if name not in patterns), *(data.use or ())])
    )


def is_pattern(name: str) -> bool:
    """Whether a key of data.columns stands for several columns: `drug_*`, `x?`, `lab_[abc]`."""
    return any(sign in name for sign in "*?[")


def _spelled_out(data: DataConfig, names: Sequence[str]) -> dict[str, ColumnConfig]:
    """The description of each column: its own, else that of the first pattern that matches it.

    Columns of one pattern stand in the order of their names (x2 before x10), not in that of one
    party's file.
    """
    found: dict[str, ColumnConfig] = {}
    for key, block in data.columns.items():
        if key in names or not is_pattern(key):
            found.setdefault(key, block)
            continue
        matched = [
            name
            for name in names
            if fnmatchcase(name, key) and name not in data.columns and name not in found
        ]
        found |= dict.fromkeys(sorted(matched, key=_by_number), block)
    return found


def _by_number(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts]


def label_of(config: Config) -> Label:
    """Classes or bounds of the label: declared, shipped with an embedded set, or 0/1 for a
    binary model.
    """
    data = config.data
    if config.model.task == "regression":
        if data.target_bounds is None:
            raise DataError(
                "data.target_bounds is not given; a regression needs public [low, high] of its "
                f"label {data.label!r}"
            )
        return Label(data.label, bounds=data.target_bounds)
    if data.target_bounds is not None:
        raise DataError(
            "data.target_bounds is for a regression; choose model.name=linear_regression or leave "
            "it out"
        )
    classes: Sequence[Level] = (0, 1)
    if data.classes is not None:
        classes = data.classes
    elif data.embedded is not None:
        classes = shipped_label(data.embedded).classes or classes
    return Label(data.label, classes=as_levels(classes))


def wants_images(config: Config) -> bool:
    """Whether the model takes (channels, height, width); an own factory says so with
    data.image.shape.
    """
    if config.model.factory is not None:
        return config.data.image is not None and config.data.image.shape is not None
    return config.model.name in ("cnn", *IMAGE_FEATURES)


def _column(name: str, block: ColumnConfig) -> Column:
    if block.levels is not None and block.missing is not None:
        levels = (LATER,) if block.levels == "private" else as_levels(block.levels)
        return Categorical(name, levels, as_levels([block.missing])[0])
    if block.date is not None:
        first, last = block.date
        return Date(
            name, first, last, block.parts, block.format, str(block.missing), block.indicator
        )
    if block.bounds is None or block.missing is None:
        raise DataError(f"data.columns.{name} needs bounds: [low, high] or levels: [...]")
    low, high = block.bounds
    return Numeric(name, low, high, block.missing, block.indicator)


def as_levels(values: Sequence[Level]) -> tuple[Level, ...]:
    """Levels or classes; true and false, which YAML reads as booleans, are the texts that all
    files have for them.
    """
    return tuple(text_of(value) or "" if isinstance(value, bool) else value for value in values)


def _id_column(data: DataConfig, names: Sequence[str], source: str) -> str | None:
    if data.id in names:
        return data.id
    if "id" in data.model_fields_set and data.id != "id":
        raise DataError(
            f"{source}: id column {data.id!r} is not there{_nearest(data.id, names)}; set data.id"
        )
    return None


def _check_named(data: DataConfig, names: Sequence[str], source: str) -> None:
    for key in ("party_column", "user_column", "split_column"):
        name = getattr(data, key)
        if name is not None and name not in names:
            raise DataError(f"{source}: data.{key}={name!r} is not a column{_nearest(name, names)}")
    if data.label not in names:
        raise DataError(
            f"{source}: label column {data.label!r} is not there{_nearest(data.label, names)}; set "
            f"data.label; the columns are {short(names)}"
        )


def _how_to_describe(source: str) -> str:
    if source.startswith(MARK):  # describe reads files only
        return (
            "in Python bounds={'age': (0, 120)} and categories={'ward': ['A', 'B']} describe them, "
            "and homo_dp.describe drafts that"
        )
    return f"to draft the block: python -m homo_dp.data describe {source}"


def _nearest(name: str, names: Sequence[str]) -> str:
    near = _alike(name, names)
    return f" (did you mean {near!r}?)" if near is not None else ""


def _misnamed(name: str, described: Sequence[str], names: Sequence[str]) -> str:
    """A hint where the config describes or drops a column that the table has under a similar
    name only.
    """
    near = _alike(name, [each for each in described if each not in names])
    return "" if near is None else f"the config has {near!r}: did you mean {name!r}? Else "


def _alike(name: str, names: Sequence[str]) -> str | None:
    """The nearest name; upper and lower case count as alike."""
    folded = {each.casefold(): each for each in names}
    near = difflib.get_close_matches(name.casefold(), list(folded), n=1)
    return folded[near[0]] if near else None


def _in_all(names: Sequence[str]) -> str:
    return "" if len(names) == 1 else f" ({len(names)} such columns: {short(names)})"
