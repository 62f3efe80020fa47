"""MLflow: one parent run per training, a child run per party, sent by a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.tracking.mlflow.charts import CONSTANT, Steady, chart_names
from homo_dp.tracking.mlflow.run_log import RunLog
from homo_dp.tracking.mlflow.uris import is_local
from homo_dp.tracking.tracker import INDICATORS, MODEL, NORMS, PREDICTIONS, NoTracker, Tracker

if TYPE_CHECKING:
    from homo_dp.config.schema import Config

log = logging.getLogger(__name__)

TRAINING = "training"
NAME, DESCRIPTION = "mlflow.runName", "mlflow.note.content"  # MLflow's own tags
PRIVATE_PREFIXES = ("train_", "test_")
LOCAL_FILES = (PREDICTIONS, NORMS)


class MlflowTracker:
    """Tells a store about a training without ever waiting for it, except at the end, for a limited
    time.

    Guarantees:
        - predictions and gradient norms go only to a store that is a file of this machine;
        - so do numbers that were computed from private rows without noise, unless
          ``private_metrics`` lets them go.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        run_name: str | None = None,
        *,
        beside: str | Path = "out/indicator.json",
        register: str | None = None,
        public_test: bool = False,
        private_metrics: bool = False,
        pictures: bool = True,
    ) -> None:
        self.run_name, self.register, self.pictures = run_name, register, pictures
        self.run_id: str | None = None
        self.local = is_local(uri)
        self._hidden = (
            () if self.local or private_metrics else PRIVATE_PREFIXES[: 1 if public_test else 2]
        )
        place = Path(beside)
        self._log = RunLog(uri, experiment, place.with_name(f"{place.stem}_unsent"))
        self._runs: list[str] = []
        self._round, self._last = 0, dict[str, float]()
        self._steady: dict[str, Steady] = {}
        self._description = ""
        self._finished = False

    def start(
        self,
        params: Mapping[str, str],
        tags: Mapping[str, str],
        parties: Sequence[str],
        mark: str | None = None,
        dataset: Mapping[str, Any] | None = None,
    ) -> None:
        made_up = tags.get(NAME) or "/".join(
            filter(None, (tags.get("run", TRAINING), tags.get("party")))
        )
        name, self._description = self.run_name or made_up, tags.get(DESCRIPTION, "")
        shared = {key: value for key, value in tags.items() if key not in (NAME, DESCRIPTION)}
        said = {DESCRIPTION: self._description} if self._description else {}
        self._open(TRAINING, None, name, shared | said, params, mark)
        if dataset is not None:
            self._log.add("dataset", key=TRAINING, dataset=dict(dataset))
        for party in parties:
            child = (
                f"{party} {name.rpartition(' ')[2]}"
                if name == tags.get(NAME)
                else f"{name}/{party}"
            )
            self._open(
                f"party/{party}",
                TRAINING,
                child,
                shared | {"party": party},
                {"party": party},
                mark,
            )
        if self._hidden:
            log.warning(
                "tracking.uri is not on this machine: numbers that were computed from private rows "
                "stay out of it (tracking.private_metrics: true sends them)"
            )

    def log_round(
        self, number: int, metrics: Mapping[str, float], parties: Mapping[str, Mapping[str, float]]
    ) -> None:
        self._round, self._last = number, dict(metrics)
        found = {TRAINING: chart_names(self._shown(metrics))}
        found |= {
            f"party/{party}": chart_names(values) for party, values in parties.items() if values
        }
        drawn: dict[int, dict[str, Any]] = {}
        for key, values in found.items():
            for step, charted in (
                self._steady.setdefault(key, Steady()).charted(number, values).items()
            ):
                drawn.setdefault(step, {})[key] = charted
        for step, runs in sorted(drawn.items()):
            self._log.add("metrics", step=step, runs=runs)

    def draw(self, record: Mapping[str, Any]) -> None:
        if not self.pictures or not self._runs:
            return
        rounds = [self._shown(row) for row in record["indicators"]["rounds"]]
        indicators = {**record["indicators"], "rounds": rounds}
        norms = record.get("norms") if self.local else None
        self._log.add("draw", record={**record, "indicators": indicators, "norms": norms})

    def finish(
        self,
        status: str,
        files: Mapping[str, Path],
        tags: Mapping[str, str],
        metrics: Mapping[str, float] | None = None,
    ) -> str | None:
        if self._finished:
            return None
        self._finished = True
        if self._runs:
            self._last_words(status, files, tags, metrics or {})
        self._log.close()
        self.run_id = self._log.runs.get(TRAINING)
        return self.run_id

    def _open(
        self,
        key: str,
        parent: str | None,
        name: str,
        tags: Mapping[str, str],
        params: Mapping[str, str],
        mark: str | None,
    ) -> None:
        self._log.add("run", key=key, parent=parent, name=name, tags=dict(tags), mark=mark)
        self._log.add("params", key=key, params=dict(params))
        self._runs.append(key)

    def _last_words(
        self,
        status: str,
        files: Mapping[str, Path],
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
    ) -> None:
        shown = self._shown(metrics)
        news = {name: value for name, value in shown.items() if self._last.get(name) != value}
        charts = {name: value for name, value in news.items() if name not in CONSTANT}
        if charts:
            self._log.add("metrics", step=self._round, runs={TRAINING: chart_names(charts)})
        self._tell_constants({name: value for name, value in shown.items() if name in CONSTANT})
        if tags:
            said = [
                self._description,
                *(tags[key] for key in ("statement", "reason") if key in tags),
            ]
            described = {DESCRIPTION: "\n\n".join(filter(None, said))}
            self._log.add("tags", key=TRAINING, tags=dict(tags) | described)
        kept = self._keep(files)
        for role, name in kept.items():
            self._log.add("artifact", key=TRAINING, path=name, role=role)
        if MODEL in kept:
            self._log.add("model", key=TRAINING, path=kept[MODEL], register=self.register)
        if self.pictures and INDICATORS in kept:
            self._log.add("pictures", key=TRAINING, files=kept)
        for key in reversed(self._runs):
            self._log.add("end", key=key, status=status)

    def _tell_constants(self, known: Mapping[str, float]) -> None:
        for key in self._runs:
            held = self._steady[key].constants() if key in self._steady else {}
            # under a prefix: a comparison lists parameters by name, and settings come first
            params = {f"round.{name}": value for name, value in held.items()}
            params |= known if key == TRAINING else {}
            if params:
                self._log.add("params", key=key, params=params)

    def _keep(self, files: Mapping[str, Path]) -> dict[str, str]:
        kept: dict[str, str] = {}
        for role, path in files.items():
            if not self.local and role in LOCAL_FILES:
                continue
            name = self._log.keep(
                self._may_leave(path) if role == INDICATORS and self._hidden else path
            )
            if name is not None:
                kept[role] = name
        return kept

    def _may_leave(self, path: Path) -> Path:
        """The indicators without what must stay on this machine, as a file of the same name."""
        import json

        from homo_dp.tracking.files import write_json
        from homo_dp.tracking.indicators import published

        folder = self._log.folder
        if folder is None:
            return path
        copy = folder / "published" / path.name
        write_json(
            copy, published(json.loads(path.read_text(encoding="utf-8"))), "published indicators"
        )
        return copy

    def _shown(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in metrics.items() if not name.startswith(self._hidden)}


def open_tracker(config: Config) -> Tracker:
    """The tracker that a configuration asks for. Open it first: what it needs is then loaded
    beside our own imports.
    """
    if not config.tracking.enabled:
        return NoTracker()
    return MlflowTracker(
        config.tracking.uri,
        config.tracking.experiment,
        config.tracking.run_name,
        beside=config.output.indicatorFileName,
        register=config.tracking.model_name,
        public_test=config.data.public_test,
        private_metrics=config.tracking.private_metrics,
        pictures=config.tracking.plots,
    )
