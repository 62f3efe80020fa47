"""The files of a finished or interrupted training: predictions, indicators, model, resolved
config, ledger extract.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from homo_dp import __version__
from homo_dp.config.load import dump_yaml
from homo_dp.config.output import OutputConfig
from homo_dp.config.schema import Config
from homo_dp.core.errors import printable
from homo_dp.core.files import FOLDER_MODE, make_folder, write_whole
from homo_dp.data.recorded_split import split_record
from homo_dp.federation.protocol.round_sums import METRICS
from homo_dp.federation.sessions.best_round import LOWER_IS_BETTER, BestRound, best_round_of
from homo_dp.federation.sessions.build import run_budget
from homo_dp.models.baselines import majority, plain_fit
from homo_dp.models.files import ModelCard, save_model
from homo_dp.models.metrics import evaluate
from homo_dp.models.scoring import no_metrics, outputs_of, score_tables
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.code_version import commit_tags
from homo_dp.runs.lifecycle import Table
from homo_dp.runs.round_metrics import GradientNorms
from homo_dp.runs.setup_facts import bounds_facts
from homo_dp.runs.simulation import RunOutcome
from homo_dp.tracking.files import companion, write_json
from homo_dp.tracking.indicators import build_indicators, local_only_names, write_indicators
from homo_dp.tracking.predictions import PredictionWriter
from homo_dp.tracking.report.ledger_extract import ledger_summary

FILE_NAMES = ("predictFileName", "indicatorFileName", "modelFileName")
# those that a result or its noise rests on
LIBRARIES = ("torch", "numpy", "pandas", "dp-accounting", "cryptography")


@dataclass(frozen=True)
class Written:
    """Where the files went, and the numbers in them."""

    files: Mapping[str, Path]
    indicators: Mapping[str, Any]


def write_outputs(
    outcome: RunOutcome,
    ledger: Ledger | None,
    norms: GradientNorms | None = None,
    begin: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> Written:
    """Write everything that a training leaves, each file whole or not at all; ``begin`` hears
    what plots need first.
    """
    config = outcome.config
    output = config.output if not outcome.interrupted else apart(config.output)
    outcome.load_weights()
    files = {
        "predictions": Path(output.predictFileName),
        "indicators": Path(output.indicatorFileName),
        "model": Path(output.modelFileName),
        "config": companion(output.indicatorFileName, "config.yaml"),
    }
    extract = [] if ledger is None else ledger.extract(outcome.run)
    summary = None if ledger is None else ledger_summary(ledger, outcome.run, run_budget(config))
    histogram = norms.histogram() if norms is not None else None
    worth = worth_of(outcome)
    begin(
        {
            "indicators": {
                "privacy": outcome.statement,
                "rounds": outcome.rounds,
                "ledger": summary,
                **worth,
            },
            "ledger": [
                {key: row[key] for key in ("party", "round", "epsilon", "epsilon_rdp")}
                for row in extract
            ],
            "norms": histogram,
        }
    )
    indicators = indicators_of(outcome, summary, worth)
    _write_predictions(outcome, files["predictions"])
    save_model(files["model"], outcome.weights, model_card(outcome))
    write_whole(files["config"], dump_yaml(config).encode(), "resolved config")
    if ledger is not None:
        files["ledger"] = companion(output.indicatorFileName, "ledger.json")
        write_json(files["ledger"], extract, "ledger extract")
    if histogram is not None:
        files["gradient_norms"] = companion(output.indicatorFileName, "gradient_norms.json")
        write_json(files["gradient_norms"], {"run": outcome.run, **histogram}, "gradient norms")
    write_indicators(files["indicators"], indicators)
    if output.parties:
        _write_for_parties(outcome, output, files["model"].read_bytes())
    return Written(files, indicators)


def apart(output: OutputConfig) -> OutputConfig:
    """Names of their own for an interrupted run, so that it replaces no finished one.

    >>> apart(OutputConfig()).modelFileName
    'out/model_interrupted.safetensors'
    """
    return _renamed(output, lambda path: path.with_name(f"{path.stem}_interrupted{path.suffix}"))


def _renamed(output: OutputConfig, rename: Callable[[Path], Path]) -> OutputConfig:
    """The same files under other names, those for single parties too."""
    made: dict[str, Any] = {
        name: str(rename(Path(path))) for name, path in output if isinstance(path, str)
    }
    made["parties"] = {
        party: own.model_copy(
            update={name: str(rename(Path(path))) for name, path in own if path is not None}
        )
        for party, own in output.parties.items()
    }
    return output.model_copy(update=made)


def numbered(output: OutputConfig) -> OutputConfig:
    """The same names in a new folder ``run-001``, ``run-002``, ... beside them, which is made
    here.
    """
    parent = Path(output.indicatorFileName).parent
    make_folder(parent)
    number = 1 + max(
        (int(path.name[4:]) for path in parent.glob("run-*") if path.name[4:].isdecimal()),
        default=0,
    )
    while True:
        folder = parent / f"run-{number:03}"
        try:
            folder.mkdir(mode=FOLDER_MODE)
            break
        except FileExistsError:  # another run was quicker
            number += 1
    return _renamed(output, lambda path: path.parent / folder.name / path.name)


def replaced(
    output: OutputConfig, run: str | None = None, names: Sequence[str] = FILE_NAMES
) -> str | None:
    """What a run would replace, in a sentence; None if its names are free.

    Args:
        output: the names.
        run: of a process of a federation, which has no --keep; its own files are not another's.
        names: the keys of the files that it writes.
    """
    there = [path for name in names if Path(path := getattr(output, name)).is_file()]
    if not there:
        return None
    other = ""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(Path(output.indicatorFileName).read_bytes())
        if isinstance(found, dict) and found.get("run"):
            if found["run"] == run:
                return None
            other = (
                f" of {printable(str(found['run']))[:80]}, finished "
                f"{printable(str(found.get('finished')))[:40]}"
            )
    way = (
        "--keep writes each run into a folder of its own"
        if run is None
        else "other paths in output keep them"
    )
    return f"replaces {', '.join(there)}{other}; {way}"


def worth_of(outcome: RunOutcome) -> dict[str, Any]:
    """What the result is to be compared with: the most frequent class, and a plain fit where the
    rows are public.
    """
    parties, task, data = (
        outcome.federation.parties.values(),
        outcome.model.task,
        outcome.config.data,
    )
    test = [party.test for party in parties if party.test is not None and len(party.test)]
    found: dict[str, Any] = {}
    labels = [table.labels for table in test if table.labels is not None]
    if task.kind != "regression" and labels:
        found["test_majority"] = majority(torch.cat(labels))
    if data.public or (data.embedded is not None and not data.files):
        found["plain_fit"] = plain_fit(task, [party.train for party in parties], test)
    return found


def report_facts(config: Config) -> dict[str, Any]:
    """What the report repeats of the config and of the software."""
    about = {name: text for name, text in config.report if text is not None}
    rows = {"one_row_per_person": True if config.data.one_row_per_person else "unknown"}
    commit = next(iter(commit_tags().values()), None)
    return {
        **({"about": about} if about else {}),
        **(rows if config.privacy.unit == "record" else {}),
        "software": {"commit": commit, "libraries": {name: version(name) for name in LIBRARIES}},
    }


def indicators_of(
    outcome: RunOutcome, ledger: Mapping[str, Any] | None, worth: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The content of the indicators file: metrics, the privacy statement, every round, the state
    of the ledger.
    """
    worth = worth_of(outcome) if worth is None else worth
    config, federation, threshold = (
        outcome.config,
        outcome.federation,
        outcome.config.predict.threshold,
    )
    module, task = outcome.model.module, outcome.model.task
    parts: dict[str, dict[str, Any]] = {}
    tables = {
        "train_": [party.train for party in federation.parties.values()],
        "test_": [
            party.test
            for party in federation.parties.values()
            if party.test is not None and len(party.test)
        ],
    }
    for name, found in tables.items():
        parts[name] = (
            evaluate(task, *score_tables(module, found), name, threshold)
            if found
            else no_metrics(task, name)
        )
    if federation.strays.rows:
        parts["train_"]["train_strays"] = federation.strays.shares()
    if "test_majority" in worth:
        parts["test_"]["test_majority"] = worth["test_majority"]
    public_test = config.data.public_test
    local_only = local_only_names(
        parts["train_"], parts["test_"], outcome.rounds, public_test=public_test
    )
    extra = {
        "run": outcome.run,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "data": config.data.dataset,
        "model": config.model.factory or config.model.name,
        "rounds_done": len(outcome.rounds),
        "interrupted": outcome.interrupted,
        "bounds": bounds_facts(config, outcome.own),
        "setup": dict(outcome.setup),
        **report_facts(config),
        "classes": [str(name) for name in task.classes],
        **({"plain_fit": worth["plain_fit"]} if worth.get("plain_fit") else {}),
        **released_of(outcome.rounds),
        **judged(outcome.rounds, config),
        "ledger": ledger,
    }
    return build_indicators(
        parts["train_"], parts["test_"], outcome.statement, outcome.rounds, local_only, extra
    )


