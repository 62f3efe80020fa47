"""Predictions as CSV: every input column as it came, then what the model says; written in chunks,
safe to open.

"Safe to open" means that a spreadsheet shows the file and runs nothing: a text cell that would
start a formula gets an apostrophe in front (OWASP, CSV injection). Numbers, negative ones too, stay
as they are.
"""

from __future__ import annotations

import collections
import csv
import io
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from homo_dp.core.errors import DataError
from homo_dp.tracking.files import compressed_write

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from homo_dp.models.task import Task

PARTY = "party"
OTHER_PARTY = "federation_party"
TEXT = pa.large_string()
# A formula starts with one of these (full-width forms too), unless the whole cell is a number such
# as -1.5e3.
_FORMULA = r"^[=+\-@\t\r\n\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_CHUNK = 50_000  # rows made into text at a time
_MANY = 10_000  # rows from which on it is worth a thread
# threads that do it, while the caller scores the next rows: Arrow works without the interpreter
# lock
_WORKERS = 2
_AHEAD = 4  # chunks that may wait to be written
# of so many numbers no more than so many differ where about a third of a chunk does
_SAMPLE, _FEW = 2048, 1900
_NEEDS_QUOTES = r"[\",;\t\r\n]|^\s|\s$"


def prediction_columns(columns: Sequence[str], task: Task, with_party: bool = False) -> list[str]:
    """The header of the file for these input columns; a name that the file needs for itself is
    refused.

    >>> from homo_dp.models.task import task_for
    >>> prediction_columns(["id", "x"], task_for(["a", "b", "c"]), with_party=True)
    ['party', 'id', 'x', 'prob_a', 'prob_b', 'prob_c', 'pred_prob', 'pred_y']
    """
    own = result_columns(task)
    taken = [name for name in own if name in columns]
    if taken:
        raise DataError(
            f"column {taken[0]!r}: the predictions file needs this name for itself; rename the "
            "column in the table or drop it there"
        )
    party = [party_column(columns)] if with_party else []
    return [*party, *columns, *own]


def result_columns(task: Task) -> list[str]:
    """The columns that the model adds: class probabilities (more than two classes), pred_prob,
    pred_y.
    """
    if task.kind == "regression":
        return ["pred_y"]
    classes = [f"prob_{name}" for name in task.classes] if task.kind == "multiclass" else []
    return [*classes, "pred_prob", "pred_y"]


def party_column(columns: Sequence[str]) -> str:
    """The name of the column that says whose row it is: another one where the table has a
    `party` of its own.
    """
    return OTHER_PARTY if PARTY in columns else PARTY


