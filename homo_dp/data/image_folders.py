"""Images as single files: a folder or zip of them, and a table ``file_name,y`` with one line for
each.

``data.files.Bob=client1.zip`` takes the annotations from ``client1_annotations.csv`` beside it, as
PrimiHub lays them out, or from an ``annotations.csv`` inside; ``client1.zip#labels.csv`` names
another table. Only files that the table lists are opened; nothing is unpacked to disk.
"""

from __future__ import annotations

import io
import math
import tempfile
import zipfile
from collections.abc import Callable
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from homo_dp.core.errors import DataError
from homo_dp.core.memory import too_large
from homo_dp.data.readers import read_table, reason

if TYPE_CHECKING:
    import pandas as pd

FILE_NAME, ANNOTATIONS = "file_name", "annotations.csv"
_LARGEST_FILE = 1 << 28  # bytes of one image
_LARGEST_TABLE = 1 << 26  # bytes of the annotations in a zip or folder
_MOST_NUMBERS = (
    1 << 26
)  # pixels times channels of one image, which its file declares in a few bytes
# Raster formats whose decoders are in Pillow itself: others, such as EPS, start programs.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


def is_image_folder(path: str | PathLike[str]) -> bool:
    """Whether a path is a zip, or a folder with annotations (with ``#TABLE`` behind it or not)."""
    text, _, named = str(path).partition("#")
    place = Path(text)
    if place.is_dir():
        return bool(named) or any(file.is_file() for file in (place / ANNOTATIONS, _beside(place)))
    return place.suffix.lower() == ".zip"


Shape = tuple[int, ...]  # channels, height, width


class ImageFolder(NamedTuple):
    """Pixels (rows, channels, height, width) and the annotations of the same rows."""

    pixels: np.ndarray
    frame: pd.DataFrame
    left_out: int = 0  # lines of the annotations without a usable image
    misfit: str | None = None  # what is wrong with the first of them


def read_image_folder(
    path: str | PathLike[str], label: str, known: Shape | None = None
) -> ImageFolder:
    """All images that the annotations list; the column ``y`` becomes ``label``.

    Args:
        path: the folder or zip.
        label: the name of the label column.
        known: the shape that each image must have. A line whose image is not there, is not
            readable or has another shape is then left out; None: that of the first, and such a
            line is refused.

    Raises:
        DataError: the source cannot be read, or a line is refused.
    """
    place, _, named = str(path).partition("#")
    if not Path(place).exists():
        raise DataError(f"{place}: no such folder or zip; check the path")
    try:
        if Path(place).is_dir():
            return _read(place, named, label, _folder(Path(place)), known)
        with zipfile.ZipFile(place) as archive:
            return _read(place, named, label, _zip(archive), known)
    except DataError:
        raise
    except MemoryError:
        raise DataError(f"{place}: the images do not fit into memory; split it") from None
    except Exception as error:  # zipfile and zlib raise many kinds of errors on damaged files
        raise DataError(f"{place}: cannot be read ({reason(error)}); write it again") from None


Opened = Callable[[str], bytes]  # the bytes of a file by its name; KeyError if there is none


def _folder(root: Path) -> Opened:
    def read(name: str) -> bytes:
        file = root / name
        if not file.resolve().is_relative_to(root.resolve()) or not file.is_file():
            raise KeyError(name)
        if file.stat().st_size > _LARGEST_FILE:
            raise DataError(f"{file}: is larger than {_LARGEST_FILE} bytes; no image of a table is")
        return file.read_bytes()

    return read


def _zip(archive: zipfile.ZipFile) -> Opened:
    """By the whole name, or by its last part: zips often hold one folder."""
    members = {info.filename: info for info in archive.infolist() if not info.is_dir()}
    members = {PurePosixPath(name).name: info for name, info in members.items()} | members

    def read(name: str) -> bytes:
        info = members[name]
        if info.file_size > _LARGEST_FILE:
            raise DataError(
                f"{archive.filename}: {name!r} declares {info.file_size} bytes; no image of a "
                "table has so many"
            )
        return archive.read(info)

    return read


