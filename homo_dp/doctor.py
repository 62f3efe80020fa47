"""What is installed here and what is missing: ``homo-dp doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from homo_dp import __version__
from homo_dp.console.options import Parser, add_screen_arguments, run, screen_from_arguments

NEEDED = (
    "torch",
    "opacus",
    "dp-accounting",
    "pandas",
    "scikit-learn",
    "mlflow",
    "safetensors",
    "cryptography",
)
EXTRAS = {  # name in pyproject.toml: what it installs, and the module that is then there
    "nats": ("nats-py", "nats"),
    "flower": ("flwr", "flwr"),
    "notebooks": ("ipykernel", "ipykernel"),
    "sql": ("psycopg", "psycopg"),
}
PROGRAMS = {
    "nats-server": "a NATS server of one's own",
    "chromium": "make test-ui",
    "chromedriver": "make test-ui",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``good`` is None where it may be absent."""

    what: str
    good: bool | None
    says: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Look and tell; 2 if something that training needs is missing."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    found = findings()
    for finding in found:
        word = {True: "ok", False: "MISSING", None: "not here"}[finding.good]
        screen.line(f"{word:<9}{finding.what}: {finding.says}")
    screen.summary({finding.what: {"ok": finding.good, "says": finding.says} for finding in found})
    return 2 if any(finding.good is False for finding in found) else 0


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="homo-dp doctor", description=__doc__)
    add_screen_arguments(parser)
    return parser


def findings() -> list[Finding]:
    """Everything, in the order in which a person would ask."""
    version = platform.python_version()
    found = [
        Finding("homo_dp", True, f"{__version__} in {os.path.dirname(os.path.abspath(__file__))}"),
        Finding(
            "python",
            sys.version_info >= (3, 11),
            f"{version} ({sys.executable}); 3.11 or newer is needed",
        ),
    ]
    found += [_package(name) for name in NEEDED]
    for extra, (name, module) in EXTRAS.items():
        there = find_spec(module) is not None
        says = (
            _version(name) or "there" if there else f"pip install 'homo_dp[{extra}]' if you want it"
        )
        found.append(Finding(f"extra {extra}", True if there else None, says))
    found.append(_secure_mode())
    for name, use in PROGRAMS.items():
        beside = shutil.which(name, path=os.path.dirname(sys.executable))
        path = shutil.which(name) or beside
        found.append(Finding(name, True if path else None, path or f"only needed for {use}"))
    return found


def _package(name: str) -> Finding:
    version = _version(name)
    return Finding(
        name, version is not None, version or f"run `{sys.executable} -m pip install homo_dp`"
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _secure_mode() -> Finding:
    """Draw noise from the generator that training uses."""
    try:
        from homo_dp.privacy.noise.source import secure_noise

        noise = secure_noise()
    except Exception as error:  # a broken installation may raise any error
        return Finding(
            "secure mode",
            False,
            f"does not work ({type(error).__name__}: {error}); install cryptography",
        )
    return Finding(
        "secure mode",
        noise.secure and noise.private,
        "noise and sampling by a cryptographic generator",
    )


if __name__ == "__main__":
    run(main)
