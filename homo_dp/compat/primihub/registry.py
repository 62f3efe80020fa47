"""PrimiHub's registry of data sets, so that a task's ``data_set`` names find their files.

The YAML of a PrimiHub node has a list ``datasets``; each entry has a ``description`` (its name), a
``model`` (csv, sqlite, mysql, image) and where it is. Relative paths start at the working
directory, as at PrimiHub, or else at the folder of the registry or the one above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from homo_dp.config.layers import get
from homo_dp.config.yaml_text import LARGEST_YAML, parse_yaml
from homo_dp.core.errors import ConfigError, error_text, one_line
from homo_dp.core.untrusted_text import Foreign, Schema


class _Entry(Schema, extra="allow"):
    description: str
    model: str = "csv"
    source: str | None = None
    table_name: str | None = None
    image_dir: str | None = None
    annotations_file: str | None = None
    host: str | None = None
    port: int | None = None
    username: str | None = None
    password: str | None = None
    dbName: str | None = None
    tableName: str | None = None


class _Registry(Schema, extra="allow"):
    datasets: list[_Entry]


def read_registry(paths: Iterable[str]) -> dict[str, str]:
    """The address of every data set that the files name; the first file that has a name wins."""
    found: dict[str, str] = {}
    for path in paths:
        file = Foreign(f"data.registry={path}", "correct it", ConfigError, LARGEST_YAML)
        try:
            tree: Any = parse_yaml(file.text(file.read(Path(path))), path)
        except FileNotFoundError:
            raise ConfigError(
                f"data.registry={path}: no such file; give a PrimiHub node config"
            ) from None
        for entry in file.check(_Registry, tree).datasets:
            found.setdefault(entry.description, _address(entry, Path(path)))
    return found


def names_in(tree: Mapping[str, Any]) -> dict[str, str]:
    """The addresses of the data sets that ``data.registry`` of a configuration names."""
    paths = get(tree, "data.registry")
    return read_registry([paths] if isinstance(paths, str) else paths) if paths else {}


def put_addresses(merged: dict[str, Any]) -> None:
    """Put addresses that the registry of a configuration has in the place of names of tables."""
    names = names_in(merged)
    for key in ("files", "test_file") if names else ():
        given = get(merged, f"data.{key}")
        if isinstance(given, dict):
            merged["data"][key] = {party: names.get(name, name) for party, name in given.items()}
        elif isinstance(given, str):
            merged["data"][key] = names.get(given, given)


def _address(entry: _Entry, registry: Path) -> str:
    where = f"data.registry={registry}: data set {entry.description}"
    if entry.model == "image":
        if entry.image_dir is None:
            raise ConfigError(f"{where}: is of model image and has no image_dir")
        notes = f"#{_placed(entry.annotations_file, registry)}" if entry.annotations_file else ""
        return _placed(entry.image_dir, registry) + notes
    if entry.model == "sqlite":
        if entry.source is None or entry.table_name is None:
            raise ConfigError(f"{where}: is of model sqlite and needs source and table_name")
        return f"sqlite:///{_placed(entry.source, registry)}#{entry.table_name}"
    if entry.model == "mysql":
        if entry.host is None or entry.dbName is None or entry.tableName is None:
            raise ConfigError(f"{where}: is of model mysql and needs host, dbName and tableName")
        who = quote(entry.username or "", safe="")
        word = f":{quote(entry.password, safe='')}" if entry.password else ""
        port = f":{entry.port}" if entry.port else ""
        return f"mysql+pymysql://{who}{word}@{entry.host}{port}/{entry.dbName}#{entry.tableName}"
    if entry.source is None:
        raise ConfigError(
            f"{where}: has no source; models that are read are csv, sqlite, mysql and image"
        )
    return _placed(entry.source, registry)


def _placed(path: str, registry: Path) -> str:
    places = [Path(path), registry.parent / path, registry.parent.parent / path]
    try:
        return str(next((place for place in places if place.exists()), places[0]))
    except (OSError, ValueError) as error:  # such as a name longer than a path can be
        raise ConfigError(
            f"data.registry={registry}: {one_line(path, 60)}: is no path ({one_line(error_text(error, 60))});"
            " correct it"
        ) from None
