"""The files of a finished or interrupted training: predictions, indicators, model, resolved config, ledger extract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from homo_dp import __version__
from homo_dp.config.load import dump_yaml
from homo_dp.core.files import write_whole
from homo_dp.federation.sessions.build import run_budget
from homo_dp.models.files import ModelCard, save_model
from homo_dp.models.metrics import evaluate
from homo_dp.models.scoring import no_metrics, outputs_of, score_tables
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.round_numbers import GradientNorms
from homo_dp.runs.simulation import Outcome
from homo_dp.tracking.files import write_json
from homo_dp.tracking.indicators import build_indicators, local_only_names, write_indicators
from homo_dp.tracking.predictions import PredictionWriter
from homo_dp.tracking.report.ledger_extract import ledger_summary


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
    output = config.output
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
    begin(
        {
            "indicators": {"privacy": outcome.statement, "rounds": outcome.rounds, "ledger": summary},
            "ledger": [{key: row[key] for key in ("party", "round", "epsilon", "epsilon_rdp")} for row in extract],
            "norms": histogram,
        }
    )
    indicators = indicators_of(outcome, summary)
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
    return Written(files, indicators)


def indicators_of(outcome: Outcome, ledger: Mapping[str, Any] | None) -> dict[str, Any]:
    """The content of the indicators file: metrics, the privacy statement, every round, the state of the ledger."""
    config, federation, threshold = outcome.config, outcome.federation, outcome.config.predict.threshold
    module, task = outcome.model.module, outcome.model.task
    parts: dict[str, dict[str, Any]] = {}
    tables = {
        "train_": [party.train for party in federation.parties.values()],
        "test_": [party.test for party in federation.parties.values() if party.test is not None and len(party.test)],
    }
    for name, found in tables.items():
        parts[name] = evaluate(task, *score_tables(module, found), name, threshold) if found else no_metrics(task, name)
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
        "ledger": ledger,
    }
    return build_indicators(parts["train_"], parts["test_"], outcome.statement, outcome.rounds, local_only, extra)


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
