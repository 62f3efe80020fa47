"""Files that others wrote or can write to: image zips, tables, registries, keys, what runs left."""

from __future__ import annotations

import functools
import gzip
import io
import json
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path

import pandas as pd
from PIL import Image

from homo_dp.compat.primihub.registry import read_registry
from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.data.image_folders import read_image_folder
from homo_dp.data.readers import read_table
from homo_dp.runs.approval import ASKED, read_question
from homo_dp.runs.run_status import rows, status
from homo_dp.runs.signed_report import check_report, sign_report, signature_path
from homo_dp.status import page
from homo_dp.tracking.report.evidence import audits_in
from homo_dp.transport.keys import new_key_pair, read_key_pair, write_key_pair
from homo_dp.transport.revocation import RevokedKeys
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import _file
from tests.fuzz.targets_messages import OTHER, OWN

ANNOTATIONS = b"file_name,y\na.png,0\nb/b.jpg,1\n"
REGISTRY = b"""datasets:
- {description: t, model: csv, source: data/t.csv}
- {description: i, model: image, image_dir: i.zip, annotations_file: i.csv}
- {description: s, model: sqlite, source: s.sqlite, table_name: t}
- {description: m, model: mysql, host: h, port: 3306, username: u, password: p, dbName: d, tableName: t}
"""
ASKED_OF = {"run": "r", "plan": "ab" * 32, "since": 1.0, "given_away": {"rounds": 2, "rows": "no"}}
EVENT = {"time": "2026-01-02T03:04:05.678Z", "level": "INFO", "run": "r", "round": 1}
RUN_FILES = ("asked.json", "events.jsonl", "rounds.jsonl", "plan.safetensors")
AUDIT = {
    "attack": "canary",
    "observer": "aggregator",
    "mechanism": "dp_sgd",
    "claimed_epsilon": 2.0,
    "lower_bound": 0.5,
    "point_estimate": 0.7,
    "confidence": 0.95,
    "delta": 1e-5,
    "runs": 100,
    "refuted": False,
}


def image(kind: str, *, size: tuple[int, int] = (4, 3)) -> bytes:
    """An image of that kind."""
    file = io.BytesIO()
    Image.new("L" if kind == "PNG" else "RGB", size, 7).save(file, kind)
    return file.getvalue()


def zipped(names: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip with these files."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return file.getvalue()


def huge_png() -> bytes:
    """An image that declares 13,000 x 13,000 pixels in 800 bytes, once it is in a zip."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 13_000, 13_000, 8, 0, 0, 0, 0)
    body = b"IDAT" + zlib.compress(bytes(13_001 * 13_000), 9)
    chunks = (head, body, b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in chunks
    )


def fuzz_image_zip(data: bytes) -> None:
    """A zip with images and their annotations, as the data of a party."""
    with _file(data, "images.zip") as path:
        read_image_folder(path, "y")


def fuzz_image(data: bytes) -> None:
    """An image in a zip that is whole."""
    with _file(zipped({"a": data, "annotations.csv": b"file_name,y\na,0\n"}), "i.zip") as path:
        read_image_folder(path, "y")


def fuzz_annotations(data: bytes) -> None:
    """The annotations of a folder of images."""
    with _file(data, "annotations.csv") as path:
        path.with_name("a.png").write_bytes(image("PNG"))
        read_image_folder(path.parent, "y")


def fuzz_gzip(data: bytes) -> None:
    """A compressed table."""
    with _file(data, "table.csv.gz") as path:
        read_table(path)


def fuzz_parquet(data: bytes) -> None:
    """A table in Parquet."""
    with _file(data, "table.parquet") as path:
        read_table(path)


def fuzz_registry(data: bytes) -> None:
    """PrimiHub's registry of data sets."""
    with _file(data, "node.yaml") as path:
        read_registry([str(path)])


def fuzz_approval(data: bytes) -> None:
    """The question about a plan that waits for a party's operator."""
    with _file(data, ASKED) as path:
        read_question(path.parent)


def fuzz_status(data: bytes) -> None:
    """The folder of a run as `status` reads it: four files with zero bytes between them."""
    pieces = data.split(b"\0\0\n", len(RUN_FILES) - 1)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / "lock").touch()
        for name, content in zip(RUN_FILES, pieces, strict=False):
            (run / name).write_bytes(content)
        for config in _both_sides():
            found = status(_in_folder(config, folder))
            rows(found)
            page(found)


