"""What all commands share: options, exit codes, one-line errors, and the check of output paths
before work starts.

Exit codes: 0 done, 2 bad input or configuration, 3 budget refused or ledger bad, 130 interrupted; 1
is a bug of ours.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from homo_dp import __version__
from homo_dp.config.addresses import masked
from homo_dp.console.screen import Progress, Screen, hush, say, silence
from homo_dp.core.command_name import as_typed
from homo_dp.core.errors import InputError, MessageError, TransportError
from homo_dp.core.event_log import FORMATS, is_shown, log, use_format
from homo_dp.core.files import check_writable
from homo_dp.privacy.errors import BudgetExceeded, LedgerError, PrivacyError

if TYPE_CHECKING:
    from homo_dp.config.schema import Config

__all__ = [
    "Interrupted",
    "Parser",
    "Progress",
    "Screen",
    "add_common_arguments",
    "add_log_argument",
    "add_screen_arguments",
    "check_outputs",
    "out_folder",
    "run",
    "screen_from_arguments",
    "use_threads",
]

CONFIGS = (".yaml", ".yml", ".json")
DONE, BUG, BAD_INPUT, REFUSED, INTERRUPTED = 0, 1, 2, 3, 130

PARAMS_HELP = """overrides:
  --params takes key=value items separated by commas or spaces and may be repeated; a key is a dotted
  path of the configuration (docs/config.md) or predictFileName, indicatorFileName, modelFileName:
    --params train.rounds=30,privacy.target_epsilon=2 --params "data.classes=[no, yes]"
  the older PrimiHub form works too:
    --params predictFileName:STRING:0:out/p.csv,modelFileName:STRING:0:out/m.safetensors"""
EXIT_CODES = """exit codes:
  0 done, 2 bad input, 3 budget refused or ledger bad, 130 interrupted"""


class Interrupted(KeyboardInterrupt):
    """An interruption whose message says what was saved."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose help keeps the examples as
    written.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        # a module's docstring, whose double backticks are markup for the docs
        if kwargs.get("description"):
            kwargs["description"] = as_typed(kwargs["description"].replace("``", ""))
        if kwargs.get("prog"):
            kwargs["prog"] = as_typed(kwargs["prog"])
        super().__init__(*args, **kwargs)

    def format_help(self) -> str:
        """The help, with commands as this user types them."""
        return as_typed(super().format_help())

    def error(self, message: str) -> NoReturn:
        """Leave with exit code 2 and one line on stderr."""
        text = " ".join(message.split()) + self._advice(message)
        self.exit(BAD_INPUT, f"{self.prog}: error: {text}; see --help\n")

    def _advice(self, message: str) -> str:
        """What was probably meant by an argument that the command does not take."""
        _, unknown, rest = message.partition("unrecognized arguments: ")
        if not unknown:
            return ""
        word = rest.split()[0]
        if not word.startswith("-"):
            if Path(word).suffix in CONFIGS and "--config" in self._option_string_actions:
                return f"; a configuration stands after --config: --config {word}"
            overrides = "=" in word and "--params" in self._option_string_actions
            return f"; overrides stand after --params: --params {word}" if overrides else ""
        options = [name for name in self._option_string_actions if name.startswith("--")]
        near = difflib.get_close_matches(word.partition("=")[0], options, n=1)
        return f"; did you mean {near[0]}?" if near else ""


def add_common_arguments(parser: argparse.ArgumentParser, *, dry_run: bool = True) -> None:
    """Add the options of every command that reads a configuration."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        action="append",
        help=(
            "YAML recipe, or a file of PrimiHub, FederatedScope or the DP-FedAvg chapter; may be "
            "repeated, later wins (default: config.yaml of this folder, if there is one)"
        ),
    )
    parser.add_argument(
        "--cfg",
        metavar=("FILE", "KEY VALUE"),
        nargs="+",
        help="the same, followed by overrides as `key value` pairs",
    )
    parser.add_argument(
        "--params",
        metavar="KEY=VALUE,...",
        action="append",
        nargs="+",
        default=[],
        help="overrides; may be repeated",
    )
    # for a translated line of another system, which is complete without that file
    parser.add_argument("--no-working-config", action="store_true", help=argparse.SUPPRESS)
    if dry_run:
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="say what would be released; releases and charges nothing",
        )
    add_screen_arguments(parser)
    epilog = parser.epilog or ""
    if PARAMS_HELP not in epilog:
        # a command with exit codes of its own lists them in its examples
        own = "" if "exit codes:" in epilog else EXIT_CODES
        parser.epilog = "\n\n".join(part for part in (epilog, PARAMS_HELP, own) if part)


def add_screen_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--quiet`, `--json` and `--version`."""
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument(
        "--json", action="store_true", help="print the final summary as JSON, alone on stdout"
    )
    parser.add_argument("--version", action="version", version=f"homo_dp {__version__}")


