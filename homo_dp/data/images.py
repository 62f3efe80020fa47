"""Images from .npz (x, y, optional id / user / party / split), MNIST-style IDX files (.gz too),
folders and zips.

Sizes that a file declares are checked against the bytes that are there before anything is
allocated, and nothing is unpickled.
"""

from __future__ import annotations

import gzip
import math
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from homo_dp.core.errors import DataError
from homo_dp.core.memory import too_large
from homo_dp.data.databases import is_database
from homo_dp.data.image_folders import is_image_folder, read_image_folder
from homo_dp.data.in_memory import table_in_memory
from homo_dp.data.readers import checked, reason

if TYPE_CHECKING:
    from os import PathLike

    import pandas as pd

_SIDE_ARRAYS = ("id", "user", "party", "split")
_NAMED = re.compile(r"(?P<what>x|y|id|user)(?:_(?P<split>train|test))?(?:_(?P<party>\w+))?\Z")
_CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency
_DEFLATE_LIMIT = 1032  # deflate cannot expand a byte to more than this many
_IDX_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


@dataclass(frozen=True)
class Images:
    """Pixels (rows, ...), channels first, and one frame row per image: id, label and whatever
    side arrays there are.
    """

    pixels: np.ndarray
    frame: pd.DataFrame
    holds_test: bool = False  # by the names of its arrays (x_test)
    left_out: int = 0  # rows of a folder or zip without a usable image; not among these
    misfit: str | None = None  # what is wrong with the first of them

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width); images without a channel axis have one channel."""
        sides = self.pixels.shape[1:]
        if len(sides) == 2:
            return (1, int(sides[0]), int(sides[1]))
        return (
            (int(sides[0]), int(sides[1]), int(sides[2]))
            if len(sides) == 3
            else (1, 1, math.prod(sides))
        )


def is_image_file(path: str | PathLike[str]) -> bool:
    """Whether a path holds images: a folder or zip, .npz by name, IDX by name or by its first
    bytes.
    """
    file = Path(path)
    return (
        is_image_folder(path) or file.suffix.lower() == ".npz" or (file.is_file() and _is_idx(file))
    )


def is_there(path: str) -> bool:
    """Whether a source of rows exists, as far as that is known without reading it: a database is
    asked later.
    """
    if table_in_memory(path) is not None:
        return True
    return (
        is_database(path)
        or Path(path.partition("#")[0] if is_image_folder(path) else path).exists()
    )


def read_images(
    path: str | PathLike[str], label: str = "y", known: tuple[int, ...] | None = None
) -> Images:
    """All images of a file; the label column of the frame is named `label` and absent if the
    file has no labels.

    With the shape `known`, a line of a folder or zip whose image cannot be used is left out, and
    there may be no lines at all (`read_image_folder`).
    """
    if is_image_folder(path):
        pixels, frame, left_out, misfit = read_image_folder(path, label, known)
        return Images(pixels, frame, left_out=left_out, misfit=misfit)
    file = checked(path)
    try:
        images = (
            _read_npz(file, label) if file.suffix.lower() == ".npz" else _read_idx_pair(file, label)
        )
    except DataError:
        raise
    except MemoryError:
        raise DataError(f"{file}: the images do not fit into memory; split the file") from None
    except Exception as error:
        # zipfile, zlib and numpy raise many kinds of errors for a damaged file, and the list
        # changes
        raise DataError(
            f"{file}: not a readable image file ({reason(error)}); write it again"
        ) from None
    if len(images.frame) == 0:
        raise DataError(f"{file}: there are no images in the file")
    return images


def _read_npz(file: Path, label: str) -> Images:
    import pandas as pd

    parts: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    with zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        plain = "x" in members
        for name, info in members.items():
            named = None if plain else _NAMED.match(name)
            if plain and name not in ("x", "y", *_SIDE_ARRAYS):
                continue
            if not plain and named is None:
                continue
            what = name if named is None else named["what"]
            group = ("", "") if named is None else (named["split"] or "", named["party"] or "")
            parts.setdefault(group, {})[what] = _read_member(archive, info, file)
    parts = {group: arrays for group, arrays in parts.items() if "x" in arrays}
    if not parts:
        raise DataError(
            f"{file}: has no array 'x' (or x_train, x_train_<party>); save it with np.savez(x=, y=)"
        )
    frames = []
    for (split, party), arrays in parts.items():
        frames.append(_side_frame(arrays, label, split, party, file))
    shapes = {arrays["x"].shape[1:] for arrays in parts.values()}
    if len(shapes) > 1:
        raise DataError(f"{file}: images have different shapes: {sorted(shapes)}")
    pixels = [arrays["x"] for arrays in parts.values()]
    frame = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    if "id" not in frame.columns:
        frame.insert(0, "id", np.arange(len(frame)))
    pixel_block = pixels[0] if len(pixels) == 1 else np.concatenate(pixels)
    return Images(
        _channels_first(pixel_block), frame, holds_test=any(split == "test" for split, _ in parts)
    )


def _channels_first(pixels: np.ndarray) -> np.ndarray:
    """Images of 1, 3 or 4 channels that stand last, as most image libraries have them, with the
    channels first.
    """
    last = pixels.ndim == 4 and pixels.shape[3] in _CHANNELS and pixels.shape[1] not in _CHANNELS
    return np.moveaxis(pixels, 3, 1) if last else pixels


def _side_frame(
    arrays: dict[str, np.ndarray], label: str, split: str, party: str, file: Path
) -> pd.DataFrame:
    import pandas as pd

    pixels = arrays["x"]
    if 0 in pixels.shape[1:]:
        raise DataError(
            f"{file}: array 'x' has shape {pixels.shape}: its images have no pixels; save it again"
        )
    if pixels.ndim < 2 or pixels.dtype.kind not in "buif":
        raise DataError(
            f"{file}: array 'x' has shape {pixels.shape} and type {pixels.dtype}; needs images of "
            "numbers"
        )
    side: dict[str, object] = {}
    for name in ("id", "user", "party", "split", "y"):
        if name in arrays:
            if arrays[name].shape not in ((len(pixels),), (len(pixels), 1)):
                raise DataError(
                    f"{file}: array {name!r} has shape {arrays[name].shape}, 'x' has {len(pixels)} "
                    "images"
                )
            side[label if name == "y" else name] = arrays[name].reshape(-1)
    if party:
        side["party"] = [party] * len(pixels)
    if split:
        side["split"] = [split] * len(pixels)
    return pd.DataFrame(side, index=pd.RangeIndex(len(pixels)))


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: Path) -> np.ndarray:
    if info.file_size > _DEFLATE_LIMIT * info.compress_size + 1024:
        raise DataError(
            f"{file}: array {info.filename!r} declares an impossible size; the file is damaged"
        )
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise DataError(
                f"{file}: array {info.filename!r} has format {version}; save it with np.savez"
            )
        shape, _, dtype = readers[version](stream)
        if dtype.hasobject:
            raise DataError(
                f"{file}: array {info.filename!r} holds Python objects; save numbers or plain text"
            )
        wanted = math.prod(shape) * dtype.itemsize
        if any(side < 0 for side in shape) or wanted > info.file_size:
            raise DataError(
                f"{file}: array {info.filename!r} declares shape {shape}, more than the file holds"
            )
        if 0 in shape[1:] or dtype.itemsize == 0:
            raise DataError(
                f"{file}: array {info.filename!r} has shape {shape}: it holds no values; save it "
                "again"
            )
        if (problem := too_large(wanted)) is not None:
            raise DataError(f"{file}: array {info.filename!r}: {problem}; split the file")
    with archive.open(info) as stream:
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _read_idx_pair(file: Path, label: str) -> Images:
    import pandas as pd

    pixels = _read_idx(file)
    if pixels.ndim < 2:
        raise DataError(
            f"{file}: an IDX file of images is needed, this one has shape {pixels.shape}"
        )
    frame = pd.DataFrame({"id": np.arange(len(pixels))})
    beside = _label_file(file)
    if beside is not None:
        labels = _read_idx(beside)
        if labels.shape != (len(pixels),):
            raise DataError(
                f"{beside}: has {labels.shape[0]} labels for the {len(pixels)} images of {file}"
            )
        frame[label] = labels
    return Images(pixels, frame)


def _label_file(file: Path) -> Path | None:
    """`train-labels-idx1-ubyte` beside `train-images-idx3-ubyte`, zipped or not."""
    name = file.name.replace("images", "labels").replace("idx3", "idx1")
    if name == file.name:
        return None
    other = name.removesuffix(".gz") if name.endswith(".gz") else name + ".gz"
    return next(
        (file.with_name(each) for each in (name, other) if file.with_name(each).is_file()), None
    )


def _read_idx(file: Path) -> np.ndarray:
    with _opened(file) as stream:
        start = stream.read(4)
        if (
            len(start) < 4
            or start[:2] != b"\0\0"
            or start[2] not in _IDX_DTYPES
            or not 1 <= start[3] <= 4
        ):
            raise DataError(f"{file}: does not start like an IDX file")
        dtype, dimensions = np.dtype(_IDX_DTYPES[start[2]]), start[3]
        sizes = stream.read(4 * dimensions)
        if len(sizes) < 4 * dimensions:
            raise DataError(f"{file}: the IDX header is cut off")
        shape = struct.unpack(f">{dimensions}I", sizes)
        if 0 in shape:
            raise DataError(f"{file}: declares shape {shape}: there are no images in the file")
        wanted = math.prod(shape) * dtype.itemsize
        limit = file.stat().st_size * (_DEFLATE_LIMIT if _is_gzip(file) else 1)
        if wanted > limit:
            raise DataError(
                f"{file}: declares shape {shape}, {wanted} bytes, more than the file can hold"
            )
        if (problem := too_large(wanted)) is not None:
            raise DataError(f"{file}: declares shape {shape}: {problem}; split the file")
        raw = stream.read(wanted)
        if len(raw) < wanted:
            raise DataError(
                f"{file}: declares shape {shape}, {wanted} bytes, but holds {len(raw)}; copy it "
                "again"
            )
        if stream.read(1):  # reading past the end also makes gzip check its checksum
            raise DataError(
                f"{file}: holds more bytes than its shape {shape} says; the file is damaged"
            )
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


def _is_idx(file: Path) -> bool:
    try:
        with _opened(file) as stream:
            start = stream.read(4)
    except (OSError, EOFError, ValueError, zlib.error):
        return False
    return (
        len(start) == 4 and start[:2] == b"\0\0" and start[2] in _IDX_DTYPES and 1 <= start[3] <= 4
    )


def _is_gzip(file: Path) -> bool:
    with file.open("rb") as raw:
        return raw.read(2) == b"\x1f\x8b"


def _opened(file: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.GzipFile(file)) if _is_gzip(file) else file.open("rb")
