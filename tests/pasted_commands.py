"""Run every command block of README and of the tutorials in order, as a reader pastes them:
``make test-pages``.

Each page gets a folder of its own with the files of the checkout, a virtual environment without
anything but what training needs, and a new terminal. Blocks marked ``sh`` are pasted into that
terminal, blocks marked ``python`` into one interpreter; blocks of other languages are shown, not
run. A command that fails ends the script. The few commands that cannot run as they stand are in
``HANDLED``, each with the reason.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipelines.try_install import clean_environment, copy_checkout
from tests.ports import free_port

PAGES = ("README.md", "docs/python.md", "docs/federation.md")
RUN = ("sh", "python")
SHOWN = ("text", "yaml", "json")
LONGEST = 180.0  # seconds of one command
ACTIVATE = "source .venv/bin/activate"


@dataclass(frozen=True)
class Handling:
    """What the script does with a command in the place of running it, and why."""

    how: Literal["skip", "serve", "retry"]
    why: str


HANDLED = {
    "make test": Handling("skip", "continuous integration runs the checks beside this script"),
    "make ui": Handling("serve", "it stays up: its page has to answer, then it is stopped"),
    "homo-dp party approve research-7 --config conf/party_a.yaml": Handling(
        "retry", "a reader waits until the plan has come, some seconds after the start"
    ),
}
SHELL_LINE = "source {step}; echo $? > {done}.part; mv {done}.part {done}"
# A shell that says how background commands ended: `wait` alone would always end with 0.
PRELUDE = """
wait() {
    if [ $# -gt 0 ]; then builtin wait "$@"; return; fi
    local code=0 job
    for job in $(jobs -p); do builtin wait "$job" || code=$?; done
    return $code
}
"""
INTERPRETER = """
import pathlib, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    step, done = map(pathlib.Path, line.split())
    code = 0
    try:
        exec(compile(step.read_text(), step.name, "exec"), names)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    done.with_suffix(".part").write_text(str(code))
    done.with_suffix(".part").rename(done)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, also those within lists.

    >>> blocks_of("1. Start:\\n\\n    ```sh\\n    make train\\n    ```\\n")
    [Block(language='sh', text='make train\\n', line=3)]
    """
    found = []
    pattern = r"^( *)```(\w*)\n(.*?)^\1```$"
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        inside = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        found.append(Block(match[2], inside, text.count("\n", 0, match.start()) + 1))
    return found


def commands_of(block: str) -> list[str]:
    r"""The commands of a block for the shell; lines that end with a backslash go on.

    >>> commands_of("make train   # the default\nhomo-dp infer \\\n  --data a.csv\n# no more\n")
    ['make train', 'homo-dp infer --data a.csv']
    """
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    kept = (re.sub(r"(^|\s+)#.*$", "", line).strip() for line in lines)
    return [command for command in kept if command]


@dataclass(frozen=True)
class Place:
    """Where one page is run."""

    folder: Path
    variables: Mapping[str, str]

    @property
    def checkout(self) -> Path:
        """The files of the checkout."""
        return self.folder / "checkout"


class Pasted:
    """A process that takes pasted pieces one after the other and says how each ended."""

    def __init__(self, command: Sequence[str], line: str, place: Place, name: str) -> None:
        """Start it.

        Args:
            command: the program, in a session of its own.
            line: how one piece is handed over, with the names of two files in it.
            place: where it works.
            name: of its folder for pieces and what they print.
        """
        self.line, self.pieces = line, 0
        self.scratch = place.folder / name
        self.scratch.mkdir()
        self.log = self.scratch / "log.txt"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=place.checkout,
                env=place.variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def paste(self, piece: str) -> int:
        """The exit code of a piece."""
        self.pieces += 1
        step, done = (self.scratch / f"{self.pieces}.{end}" for end in ("step", "done"))
        step.write_text(piece + "\n")
        stdin = self.process.stdin
        if stdin is None:
            raise RuntimeError("the process has no stdin")
        stdin.write(self.line.format(step=step, done=done) + "\n")
        stdin.flush()
        ending = time.monotonic() + LONGEST
        while not done.exists():
            if self.process.poll() is not None or time.monotonic() > ending:
                return self.process.poll() or 124
            time.sleep(0.05)
        return int(done.read_text())

    def close(self) -> None:
        """Stop it, and what it started and left running."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, how)
                self.process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def main(pages: Sequence[str]) -> int:
    """Run the pages; 1 after the first command that fails."""
    began = time.monotonic()
    for page in pages or PAGES:
        print(page, flush=True)
        with tempfile.TemporaryDirectory(prefix="homo_dp-pages-") as folder:
            if not run_page(page, Path(folder)):
                return 1
    print(f"every command of {', '.join(pages or PAGES)}: {time.monotonic() - began:.0f} s")
    return 0


def run_page(page: str, folder: Path) -> bool:
    """Whether every command of a page ends well; what failed is printed."""
    port = free_port()
    ours = {"HOME": str(folder), "PORT": str(port)}
    place = Place(folder, clean_environment(sys.executable, folder) | ours)
    place.checkout.mkdir()
    copy_checkout(place.checkout)
    make_environment(place.checkout)
    with ExitStack() as stack:
        shell = Pasted(["bash"], SHELL_LINE, place, "shell")
        stack.callback(shell.close)
        shell.paste(PRELUDE if page == "README.md" else f"{PRELUDE}\n{ACTIVATE}")
        program = [str(place.checkout / ".venv/bin/python"), "-u", "-c", INTERPRETER]
        python = Pasted(program, "{step} {done}", place, "interpreter")
        stack.callback(python.close)
        for block in blocks_of((place.checkout / page).read_text(encoding="utf-8")):
            pasted = python if block.language == "python" else shell
            for piece in pieces_of(block):
                code = run_piece(pasted, piece, port)
                if code:
                    said = pasted.log.read_text(errors="replace")[-4000:]
                    print(f"{page}:{block.line}: ended with {code}:\n{piece}\n{said}")
                    return False
    return True


def pieces_of(block: Block) -> Iterator[str]:
    """What is pasted at once: a command, or a block of Python."""
    if block.language == "python":
        yield block.text
    elif block.language == "sh":
        yield from commands_of(block.text)


def run_piece(pasted: Pasted, piece: str, port: int) -> int:
    """Run one piece as ``HANDLED`` says and print its seconds; the exit code."""
    handling, began = HANDLED.get(piece), time.monotonic()
    shown = piece.splitlines()[0]
    if handling is None:
        code = pasted.paste(piece)
    else:
        shown += f"   ({handling.how}: {handling.why})"
        code = {"skip": skip, "serve": serve, "retry": retry}[handling.how](pasted, piece, port)
    print(f"  {time.monotonic() - began:4.0f} s  {shown}", flush=True)
    return code


def skip(_pasted: Pasted, _command: str, _port: int) -> int:
    """Do nothing."""
    return 0


def retry(pasted: Pasted, command: str, _port: int) -> int:
    """Run a command until it ends well, for a minute."""
    return next((0 for _ in range(60) if pasted.paste(f"sleep 1; {command}") == 0), 1)


def serve(pasted: Pasted, command: str, port: int) -> int:
    """Start a command that stays up, ask its page, stop it; 0 if the page was there."""
    number = pasted.scratch / "server.pid"
    pasted.paste(f"setsid {command} & echo $! > {shlex.quote(str(number))}")
    ending, code = time.monotonic() + LONGEST, 1
    while code and time.monotonic() < ending:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=5):
                code = 0
        except OSError:
            time.sleep(0.5)
    os.killpg(int(number.read_text()), signal.SIGTERM)
    return code


def make_environment(checkout: Path) -> None:
    """A ``.venv`` with the packages of this one, in which homo_dp is that of the checkout.

    That packages install into an empty environment is shown by ``make test-install``.
    """
    folder = checkout / ".venv"
    venv.create(folder, with_pip=False, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    packages = sysconfig.get_paths()
    lines = dict.fromkeys([str(checkout), packages["purelib"], packages["platlib"]])
    (Path(paths["purelib"]) / "pages.pth").write_text("\n".join(lines) + "\n")
    script = folder / "bin" / "homo-dp"
    script.write_text(
        f"#!{folder / 'bin' / 'python'}\nfrom homo_dp.main import script\n\nscript()\n"
    )
    script.chmod(0o755)
    (folder / ".homo_dp_installed").write_text("cpu\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
