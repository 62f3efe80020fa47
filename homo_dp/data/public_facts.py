"""What a dry run knows of a federation's data: row counts (declared, shipped or counted here), shape and classes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from homo_dp.core.errors import ConfigError
from homo_dp.data.columns import Level
from homo_dp.data.declared import described_names, feature_columns, is_pattern, label_of, wants_images
from homo_dp.data.embedded import shipped_columns
from homo_dp.data.encoding import Encoding
from homo_dp.data.images import is_image_file, is_there
from homo_dp.data.parties import file_encoding, load_federation
from homo_dp.data.public_encoding import public_encoding

if TYPE_CHECKING:
    from homo_dp.config.data import DataConfig
    from homo_dp.config.schema import Config


def planned_rows(config: Config) -> tuple[dict[str, int], bool]:
    """Row counts by party, declared or of an embedded (public) set; and whether files had to be counted for them."""
    data = config.data
    if data.embedded is not None and not data.files:
        counted = {name: len(party.train) for name, party in load_federation(config).parties.items()}
        return counted | dict(data.rows), False
    absent = [name for name in data.files if name not in data.rows] if data.one_table is None else []
    if data.rows and not absent:
        return dict(data.rows), False
    gone = [path for path in data.files.values() if not is_there(path)]
    if gone or not data.files:
        name, what = absent[0] if absent else "<party>", f"{gone[0]} is not there" if gone else "there are no files"
        raise ConfigError(f"data.rows.{name}: is not declared, and {what} to count rows in; declare every party's rows")
    counted = {name: len(party.train) for name, party in load_federation(config).parties.items()}
    return counted | dict(data.rows), True


def declared_encoding(config: Config) -> Encoding:
    """How rows are encoded, by the config, and by the header of a file where that leaves something open."""
    data = config.data
    if data.embedded is not None and not data.files:
        return load_federation(config).encoding
    described_by = _file_that_says(data)
    return public_encoding(config) if described_by is None else file_encoding(config, described_by)


def _file_that_says(data: DataConfig) -> str | None:
    """The file whose header has what the config leaves open: names that a pattern matches, or the shape of images."""
    first = next(iter(data.files.values()), None)
    if first is None:
        return None
    patterns = any(map(is_pattern, data.columns)) and data.use is None
    shape_is_open = data.image is None or data.image.shape is None
    return first if patterns or (shape_is_open and is_image_file(first)) else None


def public_shape(config: Config) -> tuple[tuple[int, ...], tuple[Level, ...] | None]:
    """Input shape and classes of the model, from the declared columns or image shape."""
    data = config.data
    if data.embedded is not None and not data.files:
        federation = load_federation(config)
        return federation.input_shape, federation.classes
    if data.image is not None and data.image.shape is not None:
        shape = tuple(data.image.shape)
        return (shape if wants_images(config) else (prod(shape),)), label_of(config).classes
    described_by = _file_that_says(data)
    if described_by is not None:
        encoding = file_encoding(config, described_by)
        return encoding.input_shape, encoding.classes
    names = [*described_names(data), data.label]
    if data.columns_from is not None:
        names += [column.name for column in shipped_columns(data.columns_from)]
    names += [name for name in (data.party_column, data.user_column, data.split_column) if name is not None]
    columns = feature_columns(data, list(dict.fromkeys(names)), "data.columns")
    if not columns:
        raise ConfigError(
            "data.columns: is empty; without reading a table the features are known only if it lists them, or if "
            "data.image.shape gives the shape of images"
        )
    return (sum(column.width for column in columns),), label_of(config).classes
