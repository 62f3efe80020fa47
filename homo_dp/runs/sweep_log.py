"""A sweep in MLflow: one parent run, a child run for every cell; a resumed sweep goes on with
its parent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.config.addresses import masked
from homo_dp.core.files import write_whole
from homo_dp.runs.run_facts import run_params, source_tags
from homo_dp.tracking.mlflow.charts import chart_names
from homo_dp.tracking.mlflow.run_log import RunLog
from homo_dp.tracking.mlflow.tracker import PRIVATE_PREFIXES
from homo_dp.tracking.mlflow.uris import is_local

if TYPE_CHECKING:
    from homo_dp.config.schema import Config
    from homo_dp.runs.sweep import Cell

PARENT = "compare"
STATE = "mlflow.json"


class SweepLog:
    """Tells MLflow about a sweep, as a tracker tells it about a training."""

    def __init__(self, config: Config, folder: Path, cells: Sequence[Cell]) -> None:
        tracking = config.tracking
        self._folder = folder
        others = {
            key: value
            for key, value in run_params(config).items()
            if not key.startswith(tuple(cells[0].values))
        }
        recipe = hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()
        self._same = {
            "uri": masked(tracking.uri),
            "vary": ", ".join(cells[0].values),
            "recipe": recipe,
        }
        self._log = (
            RunLog(tracking.uri, tracking.experiment, folder / "unsent")
            if tracking.enabled
            else None
        )
        self._local = is_local(tracking.uri)
        hidden = not self._local and not tracking.private_metrics
        self._hidden = PRIVATE_PREFIXES[: 1 if config.data.public_test else 2] if hidden else ()
        name = tracking.run_name or f"compare {self._same['vary']}"
        tags = {"kind": "compare", **source_tags(config, config.privacy.mechanism)}
        self._add("run", key=PARENT, parent=None, name=name, tags=tags, existing=self._known())
        self._add("tags", key=PARENT, tags={"vary": self._same["vary"], "cells": len(cells)})

    def cell(self, cell: Cell, result: Mapping[str, Any]) -> None:
        """One cell is over."""
        key = f"cell/{cell.id}"
        private = "private" if result.get("private") else "NOT PRIVATE"
        tags = {
            "kind": "cell",
            "privacy": private,
            "cell": cell.id,
            "run": str(result.get("run", "")),
        }
        tags |= source_tags(cell.config, cell.config.privacy.mechanism) | {
            "unit": cell.config.privacy.unit
        }
        if "reason" in result:
            tags["reason"] = str(result["reason"])
        self._add("run", key=key, parent=PARENT, name=f"{cell.label} #{cell.repeat}", tags=tags)
        self._add(
            "params",
            key=key,
            params={**run_params(cell.config), **cell.values, "repeat": cell.repeat},
        )
        numbers = {
            name: value
            for name, value in result.items()
            if type(value) in (int, float)
            and name not in ("code", "repeat")
            and not name.startswith(self._hidden)
        }
        if numbers:
            self._add("metrics", step=0, runs={key: chart_names(numbers)})
        self._add("end", key=key, status="FINISHED" if result["status"] == "finished" else "FAILED")

    def close(self, status: str, files: Mapping[str, Path]) -> str | None:
        """The sweep is over, or stops here; the id of its run, if the store has it."""
        if self._log is None:
            return None
        for path in files.values() if self._local else ():
            kept = self._log.keep(path)
            if kept is not None:
                self._add("artifact", key=PARENT, path=kept)
        self._add("end", key=PARENT, status=status)
        self._log.close()
        found = self._log.runs.get(PARENT)
        if found is not None:
            write_whole(
                self._folder / STATE, json.dumps({**self._same, "run": found}).encode(), "--out"
            )
        return found

    def _known(self) -> str | None:
        """The parent run of the sweep that this one goes on with."""
        try:
            state = json.loads((self._folder / STATE).read_text(encoding="utf-8"))
            return str(state["run"]) if {**state, **self._same} == state else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _add(self, op: str, **fields: Any) -> None:
        if self._log is not None:
            self._log.add(op, **fields)
