"""Image files: layouts that are read, and crafted or cut files that are refused before memory is
taken.
"""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homo_dp.core.errors import DataError
from homo_dp.data.images import is_image_file, read_images

PIXELS = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
LABELS = np.array([0, 1, 2, 1, 0], dtype=np.uint8)


def npz(folder: Path, name: str = "t.npz", **arrays: Any) -> Path:
    path = folder / name
    np.savez_compressed(path, **arrays)
    return path


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_plain_npz(tmp_path: Path) -> None:
    images = read_images(
        npz(tmp_path, x=PIXELS, y=LABELS, user=np.arange(5), unused=np.ones(2)), label="digit"
    )
    assert images.shape == (1, 4, 3)
    assert np.array_equal(images.pixels, PIXELS)
    assert list(images.frame.columns) == ["id", "user", "digit"]


def test_npz_with_parts_in_names(tmp_path: Path) -> None:
    path = npz(
        tmp_path,
        x_train_a=PIXELS,
        y_train_a=LABELS,
        x_test_a=PIXELS[:1],
        y_test_a=LABELS[:1],
        x_train_b=PIXELS[:2],
    )
    with pytest.raises(DataError, match=r"row|label|y") as caught:
        read_images(npz(tmp_path, "u.npz", x=PIXELS, y=LABELS[:2]))
    assert "array 'y' has shape (2,), 'x' has 5 images" in str(caught.value)
    images = read_images(path)
    assert images.frame["party"].tolist() == ["a"] * 6 + ["b"] * 2
    assert images.frame["split"].tolist() == ["train"] * 5 + ["test"] + ["train"] * 2
    keras = read_images(
        npz(tmp_path, "k.npz", x_train=PIXELS, y_train=LABELS, x_test=PIXELS, y_test=LABELS)
    )
    assert keras.frame["split"].value_counts().to_dict() == {"train": 5, "test": 5}


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_may_stand_last(tmp_path: Path, channels: int) -> None:
    last = np.arange(2 * 6 * 5 * channels).reshape(2, 6, 5, channels)
    images = read_images(npz(tmp_path, x=last))
    assert images.shape == (channels, 6, 5)
    assert np.array_equal(images.pixels, last.transpose(0, 3, 1, 2))
    first = read_images(npz(tmp_path, "first.npz", x=last.transpose(0, 3, 1, 2)))
    assert np.array_equal(first.pixels, images.pixels)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_with_labels_beside(tmp_path: Path, zipped: bool) -> None:
    end, pack = (".gz", gzip.compress) if zipped else ("", bytes)
    path = tmp_path / f"train-images-idx3-ubyte{end}"
    path.write_bytes(pack(idx(PIXELS)))
    (tmp_path / f"train-labels-idx1-ubyte{end}").write_bytes(pack(idx(LABELS)))
    assert is_image_file(path)
    images = read_images(path)
    assert np.array_equal(images.pixels, PIXELS)
    assert images.frame["y"].tolist() == LABELS.tolist()


def test_idx_without_labels_and_tables_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "pictures"
    path.write_bytes(idx(PIXELS))
    assert list(read_images(path).frame.columns) == ["id"]
    table = tmp_path / "t.csv"
    table.write_text("a,b\n1,2\n")
    assert not is_image_file(table)
    assert not is_image_file(tmp_path)


def npy_header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def crafted(folder: Path, content: bytes) -> Path:
    path = folder / "t.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    return path


def test_a_declared_size_is_checked_before_memory_is_taken(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"declares shape .* more than the file holds"):
        read_images(crafted(tmp_path, npy_header((10**6, 10**6)) + b"\0" * 100))
    huge = tmp_path / "huge-images"
    huge.write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 2**31, 28) + b"\0" * 50)
    with pytest.raises(DataError, match="more than the file can hold"):
        read_images(huge)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="holds Python objects"):
        read_images(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04 no archive", "not a readable image file"),
        (b"x,y\n1,2\n", "not a readable image file"),
        (b"", "empty"),
    ],
)
def test_npz_that_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_images(path)


def test_other_wrong_files(tmp_path: Path) -> None:
    whole = npz(tmp_path, x=PIXELS, y=LABELS).read_bytes()
    for cut in range(1, len(whole), 37):
        (tmp_path / "cut.npz").write_bytes(whole[:cut])
        with pytest.raises(DataError):
            read_images(tmp_path / "cut.npz")
    with pytest.raises(DataError, match="has no array 'x'"):
        read_images(npz(tmp_path, pictures=PIXELS))
    with pytest.raises(DataError, match="needs images of numbers"):
        read_images(npz(tmp_path, x=np.array(["a", "b"])))
    with pytest.raises(DataError, match="different shapes"):
        read_images(npz(tmp_path, x_train=PIXELS, x_test=PIXELS[:, :2]))
    with pytest.raises(DataError, match="no images"):
        read_images(npz(tmp_path, x=PIXELS[:0]))
    short = tmp_path / "short-images"
    short.write_bytes(idx(PIXELS)[:-3])
    with pytest.raises(DataError, match="declares shape"):
        read_images(short)
    zipped = tmp_path / "cut-images.gz"
    zipped.write_bytes(gzip.compress(idx(PIXELS))[:-6])
    with pytest.raises(DataError):
        read_images(zipped)
    pair = tmp_path / "a-images-idx3"
    pair.write_bytes(idx(PIXELS))
    (tmp_path / "a-labels-idx1").write_bytes(idx(LABELS[:3]))
    with pytest.raises(DataError, match="has 3 labels for the 5 images"):
        read_images(pair)