def released_of(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last metrics that parties released with noise, each with the half width of its 95 %
    bar; empty without.
    """
    asked = [row for row in rounds if row.get("asked") == METRICS and "released_rows" in row]
    if not asked:
        return {}
    last = asked[-1]
    found: dict[str, Any] = {"released_metrics": {"round": last["round"], **_with_bars(last)}}
    if last.get("released_curves"):
        found["released_curves"] = last["released_curves"]
    if last.get("released_parties"):
        found["released_parties"] = {
            party: _with_bars(own) for party, own in last["released_parties"].items()
        }
    return found


def _with_bars(row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Released figures by their plain names, each with its value and the half width of its bar."""
    names = [name for name in row if name.startswith("released_") and f"{name}_error" in row]
    return {
        name.removeprefix("released_"): {"value": row[name], "error": row[f"{name}_error"]}
        for name in names
    }


def judged(rounds: Sequence[Mapping[str, Any]], config: Config) -> dict[str, Any]:
    """After how many rounds of training the model was best, by released or public figures, and
    whether it stopped.
    """
    public = config.data.public_test and config.metrics.release != "noised"
    judge = best_round_of(config) or BestRound("test_" if public else "released_")
    return best_round(rounds, judge) | stopped_early(rounds, judge, config.train.rounds)


def best_round(rounds: Sequence[Mapping[str, Any]], judge: BestRound) -> dict[str, Any]:
    """The best of several figures that ``judge`` may look at; empty where there are fewer than two.

    >>> rows = [{"round": 1, "test_acc": 0.9}, {"round": 2, "test_acc": 0.8}]
    >>> best_round(rows, BestRound("test_"))["best_round"]["round"], best_round(rows, BestRound("released_"))
    (1, {})
    """
    name, best = judge.name(rounds), judge.best(rounds)
    seen = [row for row in rounds if name is not None and row.get(name) is not None]
    if name is None or best is None or len(seen) < 2:
        return {}
    last, sign = seen[-1], -1.0 if name.removeprefix(judge.prefix) in LOWER_IS_BETTER else 1.0
    error, bar = (float(row.get(f"{name}_error", 0.0)) for row in (best, last))
    clear = sign * (float(best[name]) - float(last[name])) > (error**2 + bar**2) ** 0.5
    found = {
        "round": best["round"],
        "rounds_of_training": _trained(rounds, best["round"]),
        "by": name,
    }
    found |= {
        "value": best[name],
        "error": error,
        "better_than_last_beyond_noise": clear,
        "kept": judge.keeps,
    }
    return {"best_round": found}


def stopped_early(
    rounds: Sequence[Mapping[str, Any]], judge: BestRound, planned: int
) -> dict[str, Any]:
    """After how many of the planned rounds of training a run stopped because its figures got no
    better.
    """
    trained = _trained(rounds, rounds[-1]["round"]) if rounds else 0
    if trained >= planned or not judge.stops(rounds):
        return {}
    return {
        "stopped_early": {
            "rounds_of_training": trained,
            "planned": planned,
            "by": judge.name(rounds),
        }
    }


def _trained(rounds: Sequence[Mapping[str, Any]], until: int) -> int:
    return sum("asked" not in row for row in rounds if row["round"] <= until)


def metrics_table(title: str, indicators: Mapping[str, Any]) -> Table:
    """The metrics of training and test rows, as far as there are any."""
    names = [
        name
        for name in ("loss", "acc", "auc", "ks", "f1", "r2", "mse")
        if f"test_{name}" in indicators
    ]
    cells = [
        [part, *(indicators.get(f"{part}_{name}") for name in names)] for part in ("train", "test")
    ]
    return Table(title, ["rows of", *names], cells)


def released_line(indicators: Mapping[str, Any]) -> str | None:
    """Released metrics as one line with their 95 % bars; None where none were.

    >>> released_line({"released_metrics": {"round": 3, "acc": {"value": 0.9, "error": 0.05}}})
    'released with noise, of all test rows: acc 0.9 ± 0.05 (95 %)'
    """
    found = indicators.get("released_metrics")
    if not found:
        return None
    shown = [
        f"{name} {one['value']:.3g} ± {one['error']:.2g}"
        for name, one in found.items()
        if isinstance(one, dict)
    ]
    parties = ""
    for name, own in (indicators.get("released_parties") or {}).items():
        figures = [
            f"{key} {own[key]['value']:.3g} ± {own[key]['error']:.2g}"
            for key in ("acc", "r2")
            if key in own
        ]
        parties += f"; {name}: {', '.join(figures)}"
    return f"released with noise, of all test rows: {', '.join(shown)} (95 %){parties}"


def judged_line(indicators: Mapping[str, Any]) -> str | None:
    """Which round was best, whether its model is the one that was written, and whether the run
    stopped early.
    """
    best, stopped = indicators.get("best_round"), indicators.get("stopped_early")
    if not best:
        return None
    beyond = (
        "better than the last beyond the noise"
        if best["better_than_last_beyond_noise"]
        else "within the noise"
    )
    kept = "its model is written" if best["kept"] else "the last model is written"
    text = (
        f"best by {best['by']} after {best['rounds_of_training']} rounds of training, {beyond}; "
        f"{kept}"
    )
    if stopped:
        text += f"; stopped after {stopped['rounds_of_training']} of {stopped['planned']} rounds"
    return text


def _write_predictions(outcome: RunOutcome, path: Path) -> None:
    """The test rows of all parties with their predictions: those of one file for everybody in its
    order, else party by party; without test rows the header alone, over any older file.
    """
    federation, task = outcome.federation, outcome.model.task
    tests = {
        name: party.test for name, party in federation.parties.items() if party.test is not None
    }
    frames = {name: table.frame for name, table in tests.items() if table.frame is not None}
    encoding = federation.encoding
    known = [*([encoding.id] if encoding.id else []), *encoding.names, encoding.label.name]
    columns = [str(name) for name in next(iter(frames.values())).columns] if frames else known
    threshold = outcome.config.predict.threshold
    with PredictionWriter(path, columns, task, threshold=threshold, with_party=True) as writer:
        rows = {
            name: frame if list(frame.columns) == columns else frame[columns]
            for name, frame in frames.items()
        }
        found = {name: outputs_of(outcome.model.module, tests[name].features) for name in rows}
        if isinstance(outcome.config.data.test_file, str) and len(rows) > 1:
            whole, names = (
                pd.concat(rows.values()),
                np.repeat(list(rows), list(map(len, rows.values()))),
            )
            order = np.argsort(whole.index.to_numpy(), kind="stable")
            outputs = torch.cat(list(found.values()))[torch.from_numpy(order)]
            writer.write(whole.iloc[order], outputs, names[order].tolist())
            return
        for name, frame in rows.items():
            writer.write(frame, found[name], name)


def _write_for_parties(outcome: RunOutcome, output: OutputConfig, model: bytes) -> None:
    """What single parties of a simulation get under names of their own: each only what is of its
    rows.
    """
    task, threshold = outcome.model.task, outcome.config.predict.threshold
    for name, wanted in output.parties.items():
        party = outcome.federation.parties[name]
        test = party.test if party.test is not None and len(party.test) else None
        if wanted.modelFileName is not None:
            write_whole(wanted.modelFileName, model, f"output.parties.{name}.modelFileName")
        if wanted.predictFileName is not None and test is not None and test.frame is not None:
            columns = [str(column) for column in test.frame.columns]
            with PredictionWriter(
                wanted.predictFileName, columns, task, threshold=threshold
            ) as writer:
                writer.write(test.frame, outputs_of(outcome.model.module, test.features))
        if wanted.indicatorFileName is not None:
            scored = {"train_": [party.train], "test_": [] if test is None else [test]}
            parts = {
                part: (
                    evaluate(task, *score_tables(outcome.model.module, found), part, threshold)
                    if found
                    else {}
                )
                for part, found in scored.items()
            }
            own = {**outcome.statement, "parties": {name: outcome.statement["parties"][name]}}
            local = local_only_names(
                parts["train_"], parts["test_"], public_test=outcome.config.data.public_test
            )
            extra = {"run": outcome.run, "party": name, "data": outcome.config.data.dataset}
            indicators = build_indicators(parts["train_"], parts["test_"], own, [], local, extra)
            write_indicators(
                wanted.indicatorFileName, indicators, f"output.parties.{name}.indicatorFileName"
            )


def model_card(outcome: RunOutcome) -> ModelCard:
    """What the model file says beside the weights."""
    encoding = outcome.federation.encoding
    return ModelCard(
        architecture=outcome.model.architecture,
        classes=tuple(outcome.model.task.classes),
        label=outcome.config.data.label,
        encoding=encoding.to_json(),
        threshold=outcome.config.predict.threshold,
        target_bounds=outcome.config.data.target_bounds,
        privacy={**outcome.statement, "data": outcome.config.data.dataset, "run": outcome.run},
        split=split_record(outcome.config),
    )
