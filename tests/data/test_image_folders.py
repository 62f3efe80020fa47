"""Folders and zips of image files with annotations."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from homo_dp.core.errors import DataError
from homo_dp.data.image_folders import is_image_folder
from homo_dp.data.images import is_image_file, read_images


def picture(value: int, mode: str = "L", side: int = 6) -> bytes:
    made = io.BytesIO()
    Image.new(mode, (side, side), value if mode == "L" else (value, 0, 255)).save(made, "png")
    return made.getvalue()


def table_of(names: list[str]) -> str:
    return "file_name,y\n" + "".join(f"{name},{at % 2}\n" for at, name in enumerate(names))


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    names = [f"{at}.png" for at in range(4)]
    with zipfile.ZipFile(tmp_path / "client1.zip", "w") as archive:
        for at, name in enumerate(names):
            archive.writestr(f"train/{name}", picture(10 * at))
    (tmp_path / "client1_annotations.csv").write_text(table_of(names))
    return tmp_path / "client1.zip"


def test_a_zip_with_annotations_beside_it(zipped: Path) -> None:
    assert is_image_file(zipped)
    images = read_images(zipped, label="outcome")
    assert images.shape == (1, 6, 6)
    assert images.pixels[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert images.frame["outcome"].tolist() == ["0", "1", "0", "1"]
    assert images.frame["id"].tolist() == images.frame["file_name"].tolist()


def test_a_folder_with_named_annotations_and_colours(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    for at in range(2):
        (tmp_path / "scans" / f"{at}.png").write_bytes(picture(at, "RGB"))
    (tmp_path / "labels.csv").write_text(table_of(["0.png", "1.png"]))
    assert not is_image_folder(tmp_path / "scans")  # nothing says that it is one
    assert not is_image_folder("."), "the folder itself has no name"
    images = read_images(f"{tmp_path}/scans#{tmp_path}/labels.csv")
    assert images.pixels.shape == (2, 3, 6, 6)
    assert np.array_equal(images.pixels[:, 2], np.full((2, 6, 6), 255))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("gone", "is not there; correct the table"),
        ("text", "is not a readable image"),
        ("larger", "resize them"),
        ("column", "no column 'file_name'"),
        ("outside", "is not there; correct the table"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tmp_path: Path, damage: str, words: str) -> None:
    folder = tmp_path / "scans"
    folder.mkdir()
    (folder / "0.png").write_bytes(picture(1))
    second = {"text": b"no image", "larger": picture(1, side=9)}.get(damage, picture(1))
    name = {"gone": "9.png", "outside": "../secret.png"}.get(damage, "1.png")
    (folder / "1.png").write_bytes(second)
    (tmp_path / "secret.png").write_bytes(picture(1))
    table = table_of(["0.png", name])
    (folder / "annotations.csv").write_text(
        table.replace("file_name", "file") if damage == "column" else table
    )
    with pytest.raises(DataError, match=words) as refused:
        read_images(folder)
    assert "\n" not in str(refused.value)


def declaring(width: int, height: int) -> bytes:
    """A PNG of some bytes whose header declares so many pixels of three channels."""
    made = picture(0, "RGB")
    header = b"IHDR" + struct.pack(">II", width, height) + made[24:29]
    return made[:12] + header + struct.pack(">I", zlib.crc32(header)) + made[33:]


def test_pixels_that_a_header_declares_are_bounded_before_they_are_decoded(tmp_path: Path) -> None:
    """A zip of 1.5 KB took 2.3 GB."""
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w") as archive:
        archive.writestr("0.png", declaring(13_000, 13_000))
        archive.writestr("annotations.csv", table_of(["0.png"]))
    with pytest.raises(DataError, match="13000 x 13000 pixels of 3 channels: at most"):
        read_images(tmp_path / "bomb.zip")


def test_other_formats_than_those_of_raster_images_are_not_opened(tmp_path: Path) -> None:
    """A decoder of EPS starts another program."""
    made = io.BytesIO()
    Image.new("RGB", (4, 4)).save(made, "eps")
    with zipfile.ZipFile(tmp_path / "scans.zip", "w") as archive:
        archive.writestr("0.eps", made.getvalue())
        archive.writestr("annotations.csv", table_of(["0.eps"]))
    with pytest.raises(DataError, match="not a readable image"):
        read_images(tmp_path / "scans.zip")


@pytest.mark.parametrize(
    "annotations",
    [b"", b"\xff\xfe\xfa", b'file_name,y\n"0.png', b"file_name,y\n0.png,1,2,3\n0.png\n", b"\0\0"],
)
def test_annotations_in_a_zip_are_refused_in_our_words(tmp_path: Path, annotations: bytes) -> None:
    """They ended in UnicodeDecodeError, ParserError or EmptyDataError."""
    with zipfile.ZipFile(tmp_path / "scans.zip", "w") as archive:
        archive.writestr("0.png", picture(1))
        archive.writestr("annotations.csv", annotations)
    with pytest.raises(DataError) as refusal:
        read_images(tmp_path / "scans.zip")
    assert str(tmp_path / "scans.zip") in str(refusal.value)


def test_annotations_in_a_zip_are_bounded_before_they_are_parsed(tmp_path: Path) -> None:
    """A zip of 233 KB took 15 s to read 60 million lines."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("annotations.csv", b"file_name,y\n" + b"a,0\n" * (1 << 25))
    with pytest.raises(DataError, match="has more than 67108864 bytes"):
        read_images(tmp_path / "a.zip")


def test_a_damaged_zip_is_refused_in_our_words(tmp_path: Path) -> None:
    """Some bytes of a zip ended in zlib.error or IndexError."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0.png", picture(1))
        archive.writestr("annotations.csv", table_of(["0.png"]))
    path = tmp_path / "scans.zip"
    for at in range(len(whole.getvalue())):
        data = bytearray(whole.getvalue())
        data[at] ^= 0xFF
        path.write_bytes(data)
        with contextlib.suppress(DataError):
            read_images(path)
