"""What a dry run knows of a federation's data: row counts (declared, shipped or counted here),
shape and classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from homo_dp.core.errors import ConfigError
from homo_dp.data.columns import Level
from homo_dp.data.declared import is_pattern
from homo_dp.data.encoding import Encoding
from homo_dp.data.images import is_image_file, is_there
from homo_dp.data.parties import file_encoding, load_federation
from homo_dp.data.public_encoding import public_encoding

if TYPE_CHECKING:
    from homo_dp.config.data import DataConfig
    from homo_dp.config.schema import Config


def planned_rows(config: Config) -> tuple[dict[str, int], bool]:
    """Row counts by party, declared or of an embedded (public) set; and whether files had to be
    counted for them.
    """
    data = config.data
    if data.embedded is not None and not data.files:
        counted = {
            name: len(party.train) for name, party in load_federation(config).parties.items()
        }
        return counted | dict(data.rows), False
    absent = (
        [name for name in data.files if name not in data.rows] if data.one_table is None else []
    )
    if data.rows and not absent:
        return dict(data.rows), False
    gone = [path for path in data.files.values() if not is_there(path)]
    if gone or not data.files:
        name, what = (
            absent[0] if absent else "<party>",
            f"{gone[0]} is not there" if gone else "there are no files",
        )
        raise ConfigError(
            f"data.rows.{name}: is not declared, and {what} to count rows in; declare every "
            "party's rows"
        )
    counted = {name: len(party.train) for name, party in load_federation(config).parties.items()}
    return counted | dict(data.rows), True


def declared_encoding(config: Config) -> Encoding:
    """How rows are encoded, by the config, and by the header of a file where that leaves
    something open.
    """
    data = config.data
    if data.embedded is not None and not data.files:
        return load_federation(config).encoding
    described_by = _file_that_says(data)
    return public_encoding(config) if described_by is None else file_encoding(config, described_by)


def _file_that_says(data: DataConfig) -> str | None:
    """The file whose header has what the config leaves open: names that a pattern matches, or
    the shape of images.
    """
    first = next(iter(data.files.values()), None)
    if first is None:
        return None
    patterns = any(map(is_pattern, data.columns)) and data.use is None
    shape_is_open = data.image is None or data.image.shape is None
    return first if patterns or (shape_is_open and is_image_file(first)) else None


def public_shape(config: Config) -> tuple[tuple[int, ...], tuple[Level, ...] | None]:
    """Input shape and classes of the model, from the declared columns or image shape."""
    encoding = declared_encoding(config)
    return encoding.input_shape, encoding.classes
