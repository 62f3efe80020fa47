"""The files of a finished or interrupted training: predictions, indicators, model, resolved config, ledger extract."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from homo_dp import __version__
from homo_dp.config.load import dump_yaml
from homo_dp.config.output import OutputConfig
from homo_dp.config.schema import Config
from homo_dp.core.errors import printable
from homo_dp.core.files import FOLDER_MODE, make_folder, write_whole
from homo_dp.federation.mechanisms.round_sums import METRICS
from homo_dp.federation.sessions.build import run_budget
from homo_dp.models.baselines import majority, plain_fit
from homo_dp.models.files import ModelCard, save_model
from homo_dp.models.metrics import evaluate
from homo_dp.models.scoring import no_metrics, outputs_of, score_tables
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.code_version import commit_tags
from homo_dp.runs.round_numbers import GradientNorms
from homo_dp.runs.simulation import Outcome
from homo_dp.tracking.files import write_json
from homo_dp.tracking.indicators import build_indicators, local_only_names, write_indicators
from homo_dp.tracking.predictions import PredictionWriter
from homo_dp.tracking.report.ledger_extract import ledger_summary

LIBRARIES = ("torch", "numpy", "pandas", "dp-accounting", "cryptography")  # those that a result or its noise rests on


@dataclass(frozen=True)
class Written:
    """Where the files went, and the numbers in them."""

    files: Mapping[str, Path]
    indicators: Mapping[str, Any]


def companion(indicator_file: str, ending: str) -> Path:
    """The path of a file that goes with the indicators: ``out/indicator.json`` -> ``out/indicator_config.yaml``."""
    path = Path(indicator_file)
    return path.with_name(f"{path.stem}_{ending}")


def write_outputs(
    outcome: Outcome,
    ledger: Ledger | None,
    norms: GradientNorms | None = None,
    begin: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> Written:
    """Write everything that a training leaves, each file whole or not at all; ``begin`` hears what plots need first."""
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
            "indicators": {"privacy": outcome.statement, "rounds": outcome.rounds, "ledger": summary, **worth},
            "ledger": [{key: row[key] for key in ("party", "round", "epsilon", "epsilon_rdp")} for row in extract],
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
    made: dict[str, Any] = {name: str(rename(Path(path))) for name, path in output if isinstance(path, str)}
    made["parties"] = {
        party: own.model_copy(update={name: str(rename(Path(path))) for name, path in own if path is not None})
        for party, own in output.parties.items()
    }
    return output.model_copy(update=made)


def numbered(output: OutputConfig) -> OutputConfig:
    """The same names in a new folder ``run-001``, ``run-002``, ... beside them, which is made here."""
    parent = Path(output.indicatorFileName).parent
    make_folder(parent)
    number = 1 + max((int(path.name[4:]) for path in parent.glob("run-*") if path.name[4:].isdecimal()), default=0)
    while True:
        folder = parent / f"run-{number:03}"
        try:
            folder.mkdir(mode=FOLDER_MODE)
            break
        except FileExistsError:  # another run was quicker
            number += 1
    return _renamed(output, lambda path: path.parent / folder.name / path.name)


def replaced(output: OutputConfig) -> str | None:
    """What a run would replace, in a sentence; None if its names are free."""
    there = [path for _, path in output if isinstance(path, str) and Path(path).is_file()]
    if not there:
        return None
    run = ""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(Path(output.indicatorFileName).read_bytes())
        if isinstance(found, dict) and found.get("run"):
            run = f" of {printable(str(found['run']))[:80]}, finished {printable(str(found.get('finished')))[:40]}"
    return f"replaces {', '.join(there)}{run}; --keep writes each run into a folder of its own"


def worth_of(outcome: Outcome) -> dict[str, Any]:
    """What the result is to be compared with: the most frequent class, and a plain fit where the rows are public."""
    parties, task, data = outcome.federation.parties.values(), outcome.model.task, outcome.config.data
    test = [party.test for party in parties if party.test is not None and len(party.test)]
    found: dict[str, Any] = {}
    labels = [table.labels for table in test if table.labels is not None]
    if task.kind != "regression" and labels:
        found["test_majority"] = majority(torch.cat(labels))
    if data.public or (data.embedded is not None and not data.files):
        found["plain_fit"] = plain_fit(task, [party.train for party in parties], test)
    return found


def bounds_facts(config: Config) -> dict[str, Any]:
    """Where bounds and levels come from, as the config says."""
    data = config.data
    shipped = "public" if data.embedded is not None and not data.files else None
    columns = {name: block.source for name, block in data.columns.items() if block.source is not None}
    return {"source": data.bounds_source or shipped or "not said", **({"columns": columns} if columns else {})}


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
    outcome: Outcome, ledger: Mapping[str, Any] | None, worth: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The content of the indicators file: metrics, the privacy statement, every round, the state of the ledger."""
    worth = worth_of(outcome) if worth is None else worth
    config, federation, threshold = outcome.config, outcome.federation, outcome.config.predict.threshold
    module, task = outcome.model.module, outcome.model.task
    parts: dict[str, dict[str, Any]] = {}
    tables = {
        "train_": [party.train for party in federation.parties.values()],
        "test_": [party.test for party in federation.parties.values() if party.test is not None and len(party.test)],
    }
    for name, found in tables.items():
        parts[name] = evaluate(task, *score_tables(module, found), name, threshold) if found else no_metrics(task, name)
    if "test_majority" in worth:
        parts["test_"]["test_majority"] = worth["test_majority"]
    public_test = config.data.public_test
    local_only = local_only_names(parts["train_"], parts["test_"], outcome.rounds, public_test=public_test)
    extra = {
        "run": outcome.run,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "data": config.data.dataset,
        "model": config.model.factory or config.model.name,
        "rounds_done": len(outcome.rounds),
        "interrupted": outcome.interrupted,
        "bounds": bounds_facts(config),
        **report_facts(config),
        "classes": [str(name) for name in task.classes],
        **({"plain_fit": worth["plain_fit"]} if worth.get("plain_fit") else {}),
        **released_of(outcome.rounds),
        **best_round(outcome.rounds, public_test=public_test),
        "ledger": ledger,
    }
    return build_indicators(parts["train_"], parts["test_"], outcome.statement, outcome.rounds, local_only, extra)


