"""Puts the lines of a spool into an MLflow store: runs, parameters, metrics, files, models,
pictures.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.core.files import make_folder, replacing
from homo_dp.core.heavy_imports import quick_imports
from homo_dp.tracking.mlflow.experiment_view import view_tags
from homo_dp.tracking.mlflow.spool import Line, State, alone
from homo_dp.tracking.mlflow.uris import SQLITE, artifact_location, database, is_local
from homo_dp.tracking.tracker import CONFIG, MODEL

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger(__name__)

PARAM_LENGTH, TAG_LENGTH, KEY_LENGTH = 6000, 5000, 250
PARAMS_AT_ONCE, METRICS_AT_ONCE = 100, 1000
# the ledger lists the rounds that a party was in, and cohorts may be secret
PUBLIC_FILES = (MODEL, CONFIG)
SPOOL_TAG = "homo_dp.spool"
# of a run that several processes told of, one after another: the spool of the newest
HOLDER_TAG = "homo_dp.holder"
# What a store answers to a line that it will never take, however often it is sent.
REFUSALS = (
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_ALREADY_EXISTS",
    "RESOURCE_DOES_NOT_EXIST",
)

Numbered = tuple[Line, int]


class MlflowStore:
    """One MLflow store and experiment, as seen by one spool."""

    def __init__(self, folder: Path, uri: str, experiment: str, state: State) -> None:
        self.folder, self.state = folder, state
        with quiet(), quick_imports():
            from mlflow.tracking import MlflowClient, set_tracking_uri

        with quiet(), _in_turn(uri):
            # registering a model looks its source up there, whatever the client's own address
            set_tracking_uri(uri)
            self.client: MlflowClient = MlflowClient(uri)
            if state.experiment_id is None:
                state.experiment_id = self._experiment(uri, experiment)
                state.save(folder)
        self._elsewhere = self._files_elsewhere(uri)
        self._retried = bool(state.offset)
        self._verbs: Mapping[str, Callable[[Line], None]] = {
            "run": self._run,
            "params": self._params,
            "tags": self._tags,
            "artifact": self._artifact,
            "dataset": self._dataset,
            "model": self._model,
            "draw": self._draw,
            "pictures": self._pictures,
            "end": self._end,
        }

    def apply(self, lines: Iterable[Numbered]) -> None:
        """Send lines in order and remember how far; raises where the store cannot be reached."""
        waiting: list[Line] = []
        for line, offset in lines:
            if line["op"] == "metrics":
                waiting.append(line)
            else:
                self._flush(waiting)
                waiting = []
                verb = self._verbs.get(line["op"])
                if verb is not None:
                    self._try(verb, line)
            if not waiting:
                self._reached(offset)
        if waiting:
            self._flush(waiting)
            self._reached(offset)

    def end_all(self, status: str, moment: int) -> None:
        """End what a writer that is gone left open."""
        for key in [key for key in self.state.runs if key not in self.state.ended]:
            self._end({"key": key, "status": status, "time": moment})

    def _reached(self, offset: int) -> None:
        self.state.offset = offset
        self.state.save(self.folder)

    def _try(self, verb: Callable[[Any], None], argument: Any) -> None:
        """Do one step; what the store will never take is noted and left out, so that the rest
        gets there.
        """
        from mlflow.exceptions import MlflowException

        try:
            verb(argument)
        except MlflowException as error:
            self._retried = True
            if error.error_code not in REFUSALS:
                raise
            self.state.refused.append(first_line(error))
        except (KeyError, TypeError, AttributeError, FileNotFoundError) as error:
            # it would fail again
            self.state.refused.append(f"{type(error).__name__}: {first_line(error)}")
        except Exception:
            self._retried = True
            raise

    def _flush(self, lines: list[Line]) -> None:
        if lines:
            self._try(self._metrics, lines)

    def _experiment(self, uri: str, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is not None:
            for key, value in view_tags().items():
                if found.tags.get(key) != value:  # an experiment of before, or of an older version
                    self.client.set_experiment_tag(found.experiment_id, key, value)
            return str(found.experiment_id)
        try:
            return str(
                self.client.create_experiment(
                    name, artifact_location=artifact_location(uri), tags=view_tags()
                )
            )
        except MlflowException:
            made = self.client.get_experiment_by_name(name)  # by another run, in between
            if made is None:
                raise
            return str(made.experiment_id)

    def _run(self, line: Line) -> None:
        # the mark of a process that may be killed and started again
        key, mark = line["key"], line.get("mark")
        if key in self.state.runs:
            return
        if mark is None:
            run_id = self._made_before(self._tag(line)) if self._retried else None
            self.state.runs[key] = (
                run_id or self._reopened(line.get("existing")) or self._make(line, {})
            )
            return
        self.state.shared = [*{*self.state.shared, key}]
        # the sender of a process that was killed may be about to make the run
        with alone(self.folder.parent):
            run_id = self._made_before(self._tag(line))
            if run_id is None:
                run_id = self._make(line, {HOLDER_TAG: self.folder.name})
            else:
                self._take_over(run_id)
        self.state.runs[key] = run_id

    def _make(self, line: Line, tags: Mapping[str, str]) -> str:
        tags = {name: str(value)[:TAG_LENGTH] for name, value in line["tags"].items()} | dict(tags)
        tags |= {SPOOL_TAG: self._tag(line)}
        if line.get("parent"):
            tags["mlflow.parentRunId"] = self.state.runs[line["parent"]]
        run = self.client.create_run(
            self.state.experiment_id, start_time=line["time"], tags=tags, run_name=line["name"]
        )
        return str(run.info.run_id)

    def _tag(self, line: Line) -> str:
        return f"{line.get('mark') or self.folder.name}/{line['key']}"

    def _reopened(self, run_id: str | None) -> str | None:
        """A run of before that goes on; None if the store does not have it any more."""
        from mlflow.exceptions import MlflowException

        if run_id is None:
            return None
        try:
            self.client.update_run(run_id, status="RUNNING")
        except MlflowException as error:
            if error.error_code not in REFUSALS:
                raise
            return None
        return run_id

    def _take_over(self, run_id: str) -> None:
        """Go on in the run of an earlier start, unless this is the spool that was left behind."""
        if self._holder(run_id) < self.folder.name:
            self.client.set_tag(run_id, HOLDER_TAG, self.folder.name)
            self.client.update_run(run_id, status="RUNNING")

    def _holder(self, run_id: str) -> str:
        return str(self.client.get_run(run_id).data.tags.get(HOLDER_TAG, ""))

    def _made_before(self, mark: str) -> str | None:
        """A run that the store made although its answer was lost; None if there is none."""
        found = self.client.search_runs(
            [self.state.experiment_id], f"tags.`{SPOOL_TAG}` = '{mark}'", max_results=1
        )
        return str(found[0].info.run_id) if found else None

    def _params(self, line: Line) -> None:
        from mlflow.entities import Param

        named = {_name(key): str(value)[:PARAM_LENGTH] for key, value in line["params"].items()}
        # parameters of an earlier start stay: MLflow does not let them change
        if line["key"] in self.state.shared:
            known = self.client.get_run(self._id(line)).data.params
            named = {key: value for key, value in named.items() if key not in known}
        params = [Param(key, value) for key, value in named.items()]
        for part in _parts(params, PARAMS_AT_ONCE):
            self.client.log_batch(self._id(line), params=part)

    def _metrics(self, lines: list[Line]) -> None:
        from mlflow.entities import Metric

        by_run: dict[str, list[Any]] = {}
        for line in lines:
            for key, values in line["runs"].items():
                found = [
                    Metric(_name(name), float(v), line["time"], line["step"])
                    for name, v in values.items()
                ]
                by_run.setdefault(key, []).extend(found)
        for key, metrics in by_run.items():
            if key not in self.state.runs:
                continue
            for part in _parts(metrics, METRICS_AT_ONCE):
                self.client.log_batch(self.state.runs[key], metrics=part)

    def _dataset(self, line: Line) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        said = line["dataset"]
        dataset = Dataset(
            said["name"],
            said["digest"],
            "homo_dp",
            said["source"],
            said.get("schema"),
            said.get("profile"),
        )
        self.client.log_inputs(
            self._id(line), [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])]
        )

    def _tags(self, line: Line) -> None:
        from mlflow.entities import RunTag

        tags = [
            RunTag(_name(name), str(value)[:TAG_LENGTH]) for name, value in line["tags"].items()
        ]
        self.client.log_batch(self._id(line), tags=tags)

    def _files_elsewhere(self, uri: str) -> str | None:
        """Where a store on this machine keeps its files, if that is not on this machine."""
        if not is_local(uri):
            return None  # a server is sent nothing that must stay on this machine
        found = str(self.client.get_experiment(self.state.experiment_id).artifact_location)
        return None if is_local(found) else found

    def _must_stay(self, what: str) -> bool:
        """Whether a file must not be sent, because only the numbers of this store are on this
        machine.
        """
        if self._elsewhere is None or what in PUBLIC_FILES:
            return False
        self.state.refused.append(
            f"{what} must stay on this machine, and the experiment's files are {self._elsewhere}"
        )
        return True

    def _artifact(self, line: Line) -> None:
        if self._must_stay(line.get("role") or "a file"):
            return
        self.client.log_artifact(
            self._id(line), str(self.folder / line["path"]), line.get("folder")
        )

    def _model(self, line: Line) -> None:
        from homo_dp.tracking.mlflow.model_log import log_model

        with quiet():
            log_model(
                self.client,
                self.state.experiment_id,
                self._id(line),
                self.folder / line["path"],
                line["register"],
            )

    def _draw(self, line: Line) -> None:
        from homo_dp.tracking.report.report_files import begin_pictures

        self._drawn(begin_pictures, line["record"], self.folder)

    def _pictures(self, line: Line) -> None:
        from homo_dp.tracking.report.report_files import draw_pictures

        if self._must_stay("plots and report"):
            return
        files = {role: self.folder / path for role, path in line["files"].items()}
        for path, folder in self._drawn(draw_pictures, files, self.folder) or ():
            self.client.log_artifact(self._id(line), str(path), folder)

    def _drawn(self, draw: Callable[..., Any], *arguments: Any) -> Any:
        """Draw; a picture that cannot be drawn is noted and must not keep the numbers back."""
        try:
            return draw(*arguments)
        except Exception as error:
            log.exception("pictures")
            self.state.refused.append(f"pictures: {first_line(error)}")
            return None

    def _end(self, line: Line) -> None:
        run_id = self._id(line)
        with (
            alone(self.folder.parent)
            if line["key"] in self.state.shared
            else contextlib.nullcontext()
        ):
            if line["key"] not in self.state.shared or self._holder(run_id) == self.folder.name:
                self.client.set_terminated(run_id, line["status"], line["time"])
        self.state.ended.append(line["key"])

    def _id(self, line: Line) -> str:
        return self.state.runs[line["key"]]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep a new store's messages about its tables out of the log."""
    loggers = [logging.getLogger(name) for name in ("alembic", "mlflow.store.db.utils", "mlflow")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _in_turn(uri: str) -> Iterator[None]:
    """Open a store in a file one process at a time: two that make its tables at once leave it
    broken for good.
    """
    path = database(uri)
    if path is None:
        yield
        return
    make_folder(path.parent)
    with alone(path.parent):
        if path.exists() and _half_made(path):
            aside = path.with_name(f"{path.name}.half_made")
            os.replace(path, aside)
            log.warning(
                "%s: its tables were half made when a process ended and it holds no runs: is "
                "now %s",
                path,
                aside.name,
            )
        if not path.exists():
            _make_database(path)
        yield


def _make_database(path: Path) -> None:
    """Make the tables of a new store under another name and rename it: MLflow cannot go on with
    half of them.

    MLflow makes them by dozens of migrations, which take seconds and are not one transaction; a
    process that is killed meanwhile leaves no store, and the next one begins again.
    """
    from mlflow.tracking import MlflowClient

    with replacing(path) as temporary:
        MlflowClient(f"{SQLITE}{temporary}").search_experiments(max_results=1)


def _half_made(path: Path) -> bool:
    """Whether a process ended while it made the tables in place, as homo_dp did before, so that
    no run can be there.
    """
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
        names = {
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if any(name.startswith("_alembic_tmp_") for name in names):
            return (
                "runs" in names and database.execute("SELECT COUNT(*) FROM runs").fetchone()[0] == 0
            )
    return False


def first_line(error: BaseException) -> str:
    """The first line of an error, short enough to print."""
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:300]


def _name(text: str) -> str:
    """A name that MLflow takes: letters, digits and ``_-. :/`` only."""
    return re.sub(r"[^\w\-. :/]", "_", text)[:KEY_LENGTH]


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