def _read(place: str, named: str, label: str, opened: Opened, known: Shape | None) -> ImageFolder:
    frame = _annotations(place, named, opened, may_be_empty=known is not None)
    if FILE_NAME not in frame.columns:
        raise DataError(
            f"{place}: its annotations have no column {FILE_NAME!r}; they need {FILE_NAME},y"
        )
    if label != "y" and "y" in frame.columns and label not in frame.columns:
        frame = frame.rename(columns={"y": label})
    if "id" not in frame.columns:
        frame.insert(0, "id", frame[FILE_NAME])
    pixels = None if known is None else _room(place, len(frame), known)
    there, misfit = np.ones(len(frame), dtype=bool), None
    for at, name in enumerate(frame[FILE_NAME].astype(str)):
        try:
            image = _image(place, name, opened, None if pixels is None else pixels.shape[1:])
        except DataError as error:
            if known is None:
                raise
            there[at], misfit = False, misfit or str(error)
            continue
        if pixels is None:
            pixels = _room(place, len(frame), image.shape)
        pixels[at] = image
    if pixels is None:
        raise DataError(f"{place}: its annotations have no rows")
    if misfit is None:
        return ImageFolder(pixels, frame)
    return ImageFolder(pixels[there], frame[there], int((~there).sum()), misfit)


def _room(place: str, count: int, shape: Shape) -> np.ndarray:
    if (problem := too_large(count * math.prod(shape))) is not None:
        raise DataError(f"{place}: {problem}; split it")
    return np.empty((count, *shape), dtype=np.uint8)


def _image(place: str, name: str, opened: Opened, shape: Shape | None) -> np.ndarray:
    """One image, of the shape of the others."""
    try:
        image = _decoded(opened(name))
    except KeyError:
        raise DataError(
            f"{place}: {name!r} of the annotations is not there; correct the table"
        ) from None
    except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged files
        raise DataError(
            f"{place}: {name!r} is not a readable image ({reason(error)}); remove its line"
        ) from None
    if shape is not None and image.shape != shape:
        raise DataError(
            f"{place}: {name!r} has shape {image.shape}, the others have {tuple(shape)}; "
            "resize them"
        )
    return image


def _annotations(place: str, named: str, opened: Opened, *, may_be_empty: bool) -> pd.DataFrame:
    folder = Path(place)
    beside = Path(named) if named else _beside(folder)
    if named and not beside.is_file() and (folder.parent / named).is_file():
        beside = folder.parent / named
    if named or beside.is_file():
        return read_table(beside, may_be_empty=may_be_empty)
    try:
        content = opened(ANNOTATIONS)
    except KeyError:
        raise DataError(
            f"{place}: has no annotations; put {beside.name} beside it ({FILE_NAME},y), or name "
            f"them: {place}#TABLE.csv"
        ) from None
    if len(content) > _LARGEST_TABLE:
        raise DataError(
            f"{place}: {ANNOTATIONS} has more than {_LARGEST_TABLE} bytes; put {beside.name} "
            "beside it instead"
        )
    with tempfile.TemporaryDirectory() as unpacked:
        table = Path(unpacked) / ANNOTATIONS
        table.write_bytes(content)
        try:
            return read_table(table, may_be_empty=may_be_empty)
        except DataError as error:  # which names the file that is gone in a moment
            raise DataError(str(error).replace(str(table), f"{place}: {ANNOTATIONS}")) from None


def _beside(place: Path) -> Path:
    return place.parent / f"{place.stem}_{ANNOTATIONS}"


def _decoded(content: bytes) -> np.ndarray:
    """Grey images as one channel, all others as red, green and blue; channels first."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
        mode = "L" if image.mode in ("L", "1") else "RGB"
        width, height = image.size
        if width * height * len(mode) > _MOST_NUMBERS:
            raise DataError(
                f"{width} x {height} pixels of {len(mode)} channels: at most {_MOST_NUMBERS} "
                "numbers an image are read"
            )
        array = np.asarray(image if image.mode == mode else image.convert(mode))
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)
