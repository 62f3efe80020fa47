"""What is known of a federation's data without reading a private table: row counts, shape and classes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from homo_dp.core.errors import ConfigError
from homo_dp.data.columns import Level
from homo_dp.data.declared import feature_columns, label_of, wants_images
from homo_dp.data.embedded import shipped_columns
from homo_dp.data.parties import load_federation

if TYPE_CHECKING:
    from homo_dp.config.schema import Config


def public_rows(config: Config) -> dict[str, int]:
    """Row counts by party: declared in the config, or those of an embedded (public) set."""
    data = config.data
    if data.embedded is not None and not data.files:
        counted = {name: len(party.train) for name, party in load_federation(config).parties.items()}
        return counted | dict(data.rows)
    absent = [name for name in data.files if name not in data.rows] if data.one_table is None else []
    if absent or not data.rows:
        name = absent[0] if absent else "<party>"
        raise ConfigError(f"data.rows.{name}: is not declared; a dry run reads no table, so declare every party's rows")
    return dict(data.rows)


def public_shape(config: Config) -> tuple[tuple[int, ...], tuple[Level, ...] | None]:
    """Input shape and classes of the model, from the declared columns or image shape."""
    data = config.data
    if data.embedded is not None and not data.files:
        federation = load_federation(config)
        return federation.input_shape, federation.classes
    if data.image is not None and data.image.shape is not None:
        shape = tuple(data.image.shape)
        return (shape if wants_images(config) else (prod(shape),)), label_of(config).classes
    names = [*data.columns, data.label]
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