def released_of(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last metrics that parties released with noise, each with the half width of its 95 % bar; empty without."""
    asked = [row for row in rounds if row.get("asked") == METRICS and "released_rows" in row]
    if not asked:
        return {}
    names = [name for name in asked[-1] if name.startswith("released_") and f"{name}_error" in asked[-1]]
    figures = {
        name.removeprefix("released_"): {"value": asked[-1][name], "error": asked[-1][f"{name}_error"]}
        for name in names
    }
    curves = asked[-1].get("released_curves")
    found = {"released_metrics": {"round": asked[-1]["round"], **figures}}
    return found | ({"released_curves": curves} if curves else {})


def best_round(rounds: Sequence[Mapping[str, Any]], *, public_test: bool) -> dict[str, Any]:
    """After how many rounds of training the model was best, by figures that are released or of public rows; or empty.

    Guarantees:
        - no figure of private rows without noise is looked at, so what it says costs nothing more.

    >>> first = {"round": 1, "test_acc": 0.9}
    >>> best_round([first, {"round": 2, "test_acc": 0.8}], public_test=True)["best_round"]["round"]
    1
    >>> best_round([first, {"round": 2, "test_acc": 0.8}], public_test=False)
    {}
    """
    for name, sign in (("acc", 1.0), ("r2", 1.0), ("loss", -1.0)):
        full = f"test_{name}" if public_test else f"released_{name}"
        seen = [row for row in rounds if row.get(full) is not None]
        if len(seen) < 2:
            continue
        best, last = max(seen, key=lambda row: sign * float(row[full])), seen[-1]
        error, bar = (float(row.get(f"{full}_error", 0.0)) for row in (best, last))
        trained = sum("asked" not in row for row in rounds if row["round"] <= best["round"])
        clear = sign * (float(best[full]) - float(last[full])) > (error**2 + bar**2) ** 0.5
        found = {"round": best["round"], "rounds_of_training": trained, "by": full, "value": best[full]}
        return {"best_round": {**found, "error": error, "better_than_last_beyond_noise": clear}}
    return {}


def released_line(indicators: Mapping[str, Any]) -> str | None:
    """Released metrics as one line with their 95 % bars; None where none were.

    >>> released_line({"released_metrics": {"round": 3, "acc": {"value": 0.9, "error": 0.05}}})
    'released with noise, of all test rows: acc 0.9 ± 0.05 (95 %)'
    """
    found = indicators.get("released_metrics")
    if not found:
        return None
    shown = [f"{name} {one['value']:.3g} ± {one['error']:.2g}" for name, one in found.items() if isinstance(one, dict)]
    best = indicators.get("best_round")
    said = ""
    if best:
        beyond = "beyond the noise" if best["better_than_last_beyond_noise"] else "within the noise of the last"
        said = f"; best after {best['rounds_of_training']} rounds of training, {beyond}"
    return f"released with noise, of all test rows: {', '.join(shown)} (95 %){said}"


def _write_predictions(outcome: Outcome, path: Path) -> None:
    """The test rows of all parties with their predictions; without test rows the header alone, over any older file."""
    federation, task = outcome.federation, outcome.model.task
    tests = {name: party.test for name, party in federation.parties.items() if party.test is not None}
    frames = {name: table.frame for name, table in tests.items() if table.frame is not None}
    encoding = federation.encoding
    known = [*([encoding.id] if encoding.id else []), *encoding.names, encoding.label.name]
    columns = [str(name) for name in next(iter(frames.values())).columns] if frames else known
    threshold = outcome.config.predict.threshold
    with PredictionWriter(path, columns, task, threshold=threshold, with_party=True) as writer:
        for name, frame in frames.items():
            writer.write(frame[columns], outputs_of(outcome.model.module, tests[name].features), name)


def _write_for_parties(outcome: Outcome, output: OutputConfig, model: bytes) -> None:
    """What single parties of a simulation get under names of their own: each only what is of its rows."""
    task, threshold = outcome.model.task, outcome.config.predict.threshold
    for name, wanted in output.parties.items():
        party = outcome.federation.parties[name]
        test = party.test if party.test is not None and len(party.test) else None
        if wanted.modelFileName is not None:
            write_whole(wanted.modelFileName, model, f"output.parties.{name}.modelFileName")
        if wanted.predictFileName is not None and test is not None and test.frame is not None:
            columns = [str(column) for column in test.frame.columns]
            with PredictionWriter(wanted.predictFileName, columns, task, threshold=threshold) as writer:
                writer.write(test.frame, outputs_of(outcome.model.module, test.features))
        if wanted.indicatorFileName is not None:
            scored = {"train_": [party.train], "test_": [] if test is None else [test]}
            parts = {
                part: evaluate(task, *score_tables(outcome.model.module, found), part, threshold) if found else {}
                for part, found in scored.items()
            }
            own = {**outcome.statement, "parties": {name: outcome.statement["parties"][name]}}
            local = local_only_names(parts["train_"], parts["test_"], public_test=outcome.config.data.public_test)
            extra = {"run": outcome.run, "party": name, "data": outcome.config.data.dataset}
            indicators = build_indicators(parts["train_"], parts["test_"], own, [], local, extra)
            write_indicators(wanted.indicatorFileName, indicators, f"output.parties.{name}.indicatorFileName")


def model_card(outcome: Outcome) -> ModelCard:
    """What the model file says beside the weights."""
    encoding = outcome.federation.encoding
    return ModelCard(
        architecture=outcome.model.architecture,
        classes=tuple(outcome.model.task.classes),
        label=outcome.config.data.label,
        encoding=encoding.to_json(),
        threshold=outcome.config.predict.threshold,
        target_bounds=outcome.config.data.target_bounds,
        privacy={**outcome.statement, "data": outcome.config.data.dataset},
    )
