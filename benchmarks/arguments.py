"""Command lines of the benchmarks: `--help` shows what stands at the top of the file, and counts
are checked.
"""

from __future__ import annotations

import argparse


def parser_for(text: str | None) -> argparse.ArgumentParser:
    """A parser that helps with the whole docstring of a benchmark."""
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def count(text: str) -> int:
    """A whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= 1; give for example 5")
    return value
