"""Wrong inputs: each gets one line on stderr that names the culprit, its exit code, and leaves
nothing half-written.
"""

import gzip
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import homo_dp.train as train
from homo_dp import infer
from tests.shell import Finished, run_command

COLUMNS = "data.columns={x: {bounds: [0, 10]}, c: {levels: [red, blue]}}"
HEADER = "id,x,c,y"
ROWS = [
    f"{number},{number % 10},{'red' if number % 2 else 'blue'},{number % 2}" for number in range(40)
]


def table(rows: list[str] | None = None, header: str = HEADER) -> str:
    return "\n".join([header, *(ROWS if rows is None else rows)]) + "\n"


def changed(number: int, row: str) -> list[str]:
    return [*ROWS[:number], row, *ROWS[number + 1 :]]


def write(content: str | bytes, name: str = "a.csv") -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def good(folder: Path) -> None:
    write(table())(folder)


def folder_instead(folder: Path) -> None:
    (folder / "a.csv").mkdir()


def read_only_folder(folder: Path) -> None:
    good(folder)
    (folder / "locked").mkdir(mode=0o500)


def bad_ledger(folder: Path) -> None:
    good(folder)
    (folder / "ledger.sqlite").write_text(
        "not a database, but long enough to be taken for one" * 20
    )


def old_output(folder: Path) -> None:
    good(folder)
    (folder / "out").write_text("a file where a folder is needed")


Case = tuple[str, Callable[[Path], None], list[str], int, str]

# name, what lies in the folder, further --params, exit code, words of the one line
CASES: list[Case] = [
    ("missing file", lambda folder: None, [], 2, "a.csv"),
    ("directory instead of file", folder_instead, [], 2, "directory"),
    ("empty csv", write(""), [], 2, "empty"),
    ("header only", write(table([])), [], 2, "no rows"),
    ("duplicate columns", write(table(header="id,x,x,y")), [], 2, "twice|duplicate|more than once"),
    ("label missing", write(table(header="id,x,c,z")), [], 2, "label column 'y'"),
    ("three labels for a binary model", write(table(changed(3, "3,3,red,2"))), [], 2, "2"),
    ("text in a numeric column", write(table(changed(3, "3,tall,red,1"))), [], 2, "tall"),
    ("missing value", write(table(changed(3, "3,,red,1"))), [], 2, "missing|empty"),
    ("nan", write(table(changed(3, "3,NaN,red,1"))), [], 2, "missing|NaN"),
    ("infinite", write(table(changed(3, "3,inf,red,1"))), [], 2, "inf"),
    ("missing label", write(table(changed(3, "3,3,red,"))), [], 2, "'y'"),
    ("ragged row", write(table(changed(3, "3,3,red,1,9,9"))), [], 2, "a.csv"),
    ("wrong encoding", write(table().encode("utf-16")), [], 2, "UTF-8|utf-8|encod"),
    ("semicolons", write(table().replace(",", ";")), [], 2, "a.csv"),
    (
        "truncated gzip",
        write(gzip.compress(table().encode())[:60], "a.csv.gz"),
        ["data.files.a=a.csv.gz"],
        2,
        "a.csv.gz",
    ),
    ("not parquet", write("nothing", "a.parquet"), ["data.files.a=a.parquet"], 2, "a.parquet"),
    (
        "bounds reversed",
        good,
        ["data.columns={x: {bounds: [9, 1]}, c: {levels: [red, blue]}}"],
        2,
        "low < high",
    ),
    ("no bounds", good, ["data.columns={c: {levels: [red, blue]}}"], 2, "homo_dp.data describe"),
    ("column to use is not there", good, ["data.use=[x, height]"], 2, "height"),
    ("unknown key", good, ["privacy.target_epsilonn=1"], 2, "target_epsilon"),
    ("wrong type", good, ["train.rounds=many"], 2, "train.rounds"),
    ("zero rounds", good, ["train.rounds=0"], 2, "train.rounds"),
    ("negative learning rate", good, ["train.learning_rate=-1"], 2, "train.learning_rate"),
    ("sample rate above one", good, ["train.sample_rate=1.5"], 2, "train.sample_rate"),
    ("target epsilon zero", good, ["privacy.target_epsilon=0"], 2, "privacy.target_epsilon"),
    ("target epsilon negative", good, ["privacy.target_epsilon=-3"], 2, "privacy.target_epsilon"),
    ("noise zero", good, ["privacy.noise_multiplier=0"], 2, "privacy.noise_multiplier"),
    (
        "both noise and epsilon",
        good,
        ["privacy.noise_multiplier=1,privacy.target_epsilon=1"],
        2,
        "one follows",
    ),
    ("clip zero", good, ["privacy.max_grad_norm=0"], 2, "privacy.max_grad_norm"),
    ("delta above one", good, ["privacy.delta=2"], 2, "privacy.delta"),
    ("delta too large for the rows", good, ["privacy.delta=0.05"], 2, "delta"),
    ("unknown mechanism", good, ["privacy.mechanism=magic"], 2, "privacy.mechanism"),
    (
        "mechanism that cannot be imported",
        good,
        ["privacy.mechanism=nowhere.at_all:Thing"],
        2,
        "nowhere.at_all",
    ),
    ("not a key=value", good, ["rubbish"], 2, "rubbish"),
    ("missing config", good, ["--config", "absent.yaml"], 2, "absent.yaml"),
    ("output is a directory", good, ["predictFileName=."], 2, "predictFileName"),
    (
        "unwritable output",
        read_only_folder,
        ["indicatorFileName=locked/i.json"],
        2,
        "indicatorFileName",
    ),
    ("output under a file", old_output, [], 2, "out"),
    ("two outputs in one file", good, ["predictFileName=o,modelFileName=o"], 2, "same file"),
    ("read-only ledger folder", read_only_folder, ["privacy.ledger=locked/l.sqlite"], 3, "locked"),
    ("ledger is no database", bad_ledger, [], 3, "ledger"),
    ("budget refused", good, ["privacy.lifetime_epsilon=0.1,data.name=small"], 3, "lifetime"),
    (
        "model to continue is missing",
        good,
        ["train.init_from=absent.safetensors"],
        2,
        "absent.safetensors",
    ),
]
NEEDS_PERMISSIONS = {"unwritable output", "read-only ledger folder"}