class PredictionWriter:
    """Writes predictions chunk by chunk; the file appears under its name when the block ends
    without an error.

    Rows keep their order, columns theirs; a path that ends in ``.gz`` is compressed. Many rows
    become text in the background, a few chunks ahead of the file.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Sequence[str],
        task: Task,
        *,
        threshold: float = 0.5,
        with_party: bool = False,
        name: str = "predictFileName",
    ) -> None:
        self.header = prediction_columns(columns, task, with_party)
        self.rows = 0
        self._path, self._columns, self._task, self._name = path, list(columns), task, name
        self._threshold = threshold
        self._with_party = with_party
        self._stack = ExitStack()
        self._file: BinaryIO | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: collections.deque[Future[memoryview]] = collections.deque()

    def __enter__(self) -> Self:
        self._file = self._stack.enter_context(compressed_write(self._path, self._name))
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(
            _safe_texts(pa.array(self.header, TEXT)).to_pylist()
        )
        self._file.write(line.getvalue().encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            if kind is None:
                self._drain(0)
        except BaseException as failed:
            self._close(type(failed), failed, failed.__traceback__)
            raise
        return self._close(kind, error, trace)

    def write(
        self, frame: pd.DataFrame, outputs: Tensor, party: str | Sequence[str] | None = None
    ) -> None:
        """Append rows.

        Args:
            frame: the rows as they are in the table.
            outputs: the model's raw outputs for them.
            party: whose they are: of all, or of each.
        """
        if self._file is None:
            raise ValueError("the writer is closed; use it in a with block")
        if len(frame) != len(outputs) or (party is None) == self._with_party:
            raise ValueError(
                f"rows={len(frame)}, outputs={len(outputs)}, party={party}: do not belong together"
            )
        if list(map(str, frame.columns)) != self._columns:
            raise DataError("a chunk of the table has other columns than its first; check the file")
        results = _results(self._task, outputs, self._threshold)
        for at in range(0, len(frame), _CHUNK):
            self._put(
                frame.iloc[at : at + _CHUNK],
                [result[at : at + _CHUNK] for result in results],
                party if party is None or isinstance(party, str) else party[at : at + _CHUNK],
            )
        self.rows += len(frame)

    def _put(
        self, frame: pd.DataFrame, results: list[Any], party: str | Sequence[str] | None
    ) -> None:
        """Make rows into text: few of them here, many in the background."""
        if self._file is None:
            raise ValueError("the writer is closed; use it in a with block")
        if len(frame) < _MANY:
            self._drain(0)
            self._file.write(_text_of(frame, results, party))
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="homo_dp predictions")
        self._waiting.append(self._pool.submit(_text_of, frame, results, party))
        self._drain(_AHEAD)

    def _drain(self, most: int) -> None:
        """Write what is ready until no more than so many chunks wait."""
        while len(self._waiting) > most and self._file is not None:
            self._file.write(self._waiting.popleft().result())

    def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._file, self._pool = None, None
        self._waiting.clear()
        return self._stack.__exit__(kind, error, trace)


def _text_of(
    frame: pd.DataFrame, results: Sequence[Any], party: str | Sequence[str] | None
) -> memoryview:
    """Rows of the table with what the model says of them, as they stand in the file."""
    arrays = [_column(series) for _, series in frame.items()]
    if party is not None:
        names = [party] * len(frame) if isinstance(party, str) else list(party)
        arrays.insert(0, _safe_texts(pa.array(names, TEXT)))
    return _lines([_quoted(array) for array in [*arrays, *results]])


def _results(task: Task, outputs: Tensor, threshold: float) -> list[Any]:
    predicted = task.predictions(outputs, threshold).cpu().numpy()
    if task.kind == "regression":
        return [pa.array(predicted)]
    answers = _safe_texts(pa.array([str(name) for name in task.classes], TEXT)).take(
        pa.array(predicted)
    )
    probabilities = task.probabilities(outputs).cpu().numpy()
    if task.kind == "binary":
        return [pa.array(probabilities), answers]
    chosen = np.take_along_axis(probabilities, predicted[:, None], axis=1)[:, 0]
    return [
        *(pa.array(np.ascontiguousarray(column)) for column in probabilities.T),
        pa.array(chosen),
        answers,
    ]


def _column(series: pd.Series[Any]) -> Any:
    """A column as Arrow data: numbers as they are, all else as the text that Python shows, made
    safe.
    """
    try:
        array = pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        array = pa.nulls(0)  # values of several types in one column
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        return array
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        array = pa.array(
            [None if gap else str(value) for value, gap in zip(series, series.isna(), strict=True)],
            TEXT,
        )
    return _safe_texts(array.cast(TEXT))


def _safe_texts(array: Any) -> Any:
    if _all_numbers(array):
        return array
    risky = pc.match_substring_regex(array, _FORMULA)
    if not pc.any(risky).as_py():
        return array
    risky = pc.and_(risky, pc.invert(pc.match_substring_regex(array, _NUMBER)))
    return pc.if_else(risky, pc.binary_join_element_wise(_text("'"), array, _text("")), array)


def _all_numbers(array: Any) -> bool:
    """Whether all cells are plain finite numbers, with nothing to make safe or quote; cheaper
    than patterns.
    """
    try:
        return bool(pc.all(pc.is_finite(pc.cast(array, pa.float64()))).as_py())
    except pa.ArrowInvalid:
        return False


def _quoted(array: Any) -> Any:
    """Cells as they stand in the file: in quotes where a reader would otherwise split or trim
    them.
    """
    if not pa.types.is_large_string(array.type):
        return _number_texts(array)
    if _all_numbers(array):
        return array
    special = pc.match_substring_regex(array, _NEEDS_QUOTES)
    if not pc.any(special).as_py():
        return array
    doubled = pc.replace_substring(array, '"', '""')
    return pc.if_else(
        special, pc.binary_join_element_wise(_text('"'), doubled, _text('"'), _text("")), array
    )


def _number_texts(array: Any) -> Any:
    """Numbers as text. Measured ones often repeat: each different one is then made into text
    once.
    """
    if not pa.types.is_float64(array.type) or len(array) < _MANY:
        return array.cast(TEXT)
    bits = array.view(pa.int64())  # as numbers, 0 and -0 would be one
    if pc.count_distinct(bits[:_SAMPLE]).as_py() > _FEW:
        return array.cast(TEXT)
    encoded = bits.dictionary_encode()
    return encoded.dictionary.view(pa.float64()).cast(TEXT).take(encoded.indices)


def _lines(columns: Sequence[Any]) -> memoryview:
    """The rows as CSV bytes: Arrow joins the cells of all rows at once, so no loop runs over
    them.
    """
    options = {"null_handling": "replace", "null_replacement": ""}
    last = pc.binary_join_element_wise(columns[-1], _text("\n"), _text(""), **options)
    whole = pc.binary_join_element_wise(*columns[:-1], last, _text(","), **options)
    _, offsets, text = whole.buffers()
    return memoryview(text)[: int(np.frombuffer(offsets, np.int64)[len(whole)])]


def _text(value: str) -> Any:
    return pa.scalar(value, TEXT)
