"""A sweep: every combination of varied keys, several times, on several cores, and resumable.

Every cell is an ordinary run: it charges the same ledger, because each cell releases a model of the
same rows.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError, InputError
from homo_dp.core.untrusted_text import Foreign, Schema
from homo_dp.runs.sweep_cost import before_of
from homo_dp.tracking.files import write_json

RESULT = "result.json"


class _Result(Schema):
    """What a finished cell must have kept; its numbers are numbers or null."""

    status: str
    code: int | None = None
    values: dict[str, Any]
    repeat: int
    epsilon: float | None = None
    epsilon_rdp: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    seconds: float | None = None
    test_acc: float | None = None
    test_auc: float | None = None
    test_loss: float | None = None
    train_acc: float | None = None


Values = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: the values it varies, which repeat it is, and its whole configuration."""

    values: Mapping[str, Any]
    repeat: int
    config: Config

    @property
    def id(self) -> str:
        """A name that depends on everything that could change the result, and on nothing else."""
        said = self.config.model_dump(mode="json", exclude={"output", "tracking"})
        text = json.dumps([said, self.repeat], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.values.items())


def parse_vary(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Read ``key=v1,v2,...`` items; a value in brackets may hold commas.

    >>> parse_vary(["privacy.max_grad_norm=0.1,1", "model.layers=[64],[64,32]"])
    {'privacy.max_grad_norm': (0.1, 1), 'model.layers': ([64], [64, 32])}
    """
    from homo_dp.config.params import parse_value, split_items

    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, mark, listed = text.partition("=")
        values = tuple(parse_value(item) for _, item in split_items(listed)) if mark else ()
        if not key.strip() or not values:
            raise ConfigError(
                f"--vary {text}: must be key=value1,value2,... such as "
                "privacy.max_grad_norm=0.1,1,3"
            )
        if key in found:
            raise ConfigError(f"--vary {key}: is given twice; list all its values in one --vary")
        found[key] = tuple(value for at, value in enumerate(values) if value not in values[:at])
    return found


def cells_of(
    vary: Values, repeats: int, folder: Path, load: Callable[[Sequence[tuple[str, Any]]], Config]
) -> list[Cell]:
    """All cells, checked before the first one runs; ``load`` gives the configuration under some
    overrides.
    """
    cells: list[Cell] = []
    for combination in itertools.product(*vary.values()):
        values = dict(zip(vary, combination, strict=True))
        for repeat in range(repeats):
            base = load(list(values.items()))
            seeded = [
                *values.items(),
                ("train.seed", base.train.seed + repeat),
                ("tracking.enabled", False),
            ]
            cell = Cell(values, repeat, load(seeded))
            names = ("predictFileName", "indicatorFileName", "modelFileName")
            files = [
                (f"output.{name}", str(folder / "cells" / cell.id / _file(name))) for name in names
            ]
            cells.append(Cell(values, repeat, load([*seeded, *files])))
    if len({cell.id for cell in cells}) < len(cells):
        raise ConfigError(
            f"--vary {', '.join(vary)}: some of its values give the same training twice (where "
            "files and runs are kept does not change it); vary keys of model, data, privacy, "
            "nbafl or train"
        )
    return cells


def finished(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """The result of a cell that an earlier sweep finished."""
    path = folder / "cells" / cell.id / RESULT
    file = Foreign(str(path), "delete it: the cell runs again", InputError)
    try:
        found = file.json(file.read(path))
        known = file.check(_Result, found)
    except (FileNotFoundError, InputError):
        return None  # what cannot be read is run again
    return {**found, "before": before_of(cell.config)} if known.status == "finished" else None


def run_cells(
    cells: Sequence[Cell], folder: Path, jobs: int
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Run cells on several cores and give each with its result as it ends; finished ones are
    kept on disk.
    """
    if not cells:
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # the workers' torch: one core each
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(jobs, len(cells)), mp_context=context, initializer=_ignore_interrupts
    ) as pool:
        running: dict[Future[dict[str, Any]], Cell] = {}
        try:
            for cell in cells:
                running[pool.submit(run_cell, cell.config.model_dump(mode="json"))] = cell
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    cell, result = running.pop(future), future.result()
                    result |= {"values": dict(cell.values), "repeat": cell.repeat, "cell": cell.id}
                    result["before"] = before_of(cell.config)
                    if result["status"] == "finished":
                        write_json(folder / "cells" / cell.id / RESULT, result, "result of a cell")
                    yield cell, result
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise InputError(
                    "a worker process died (out of memory?); the same command goes on from here, "
                    "best with --jobs 1"
                ) from error
            raise


def run_cell(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Train one cell in this process and write its files; what refuses to run is a result too."""
    import torch

    from homo_dp.config.load import config_from
    from homo_dp.console.options import explain

    torch.set_num_threads(1)
    config = config_from(tree)
    try:
        return _train(config)
    except Exception as error:
        code, text = explain(error)
        return {"status": "failed", "code": code, "reason": " ".join(text.split())}


def _train(config: Config) -> dict[str, Any]:
    from homo_dp.federation.sessions.build import mechanism_class
    from homo_dp.runs.outputs import write_outputs
    from homo_dp.runs.user_simulation import build_simulation
    from homo_dp.tracking.indicators import numbers_of

    # imported now, or the time of the first round would include it
    mechanism_class(config.privacy.mechanism).warm_up()
    simulation = build_simulation(config, lambda _row, _parties: None)
    outcome = simulation.run()
    written = write_outputs(outcome, simulation.ledger, simulation.gradient_norms)
    released = written.indicators.get("released_metrics", {})
    parties = outcome.statement["parties"].values()
    rdp = [party["epsilon_rdp"] for party in parties if party["epsilon_rdp"] is not None]
    return {
        "status": "finished",
        "run": outcome.run,
        "private": outcome.statement["private"],
        "epsilon": outcome.statement["epsilon"],
        "epsilon_rdp": max(rdp, default=None) if outcome.statement["private"] else None,
        "delta": outcome.statement["delta"],
        "noise_multiplier": max((party["noise_multiplier"] for party in parties), default=None),
        "seconds": sum(row["seconds"] for row in outcome.rounds),
        **numbers_of(written.indicators),
        **{
            f"released_{name}": one["value"]
            for name, one in released.items()
            if isinstance(one, dict)
        },
        "files": {role: str(path) for role, path in written.files.items()},
    }


def _file(name: str) -> str:
    return {"predictFileName": "predict.csv", "indicatorFileName": "indicator.json"}.get(
        name, "model.safetensors"
    )


def _ignore_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; the one that started the sweep ends the
    others.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