@pytest.fixture
def as_user(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[None]:
    """Permissions mean nothing to root: give its powers up for a while.

    A training before that imports what another user might not be allowed to read.
    """
    if os.geteuid() != 0:
        yield
        return
    folder = tmp_path_factory.mktemp("before")
    good(folder)
    attempt(folder, [], monkeypatch, capsys)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def attempt(
    folder: Path,
    params: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Finished:
    monkeypatch.chdir(folder)
    base = ["--params", "data.files.a=a.csv", COLUMNS, "data.test_fraction=0.2", "train.rounds=1"]
    return run_command(train.main, [*base, "tracking.enabled=false", *params], monkeypatch, capsys)


@pytest.mark.parametrize(
    ("setup", "params", "code", "words", "name"),
    [pytest.param(*case[1:], case[0], id=case[0]) for case in CASES],
)
def test_wrong_input(
    setup: Callable[[Path], None],
    params: list[str],
    code: int,
    words: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    setup(tmp_path)
    if name in NEEDS_PERMISSIONS:
        tmp_path.chmod(0o777)
        for parent in tmp_path.parents[:3]:
            parent.chmod(0o755)
        request.getfixturevalue("as_user")
    before = sorted(tmp_path.rglob("*"))
    done = attempt(tmp_path, params, monkeypatch, capsys)
    assert (done.code, len(done.error_lines)) == (code, 1), done.err
    assert "Traceback" not in done.err
    assert re.search(words, done.error_lines[0]), done.error_lines[0]
    left = [
        path
        for path in sorted(tmp_path.rglob("*"))
        if path not in before and "ledger.sqlite" not in path.name
    ]
    assert left == []


def test_the_table_behind_the_cases_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good(tmp_path)
    assert attempt(tmp_path, [], monkeypatch, capsys).code == 0


def test_a_huge_value_is_clipped_to_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(table(changed(3, "3,1e300,red,1")))(tmp_path)
    assert attempt(tmp_path, [], monkeypatch, capsys).code == 0


def test_a_full_disk_is_one_line_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """/dev/full is the kernel's own full disk: every write to it fails with ENOSPC."""
    good(tmp_path)
    done = attempt(tmp_path, ["predictFileName=/dev/full"], monkeypatch, capsys)
    assert (done.code, len(done.error_lines)) == (2, 1), done.err
    assert "predictFileName" in done.err
    assert not (tmp_path / "out" / "indicator.json").exists()


MODEL_CASES = [
    ("missing", None, "no such"),
    ("truncated", b"\x10\x00\x00\x00\x00\x00\x00\x00{", "damaged"),
    ("huge header", b"\xff\xff\xff\xff\xff\xff\xff\x7f{", "damaged"),
    ("pickle", b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00", "damaged"),
]


@pytest.mark.parametrize(
    ("content", "words"), [pytest.param(*case[1:], id=case[0]) for case in MODEL_CASES]
)
def test_wrong_model_file(
    content: bytes | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("m.safetensors").write_bytes(content)
    done = run_command(infer.main, ["--params", "modelFileName=m.safetensors"], monkeypatch, capsys)
    assert (done.code, len(done.error_lines)) == (2, 1), done.err
    assert words in done.err
