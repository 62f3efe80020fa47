"""A look for numbers of private rows in what leaves a party, which noise, keys and clocks cannot
set off.

Files, messages and log lines are read as facts (a path of keys and a value). Released values (keys
``released_...``) have noise, so any number may be among them by chance: they are left out, and
compared with the truth as a whole. Keys and hashes are left out of texts. All other facts are fixed
by the config, so a count among them has left.
"""

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load

from homo_dp.statistics.released_metrics import ReleasedMetrics

RANDOM = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}")  # keys, hashes and signatures
RELEASED = "released_"
Fact = tuple[str, object]


def facts_of(value: object, path: str = "") -> Iterator[Fact]:
    """All values of parsed JSON or YAML that are not released ones, each with its keys."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not str(key).startswith(RELEASED):
                yield f"{path}.key", key
                yield from facts_of(part, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from facts_of(part, f"{path}[]")
    elif isinstance(value, str) and value[:1] in "{[":
        try:
            yield from facts_of(json.loads(value), path)
        except ValueError:
            yield path, value
    else:
        yield path, value


def facts_in(name: str, data: bytes) -> Iterator[Fact]:
    """The facts of a file, by its ending; of one that is no text those in its header."""
    if name.endswith(".safetensors"):
        size = int.from_bytes(data[:8], "little")
        yield from facts_of(json.loads(data[8 : 8 + size]), name)
        return
    text = data.decode(errors="replace")
    if name.endswith(".json"):
        yield from facts_of(json.loads(text), name)
    elif name.endswith(".jsonl"):
        for line in filter(str.strip, text.splitlines()):
            yield from facts_of(json.loads(line), name)
    elif name.endswith((".yaml", ".yml")):
        yield from facts_of(yaml.safe_load(text), name)
    else:
        for line in text.splitlines():
            yield name, line


def found_in(
    facts: Iterable[Fact],
    counts: Iterable[float],
    values: Iterable[float] = (),
    known: Iterable[str] = (),
) -> list[str]:
    """Where a count or a value stands among facts; ``known`` texts (paths, released sentences)
    are left out.
    """
    known, counts, digits = list(known), list(counts), [f"{value:.9g}"[:9] for value in values]
    words = re.compile(rf"(?<![\w.])(?:{'|'.join(f'{count:g}' for count in counts)})(?!\w|\.\d)")
    found = []
    for path, value in facts:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if value in counts or any(each in repr(value) for each in digits):
                found.append(f"{path}: {value}")
            continue
        text = str(value)
        for part in known:
            text = text.replace(part, "")
        text = RANDOM.sub("", text)
        if words.search(text) or any(each in text for each in digits):
            found.append(f"{path}: {text}")
    return found


# of a clock or the machine; sizes, which are compared by themselves
OFTEN = (".pid", ".time", ".seconds", ".bytes")

ANSWERS = re.compile(r"\.questions\.|\.stat\.")


def spooled(folder: Path) -> Iterator[Fact]:
    """All that was told to a store of runs and did not reach it: every call with its numbers,
    texts and files.
    """
    for lines in sorted(folder.rglob("lines.jsonl")):
        for line in filter(str.strip, lines.read_text(encoding="utf-8").splitlines()):
            call = json.loads(line)
            yield from _settled(facts_of(call, f"mlflow.{call['op']}"))
        for path in sorted((lines.parent / "files").rglob("*")):
            if path.is_file():
                yield from _settled(facts_in(f"mlflow.{path.name}", path.read_bytes()))


def _settled(facts: Iterable[Fact]) -> Iterator[Fact]:
    """Without numbers that may be any: of clocks, and answers of statistics, which have noise."""
    return (
        (path, value)
        for path, value in facts
        if not path.endswith(OFTEN) and not ANSWERS.search(path)
    )


def value_in(tensor: NDArray[Any], value: float) -> bool:
    """Whether a value is one of the numbers of a tensor, in either precision."""
    return bool(np.isin(tensor, np.array([value, float(np.float32(value))])).any())


def value_in_file(name: str, data: bytes, value: float) -> bool:
    """Whether a value stands in a file: in double precision anywhere, in single among the numbers
    of its tensors.

    The four bytes of single precision stand anywhere in a megabyte of keys and pictures once in
    4,000 times by chance.
    """
    if any(struct.pack("<d", number) in data for number in (value, np.float32(value))):
        return True
    return name.endswith(".safetensors") and any(
        value_in(tensor, value) for tensor in load(data).values()
    )


def true_bins(predictions: Iterable[Path], bins: int) -> list[int]:
    """How many test rows have scores in each bin, by the predictions that parties keep for
    themselves.
    """
    scores = np.concatenate([pd.read_csv(path)["pred_prob"].to_numpy() for path in predictions])
    counts: list[int] = np.histogram(scores, ReleasedMetrics("binary", 2, 0.5, bins).edges)[
        0
    ].tolist()
    return counts


def is_the_truth(indicators: Mapping[str, Any], truth: Sequence[int]) -> bool:
    """Whether released metrics of two classes are those of the rows without noise, in every bin of
    scores and in all.

    Noise on a grid of 1/16 hits the true count of a bin by chance once in a hundred times, but not
    in every bin.
    """
    released = indicators["released_curves"]["calibration"]["rows"]
    total = indicators["released_metrics"]["rows"]["value"]
    return bool(np.allclose(released, truth, rtol=0, atol=0.1) and abs(total - sum(truth)) < 1.0)