def fuzz_audit(data: bytes) -> None:
    """The audit beside the outputs that a report is made of."""
    with _file(data, "audit.json") as path:
        audits_in(path.parent)


def fuzz_report_signature(data: bytes) -> None:
    """The signature of a report."""
    with _file(b"a report", "report.html") as path:
        signature_path(str(path)).write_bytes(data)
        check_report(str(path), OTHER.public)


def fuzz_private_key(data: bytes) -> None:
    """The file of a private key."""
    with _file(data, "bank_a.key") as path:
        path.chmod(0o600)
        read_key_pair(path)


def fuzz_revoked_keys(data: bytes) -> None:
    """The list of keys that are trusted no more."""
    with _file(data, "revoked.txt") as path:
        RevokedKeys(path).check(OTHER.public)


@functools.cache
def _both_sides() -> tuple[Config, Config]:
    party = {"party.name": "bank_a"}
    lines = {
        "federation.parties": {"bank_a": OTHER.public.line, "b": new_key_pair("b").public.line}
    }
    return load_config(None, party), load_config(None, lines)


def _in_folder(config: Config, folder: str) -> Config:
    """The config with its states in a folder."""
    own = config.party.model_copy(update={"state_dir": folder})
    federation = config.federation.model_copy(update={"state_dir": folder})
    privacy = config.privacy.model_copy(update={"ledger": f"{folder}/ledger.sqlite"})
    return config.model_copy(update={"party": own, "federation": federation, "privacy": privacy})


def _parquet() -> bytes:
    file = io.BytesIO()
    pd.DataFrame({"id": [1, 2], "x": [0.5, None], "y": ["a", "b"]}).to_parquet(file, index=False)
    return file.getvalue()


def _private_key() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_key_pair(OTHER, Path(folder))[0].read_bytes()


def _signature() -> bytes:
    with _file(b"a report", "report.html") as path:
        return sign_report(str(path), OTHER).read_bytes()


def _run_files() -> bytes:
    event = json.dumps({**EVENT, "party": "bank_a", "event": "replied"}).encode()
    row = {"round": 1, "missing": ["b"], "replied": ["bank_a"], "epsilon": 1.5}
    pieces = [
        json.dumps(ASKED_OF).encode(),
        event + b"\n" + event,
        b"\n" + json.dumps(row).encode() + b"\n",
        seeds()["state"],
    ]
    return b"\0\0\n".join(pieces)


_HUGE = {"a.png": huge_png(), "annotations.csv": b"file_name,y\na.png,0\n"}
_GREY = {"a.png": image("PNG"), "b/b.jpg": image("PNG"), "annotations.csv": ANNOTATIONS}

SEEDS = {
    "fuzz_image_zip": [
        zipped(_GREY),
        zipped(_GREY, zipfile.ZIP_DEFLATED),
        zipped(_HUGE, zipfile.ZIP_DEFLATED),
    ],
    "fuzz_image": [image(kind) for kind in ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")],
    "fuzz_annotations": [b"file_name,y\na.png,0\na.png,1\n"],
    "fuzz_gzip": [gzip.compress(b"id,x,y\n1,0.5,a\n2,,b\n", mtime=0)],
    "fuzz_parquet": [_parquet()],
    "fuzz_registry": [REGISTRY],
    "fuzz_approval": [json.dumps(ASKED_OF).encode()],
    "fuzz_status": [_run_files()],
    "fuzz_audit": [json.dumps(AUDIT).encode()],
    "fuzz_report_signature": [_signature()],
    "fuzz_private_key": [_private_key()],
    "fuzz_revoked_keys": [f"{OWN.public.line}\n{'0123 4567 ' * 4} # lost\n".encode()],
}
