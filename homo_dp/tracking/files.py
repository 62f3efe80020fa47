"""Text files that appear whole: strict JSON, and CSV that may be gzipped by its extension."""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from homo_dp.core.files import atomic_write, write_whole


def json_text(value: Any) -> str:
    """Strict JSON: NaN and infinity become null, numpy and torch numbers plain ones; keys keep
    their order.

    >>> json_text({"loss": float("nan"), "acc": 1.0})
    '{\\n  "loss": null,\\n  "acc": 1.0\\n}\\n'
    """
    from homo_dp.models.metrics import json_safe

    return json.dumps(json_safe(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: str | Path, value: Any, name: str = "file") -> None:
    """Write strict JSON to ``path``, whole or not at all; ``name`` is how an error calls the
    path.
    """
    write_whole(path, json_text(value).encode(), name)


@contextmanager
def compressed_write(path: str | Path, name: str = "file") -> Iterator[BinaryIO]:
    """A file that appears at ``path`` when the block ends well, gzipped where the path ends in
    ``.gz``.
    """
    with atomic_write(path, name) as file:
        if not str(path).lower().endswith(".gz"):
            yield file
            return
        # No name and no time in the header: the same rows give the same bytes.
        with gzip.GzipFile(
            filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0
        ) as packed:
            yield cast(BinaryIO, packed)


def companion(indicator_file: str, ending: str) -> Path:
    """The path of a file that goes with the indicators: ``out/indicator.json`` ->
    ``out/indicator_config.yaml``.
    """
    path = Path(indicator_file)
    return path.with_name(f"{path.stem}_{ending}")
