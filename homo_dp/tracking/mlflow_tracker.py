"""MLflow: one parent run per training, a child run per party, written by a thread of its own.

The training thread only puts work on a queue; a store that is slow or down costs it nothing and is said once.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger(__name__)

FINISH_SECONDS = 30.0
PARAM_LENGTH = 6000


class MlflowTracker:
    """Logs through a background thread; ``finish`` waits for it, for a limited time."""

    def __init__(self, uri: str, experiment: str, run_name: str | None) -> None:
        self.uri = uri
        self.experiment = experiment
        self.run_name = run_name
        self.run_id: str | None = None
        self._children: dict[str, str] = {}
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._client: MlflowClient | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._drain, name="mlflow", daemon=True)
        self._thread.start()

    def start(self, params: Mapping[str, str], tags: Mapping[str, str], parties: Sequence[str]) -> None:
        self._work.put(lambda: self._start(params, tags, parties))

    def log_round(self, number: int, metrics: Mapping[str, float], parties: Mapping[str, Mapping[str, float]]) -> None:
        moment = int(time.time() * 1000)
        self._work.put(lambda: self._log_round(number, moment, metrics, parties))

    def finish(self, status: str, artifacts: Sequence[Path], tags: Mapping[str, str]) -> None:
        self._work.put(lambda: self._finish(status, artifacts, tags))
        self._work.put(None)
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive():
            self._warn(f"did not answer within {FINISH_SECONDS:g} s")

    def _drain(self) -> None:
        while (job := self._work.get()) is not None:
            try:
                job()
            except Exception as error:
                self._warn(str(error).splitlines()[0] if str(error) else type(error).__name__)

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("tracking.uri=%s: %s; training goes on without it", self.uri, reason)

    def _start(self, params: Mapping[str, str], tags: Mapping[str, str], parties: Sequence[str]) -> None:
        with _quiet_logging():
            from mlflow.tracking import MlflowClient

            self._client = MlflowClient(self.uri)
            experiment = self._client.get_experiment_by_name(self.experiment)
            identifier = experiment.experiment_id if experiment else self._create_experiment(self._client)
        run = self._client.create_run(identifier, run_name=self.run_name, tags=dict(tags))
        self.run_id = run.info.run_id
        from mlflow.entities import Param

        self._client.log_batch(self.run_id, params=[Param(k, v[:PARAM_LENGTH]) for k, v in params.items()])
        for party in parties:
            child_tags = dict(tags) | {"mlflow.parentRunId": self.run_id, "party": party}
            child = self._client.create_run(identifier, run_name=f"{self.run_name}/{party}", tags=child_tags)
            self._children[party] = child.info.run_id

    def _create_experiment(self, client: MlflowClient) -> str:
        location = None
        if self.uri.startswith("sqlite:///"):
            location = (Path(self.uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()
        return str(client.create_experiment(self.experiment, artifact_location=location))

    def _log_round(
        self, number: int, moment: int, metrics: Mapping[str, float], parties: Mapping[str, Mapping[str, float]]
    ) -> None:
        from mlflow.entities import Metric

        client = self._required_client()
        for run_id, values in ((self.run_id, metrics), *((self._children.get(p), v) for p, v in parties.items())):
            if run_id and values:
                client.log_batch(run_id, metrics=[Metric(k, v, moment, number) for k, v in values.items()])

    def _finish(self, status: str, artifacts: Sequence[Path], tags: Mapping[str, str]) -> None:
        client = self._required_client()
        for key, value in tags.items():
            client.set_tag(self.run_id, key, value)
        for path in artifacts:
            client.log_artifact(self.run_id, str(path))
        for run_id in (*self._children.values(), self.run_id):
            client.set_terminated(run_id, status)

    def _required_client(self) -> Any:
        if self._client is None or self.run_id is None:
            raise ConnectionError("the run was not created")
        return self._client


@contextlib.contextmanager
def _quiet_logging() -> Any:
    """Keep the messages of a new store's schema migration off the user's screen."""
    loggers = [logging.getLogger(name) for name in ("alembic", "mlflow.store.db.utils", "mlflow")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
