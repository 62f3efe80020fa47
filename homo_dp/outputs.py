"""The files of a finished or interrupted training: predictions, indicators, model, resolved config, ledger extract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homo_dp.config.load import dump_yaml
from homo_dp.evaluation import outputs_of, score_tables
from homo_dp.files import write_whole
from homo_dp.models.files import ModelCard, save_model
from homo_dp.models.metrics import evaluate
from homo_dp.privacy.ledger import Ledger
from homo_dp.simulation import Outcome
from homo_dp.tracking.files import write_json
from homo_dp.tracking.indicators import build_indicators, local_only_names, write_indicators
from homo_dp.tracking.predictions import PredictionWriter


@dataclass(frozen=True)
class Written:
    """Where the files went, and the numbers in them."""

    files: Mapping[str, Path]
    indicators: Mapping[str, Any]


def companion(indicator_file: str, ending: str) -> Path:
    """The path of a file that goes with the indicators: ``out/indicator.json`` -> ``out/indicator_config.yaml``."""
    path = Path(indicator_file)
    return path.with_name(f"{path.stem}_{ending}")


def write_outputs(outcome: Outcome, ledger: Ledger | None) -> Written:
    """Write everything that a training leaves, each file whole or not at all."""
    config = outcome.config
    output = config.output
    outcome.load_weights()
    files = {
        "predictions": Path(output.predictFileName),
        "indicators": Path(output.indicatorFileName),
        "model": Path(output.modelFileName),
        "config": companion(output.indicatorFileName, "config.yaml"),
    }
    indicators = _indicators(outcome)
    _write_predictions(outcome, files["predictions"])
    save_model(files["model"], outcome.weights, _card(outcome))
    write_whole(files["config"], dump_yaml(config).encode(), "resolved config")
    if ledger is not None:
        files["ledger"] = companion(output.indicatorFileName, "ledger.json")
        write_json(files["ledger"], ledger.extract(outcome.run), "ledger extract")
    write_indicators(files["indicators"], indicators)
    return Written(files, indicators)


def _indicators(outcome: Outcome) -> dict[str, Any]:
    config, federation, threshold = outcome.config, outcome.federation, outcome.config.predict.threshold
    module, task = outcome.model.module, outcome.model.task
    parts: dict[str, dict[str, Any]] = {}
    tables = {
        "train_": [party.train for party in federation.parties.values()],
        "test_": [party.test for party in federation.parties.values() if party.test is not None and len(party.test)],
    }
    for name, found in tables.items():
        outputs, labels = score_tables(module, found)
        parts[name] = evaluate(task, outputs, labels, name, threshold)
    local_only = local_only_names(
        parts["train_"],
        parts["test_"],
        outcome.rounds,
        public_test=config.data.public_test,
        parties=federation.parties,
        declared_rows=config.data.rows,
    )
    extra = {"run": outcome.run, "rounds_done": len(outcome.rounds), "interrupted": outcome.interrupted}
    return build_indicators(parts["train_"], parts["test_"], outcome.statement, outcome.rounds, local_only, extra)


def _write_predictions(outcome: Outcome, path: Path) -> None:
    federation, task = outcome.federation, outcome.model.task
    tests = {name: party.test for name, party in federation.parties.items() if party.test is not None}
    frames = {name: table.frame for name, table in tests.items() if table.frame is not None}
    columns = [str(name) for name in next(iter(frames.values())).columns]
    threshold = outcome.config.predict.threshold
    with PredictionWriter(path, columns, task, threshold=threshold, with_party=True) as writer:
        for name, frame in frames.items():
            writer.write(frame[columns], outputs_of(outcome.model.module, tests[name].features), name)


def _card(outcome: Outcome) -> ModelCard:
    encoding = outcome.federation.encoding
    return ModelCard(
        architecture=outcome.model.architecture,
        classes=tuple(outcome.model.task.classes),
        label=outcome.config.data.label,
        encoding=encoding.to_json(),
        threshold=outcome.config.predict.threshold,
        target_bounds=outcome.config.data.target_bounds,
        privacy=outcome.statement,
    )
