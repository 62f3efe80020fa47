"""Commands as a user meets them: a small command of our own is run as a process, with real
signals and streams.
"""

import argparse
import errno
import json
import os
import pty
import shlex
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from homo_dp.compat.command_line import load_from_arguments
from homo_dp.console.options import (
    Interrupted,
    Parser,
    add_common_arguments,
    explain,
)
from homo_dp.core.errors import (
    ConfigError,
    DataError,
    InputError,
    MessageError,
    ModelFileError,
    TransportError,
)
from homo_dp.privacy.errors import BudgetExceeded, LedgerError, PrivacyError

COMMAND = """
import sys, time, warnings
from homo_dp.compat.command_line import load_from_arguments
from homo_dp.console.options import Interrupted, Parser, add_common_arguments, check_outputs, run
from homo_dp.console.options import screen_from_arguments

def main(argv=None):
    parser = Parser(prog="python -m homo_dp.small", epilog="examples:\\n  small --quiet")
    add_common_arguments(parser)
    parser.add_argument("--do", default="")
    arguments = parser.parse_args(argv)
    screen = screen_from_arguments(arguments)
    loaded = load_from_arguments(arguments)
    screen.notes(loaded.notes)
    check_outputs(loaded.config)
    warnings.warn("a library\\nwarns")
    if arguments.do == "bug":
        raise ZeroDivisionError("a bug")
    if arguments.do == "full":
        with open("/dev/full", "w") as file:
            file.write("x" * 100_000)
    if arguments.do == "wait":
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            raise Interrupted("saved out/model.safetensors after round 3") from None
    with screen.progress(loaded.config.train.rounds, "round") as progress:
        for step in range(loaded.config.train.rounds):
            progress.advance(loss=1 / (step + 1), epsilon=0.5 * step)
    screen.line("a line")
    screen.table("parties", ["party", "epsilon"], [["[bold]a", 1.23456], ["b", None]])
    screen.summary({"epsilon": 1.5})
    return 0

if __name__ == "__main__":
    run(main)
"""


@pytest.fixture
def command(tmp_path: Path) -> Path:
    path = tmp_path / "small.py"
    path.write_text(COMMAND)
    return path


def _run(command: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, str(command), *arguments],
        capture_output=True,
        text=True,
        cwd=command.parent,
        env=env,
        check=False,
    )


def test_plain_lines_without_a_terminal(command: Path) -> None:
    done = _run(command, "--params", "train.rounds=100")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "a line",
        "parties",
        "party    epsilon",
        "[bold]a    1.235",
        "b              -",
    ]
    lines = done.stderr.splitlines()
    assert lines[0] == "warning: a library warns"
    assert lines[1] == "round 1/100  loss 1  epsilon 0"
    assert lines[-1] == "round 100/100  loss 0.01  epsilon 49.5"
    assert len(lines) <= 13
    assert "\x1b" not in done.stdout + done.stderr


def test_quiet_and_json(command: Path) -> None:
    quiet = _run(command, "--quiet", "--params", "hostLookupTable:STRING:0:x")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    as_json = _run(command, "--json")
    assert json.loads(as_json.stdout) == {"epsilon": 1.5}
    assert "a line" in as_json.stderr
    both = _run(command, "--json", "--quiet")
    assert (json.loads(both.stdout), both.stderr) == ({"epsilon": 1.5}, "")


