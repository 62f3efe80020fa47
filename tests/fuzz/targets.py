"""One function a reader of foreign bytes: it may refuse them with our errors, and must raise
nothing else.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from homo_dp.compat.load import load
from homo_dp.compat.params import parse_params
from homo_dp.data.describe import draft
from homo_dp.data.images import is_image_file, read_images
from homo_dp.federation.sessions.aggregator_session import RunState
from homo_dp.federation.sessions.crash_state import RowLog, read_state
from homo_dp.federation.sessions.ledger_heads import LedgerHeads
from homo_dp.models.files import load_model
from homo_dp.report import findings
from homo_dp.tracking.report.contents import Checks, report_page
from homo_dp.tracking.report.run_files import find_record
from tests.data.rows_by_themselves import from_csv, one_row_changes_another, settings_of
from tests.fuzz.seeds import seeds


@contextlib.contextmanager
def _file(data: bytes, name: str) -> Iterator[Path]:
    """A file that holds the bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield path


def fuzz_yaml(data: bytes) -> None:
    """A configuration in YAML."""
    with _file(data, "config.yaml") as path:
        load(path)


def fuzz_json(data: bytes) -> None:
    """A configuration or PrimiHub task in JSON."""
    with _file(data, "task.json") as path:
        load(path, parse_params(["data.files.a=a.csv,data.files.b=b.csv"]).items)


def fuzz_params(data: bytes) -> None:
    """The text of `--params`."""
    load(None, parse_params([data.decode("utf-8", "replace")]).items)


def fuzz_heads(data: bytes) -> None:
    """The book of heads."""
    with _file(data, "heads.json") as path:
        LedgerHeads(path).take("a", {"count": 1, "hash": "b" * 64})


def fuzz_state(data: bytes) -> None:
    """A state file of a process."""
    with _file(data, "state.safetensors") as path:
        read_state(path)


def fuzz_run_state(data: bytes) -> None:
    """What an aggregator goes on from; the same bytes stand for its plan and its state."""
    with _file(data, "state.safetensors") as path:
        path.with_name("plan.safetensors").write_bytes(data)
        RunState(path.parent).load()


def fuzz_rows(data: bytes) -> None:
    """The rows of all rounds."""
    with _file(data, "rounds.jsonl") as path:
        RowLog(path).load(10)


def fuzz_indicators(data: bytes) -> None:
    """An indicators file, and the report that is made of it."""
    with _file(data, "indicator.json") as path:
        record = find_record(path)
        report_page(record, Checks(findings(record, None)))


def fuzz_folder(data: bytes) -> None:
    """An output folder with an indicators file and a ledger extract, cut apart at the first zero
    byte.
    """
    first, _, second = data.partition(b"\0")
    with _file(first, "indicator.json") as path:
        path.with_name("indicator_ledger.json").write_bytes(second)
        record = find_record(path)
        report_page(record.published(), Checks(findings(record, None)))


def fuzz_idx(data: bytes) -> None:
    """An image file in the IDX format."""
    with _file(data, "images-idx3-ubyte") as path:
        is_image_file(path)
        read_images(path)


def fuzz_npz(data: bytes) -> None:
    """An image file of numpy."""
    with _file(data, "images.npz") as path:
        read_images(path)


def fuzz_model(data: bytes) -> None:
    """A model file."""
    with _file(data, "model.safetensors") as path:
        load_model(path)


def fuzz_csv(data: bytes) -> None:
    """A table, as `describe` reads it."""
    with _file(data, "table.csv") as path:
        draft(path)


def fuzz_cells(data: bytes) -> None:
    """The cells of a table: no row may change how another is read."""
    first, *lines = data.decode("utf-8", "replace").replace("\r", " ").split("\n")
    rows = []
    for serial, line in enumerate(lines[:3]):
        cells = [*line.split("\t"), "", "", "", "", ""]
        named = dict(zip(("number", "word", "code", "day", "user"), cells, strict=False))
        rows.append({"serial": str(serial), "count": "1", "y": "0", "side": "train", **named})
    config = settings_of(first.split("\t"), users=True, sides=False, german=first.startswith(","))
    with tempfile.TemporaryDirectory() as folder:
        changed = one_row_changes_another(rows, from_csv, Path(folder), config) if rows else ""
    if changed:
        raise AssertionError(changed)


SEEDS = {f"fuzz_{name}": [seed] for name, seed in seeds().items()}
TARGETS: dict[str, Callable[[bytes], None]] = {
    name.removeprefix("fuzz_"): value
    for name, value in list(globals().items())
    if name.startswith("fuzz_")
}