def add_log_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--log-format`, for processes that run beside a log collector."""
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        help=(
            "one line an event on stderr, with time, level, run, round and party, in place of the "
            "usual lines"
        ),
    )


def screen_from_arguments(arguments: argparse.Namespace) -> Screen:
    """The screen that `--quiet`, `--json` and `--log-format` ask for."""
    quiet, log_format = (
        bool(getattr(arguments, "quiet", False)),
        getattr(arguments, "log_format", None),
    )
    hush(quiet)
    if log_format is not None and not quiet:
        use_format(log_format)
    return Screen(
        quiet,
        as_json=bool(getattr(arguments, "json", False)),
        as_log=log_format is not None and not quiet,
    )


def use_threads(threads: int | str) -> None:
    """Let torch work with so many threads here and in the processes that this one starts; call it
    before its import.

    ``auto`` is one, unless the environment says otherwise. Batches of tables are too small to
    share, and threads that wait for each other on a machine with other work cost more than they
    bring: see docs/robustness.md for the times.
    """
    if threads == "auto":
        threads = (
            int(given)
            if (given := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(given)
            else 1
        )
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(int(threads))


def check_outputs(
    config: Config,
    names: Sequence[str] = ("predictFileName", "indicatorFileName", "modelFileName"),
) -> None:
    """Refuse, before any work, an output that could not be written at the end."""
    for name in names:
        check_writable(getattr(config.output, name), f"output.{name}")
    for party, own in config.output.parties.items():
        for name, path in own:
            if path is not None:
                check_writable(path, f"output.parties.{party}.{name}")


def run(main: Callable[[Sequence[str] | None], int | None]) -> NoReturn:
    """Run a command's `main` and leave with its exit code; errors a user can act on are one line
    on stderr.
    """
    signal.signal(signal.SIGTERM, _terminate)
    # Where the caller closed stdout or stderr (>&-), Python's stream is None. Both numbers are
    # taken by /dev/null: otherwise the next file that is opened would get one, and what libraries
    # and child processes print there.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    discarded = os.fdopen(number, "w")
    sys.stdout, sys.stderr = sys.stdout or discarded, sys.stderr or discarded
    try:
        code = main(None) or DONE
    except SystemExit:
        raise
    except BaseException as error:
        code = report(error)
    sys.exit(_flush(code))


def _flush(code: int) -> int:
    """Flush stdout and stderr; return the exit code, which is not 0 if output on stdout was lost.

    Without it Python would exit with 120 if either stream could not be written at the very end.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                code = code or report(
                    InputError(f"stdout: {error.strerror}; what was printed there is not whole")
                )
            silence(stream)
    return code


def report(error: BaseException) -> int:
    """Print an error as one line (with HOMO_DP_DEBUG=1, or if it is a bug, after its traceback);
    the exit code.
    """
    code, text = explain(error)
    text = as_typed(text)
    if is_shown():
        lines = traceback.format_exception(error) if code == BUG else []
        log.log(
            logging.WARNING if code == INTERRUPTED else logging.ERROR,
            "%s",
            masked(" ".join([text, *lines])),
        )
        return code
    if code == BUG or os.environ.get("HOMO_DP_DEBUG") == "1":
        _tell(masked("".join(traceback.format_exception(error)).rstrip()))
    _tell(masked(" ".join(text.split())))
    return code


def _tell(text: str) -> None:
    try:
        say(text, sys.stderr)
    except BrokenPipeError:
        silence(sys.stderr)


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code of an error and the line that says it.

    >>> explain(InputError("train.rounds=0: must be ..."))
    (2, 'error: train.rounds=0: must be ...')
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, f"interrupted: {error}" if str(error) else "interrupted"
    if isinstance(error, BudgetExceeded | LedgerError):
        return REFUSED, f"refused: {error}"
    if isinstance(error, InputError | PrivacyError | MessageError | TransportError):
        return BAD_INPUT, f"error: {error}"
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        return (
            BAD_INPUT,
            (
                f"error: {where}{error.strerror or error}; free the place, or check the path and "
                "its permissions"
            ),
        )
    if isinstance(error, sqlite3.OperationalError):
        return (
            BAD_INPUT,
            (
                f"error: a SQLite file cannot be used ({error}); check its folder, permissions and "
                "free space"
            ),
        )
    if isinstance(error, ModuleNotFoundError) and not (error.name or "homo_dp").startswith(
        "homo_dp"
    ):
        return (
            BAD_INPUT,
            (
                f"error: {error.name} is not installed for {sys.executable}; "
                f"{_install(error.name or '')}"
            ),
        )
    if isinstance(error, MemoryError):
        return (
            BAD_INPUT,
            "error: not enough memory; lower train.physical_batch_size or predict.chunk_rows",
        )
    return BUG, f"bug: {type(error).__name__}: {error}; please report it with the lines above"


def _install(module: str) -> str:
    """The command that gives this Python a missing module."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "Makefile").exists():
        return (
            f"run `{sys.executable} -m pip install "
            f"{'homo_dp[nats]' if module == 'nats' else 'homo_dp'}`"
        )
    if sys.prefix != sys.base_prefix:
        return f"run `{sys.executable} -m pip install -c constraints.txt -e '.[nats]'` in {root}"
    return f"run `make install && source .venv/bin/activate` in {root}, then the same command again"


def _terminate(_signal: int, _frame: object) -> NoReturn:
    raise Interrupted("terminated by SIGTERM")


def out_folder(config: Config) -> Path:
    """The folder beside the outputs, where the resolved configuration and plots go: that of the
    indicators.
    """
    return Path(config.output.indicatorFileName).parent