def test_bars_on_a_terminal(command: Path) -> None:
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, str(command)],
        stdout=follower,
        stderr=follower,
        cwd=command.parent,
        env=env,
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # the other end was closed
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    assert process.wait() == 0
    text = seen.decode()
    assert "━" in text
    assert "20/20" in text
    assert "[bold]a" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--params", "train.round=3"],
            "error: train.round: unknown key; did you mean train.rounds?",
        ),
        (["--params", "train.rounds"], "error: --params train.rounds: is not key=value"),
        (["--params", "train.rounds=-1"], "error: train.rounds=-1: must be a whole number"),
        (["--config", "none.yaml"], "error: --config none.yaml: no such file"),
        (["--config", "."], "error: --config .: is a directory"),
        (["--cfg", "a.yaml", "train.rounds"], "error: --cfg: train.rounds has no value"),
        (
            ["--cfg", "a.yaml", "--config", "b.yaml"],
            "error: --cfg a.yaml: is another name of --config",
        ),
        (
            ["--unknown"],
            "python -m homo_dp.small: error: unrecognized arguments: --unknown; see --help",
        ),
        (["--params", "modelFileName=."], "error: output.modelFileName=.: is a directory"),
        (
            ["--params", "modelFileName=/proc/no/m"],
            "error: output.modelFileName=/proc/no/m: cannot be written",
        ),
        (
            ["--params", "modelFileName=small.py/m"],
            "error: output.modelFileName=small.py/m: cannot be written",
        ),
        (
            ["--params", "modelFileName=x,predictFileName=./x"],
            "is the same file as output.predictFileName",
        ),
        (["--do", "full"], "No space left on device"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(command: Path, arguments: list[str], said: str) -> None:
    done = _run(command, "--quiet", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (command.parent / "out").exists()


def test_cfg_with_pairs(command: Path) -> None:
    (command.parent / "c.yaml").write_text("train: {rounds: 3}\n")
    done = _run(
        command,
        "--cfg",
        "c.yaml",
        "train.seed",
        "1",
        "train.rounds",
        "2",
        "--params",
        "train.seed=5",
    )
    assert "round 2/2" in done.stderr


def test_params_of_both_forms_repeated(command: Path) -> None:
    done = _run(command, "--params", "predictFileName:STRING:0:p.csv, modelFileName:STRING:0:m.pl", "train.rounds=2",
                "--params", "train.rounds=3,hostLookupTable:STRING:0:x")  # fmt: skip
    assert "round 3/3" in done.stderr
    assert "note: hostLookupTable" in done.stderr


def test_bug_shows_a_traceback_and_exit_1(command: Path) -> None:
    done = _run(command, "--do", "bug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("bug: ZeroDivisionError: a bug")


def test_debug_shows_the_traceback_of_any_error(command: Path) -> None:
    done = _run(command, "--params", "train.round=3", HOMO_DP_DEBUG="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: train.round")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_says_what_was_saved(command: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, str(command), "--quiet", "--do", "wait"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=command.parent,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == "interrupted: saved out/model.safetensors after round 3\n"


def test_a_reader_that_goes_away_does_not_stop_the_work(command: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=command.parent,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_without_anybody_to_tell_the_work_is_done(command: Path, closed: str) -> None:
    line = f"{shlex.quote(sys.executable)} {shlex.quote(str(command))} {closed}"
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, cwd=command.parent, check=False
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    """What a library or a child says on number 2 would stand in it."""
    (tmp_path / "command.py").write_text(
        "from homo_dp.console.options import run\nrun(lambda _: open(__file__).fileno() <= 2)\n"
    )
    line = f"{shlex.quote(sys.executable)} command.py {closed}"
    assert subprocess.run(line, shell=True, cwd=tmp_path, check=False).returncode == 0


def test_help_and_version(command: Path) -> None:
    shown = _run(command, "--help")
    assert shown.returncode == 0
    for word in ("small --quiet", "--params", "exit codes", "--dry-run"):
        assert word in shown.stdout
    assert _run(command, "--version").stdout.startswith("homo_dp ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2), (DataError("x"), 2), (ModelFileError("x"), 2), (InputError("x"), 2),
        (PrivacyError("x"), 2), (MessageError("x"), 2), (TransportError("x"), 2), (BudgetExceeded("x"), 3),
        (LedgerError("x"), 3),
        (KeyboardInterrupt(), 130), (Interrupted("x"), 130), (ValueError("x"), 1), (OSError("no errno"), 1),
        (OSError(errno.ENOSPC, "No space left on device", "f"), 2), (PermissionError(errno.EACCES, "denied", "f"), 2),
        (sqlite3.OperationalError("database or disk is full"), 2), (MemoryError(), 2),
    ],
)  # fmt: skip
def test_exit_codes(error: BaseException, code: int) -> None:
    assert explain(error)[0] == code


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def _with_full(command: Path, stream: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    with open("/dev/full", "w") as full:
        return subprocess.run(
            [sys.executable, *arguments],
            stdout=full if stream == "stdout" else subprocess.PIPE,
            stderr=full if stream == "stderr" else subprocess.PIPE,
            umask=0,
            text=True,
            cwd=command.parent,
            timeout=200,
            check=False,
        )


@FULL
def test_a_log_on_a_full_disk_costs_lines_and_neither_outputs_nor_the_exit_code(
    command: Path,
) -> None:
    params = "tracking.enabled=false,train.rounds=3,train.local_steps=1"
    done = _with_full(command, "stderr", "-m", "homo_dp.train", "--params", params)
    assert done.returncode == 0
    assert "model: out/model.safetensors" in done.stdout
    assert (command.parent / "out" / "indicator.json").is_file()
    made = [
        command.parent / "ledger.sqlite",
        command.parent / "out",
        *(command.parent / "out").rglob("*"),
    ]
    open_to_others = [path.name for path in made if path.stat().st_mode & 0o077]
    assert open_to_others == []  # although the umask was 000
    assert _with_full(command, "stderr", str(command), "--do", "bug").returncode == 1
    assert _with_full(command, "stderr", str(command), "--params", "train.rounds=0").returncode == 2


@FULL
def test_a_result_that_stdout_did_not_take_is_an_error_at_the_end(command: Path) -> None:
    done = _with_full(command, "stdout", str(command), "--json")
    assert done.returncode == 2
    assert "error: stdout: No space left on device" in done.stderr.splitlines()[-1]


def test_a_missing_module_is_answered_with_the_command_that_brings_it(command: Path) -> None:
    """As with a Python whose virtual environment is not active; -S leaves out what was
    installed.
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "homo_dp.train"],
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: pydantic is not installed for ")
    assert f" in {root}" in line, "in a checkout it is installed from there"
    assert explain(ModuleNotFoundError("No module named 'homo_dp.x'", name="homo_dp.x"))[0] == 1


def test_what_others_wrote_reaches_no_terminal_as_a_command(command: Path) -> None:
    done = _run(
        command,
        "--params",
        "data.label=\x1b[2Jred\u202e\x9b1m",
        "--params",
        "train.rounds=\x1b[31m",
    )
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "\\x1b[31m" in done.stderr


@pytest.mark.parametrize(
    ("params", "environment", "threads"),
    [("", None, "1"), ("", "3", "3"), ("", "many", "1"), ("train.threads=2", "3", "2")],
)
def test_one_rule_for_threads(
    tmp_path: Path, params: str, environment: str | None, threads: str
) -> None:
    code = """if True:
        import os, sys
        from homo_dp.compat.command_line import load_from_arguments
        from homo_dp.console.options import Parser, add_common_arguments
        parser = Parser()
        add_common_arguments(parser)
        load_from_arguments(parser.parse_args(["--params", *sys.argv[1:]]))
        assert "torch" not in sys.modules  # which reads the environment when it is imported
        print(os.environ["OMP_NUM_THREADS"])
    """
    given = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    given |= {"OMP_NUM_THREADS": environment} if environment else {}
    command = [sys.executable, "-c", code, *([params] if params else ["train.rounds=1"])]
    assert subprocess.check_output(command, env=given, text=True).strip() == threads


def _arguments(*given: str) -> argparse.Namespace:
    parser = Parser(prog="small")
    add_common_arguments(parser)
    return parser.parse_args(given)


def test_the_configuration_of_the_working_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_from_arguments(_arguments()).source == "no config: the built-in example"
    Path("config.yaml").write_text("data: {embedded: digits}\n")
    Path("other.yaml").write_text("data: {embedded: breast_cancer}\ntrain: {seed: 9}\n")
    found = load_from_arguments(_arguments())
    assert (found.source, found.config.data.embedded) == ("config: config.yaml", "digits")
    named = load_from_arguments(_arguments("--config", "other.yaml"))
    assert (named.source, named.config.data.embedded) == ("config: other.yaml", "breast_cancer")
    also = load_from_arguments(_arguments("--cfg", "other.yaml"))
    assert also.config.train.seed == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: {name: mlp}\n", "it has no data: section"),
        ("data: a.csv\n", "it has no data: section"),
        ("", "holds no settings"),
        ("- a\n", "must hold sections"),
        ("a: [\n", "is not valid YAML"),
    ],
)
def test_a_foreign_config_yaml_in_the_working_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="--config FILE") as refused:
        load_from_arguments(_arguments())
    assert said in str(refused.value)
    assert str(refused.value).startswith("config.yaml: ")


def test_a_folder_called_config_yaml_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").mkdir()
    with pytest.raises(ConfigError, match="--config FILE"):
        load_from_arguments(_arguments())
