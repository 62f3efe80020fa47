"""Score a table with a trained model: ``python -m homo_dp.infer --params
modelFileName=...,predictFileName=...``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from homo_dp.compat.command_line import load_from_arguments, overridden_keys
from homo_dp.compat.primihub.registry import read_registry
from homo_dp.config.addresses import masked
from homo_dp.console.options import (
    Parser,
    Screen,
    add_common_arguments,
    check_outputs,
    run,
    screen_from_arguments,
)
from homo_dp.core.errors import ConfigError, DataError, InputError
from homo_dp.core.heavy_imports import quick_imports
from homo_dp.core.untrusted_text import Foreign

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

    from homo_dp.config.schema import Config
    from homo_dp.data.encoding import Encoding
    from homo_dp.data.parties import Scored
    from homo_dp.data.rows import Table
    from homo_dp.data.unexpected_values import Shares
    from homo_dp.models.files import SavedModel

OUTPUTS = ("predictFileName", "indicatorFileName")
LARGEST_INDICATORS = 100 << 20  # bytes; of a training
_BESIDE = 50  # files beside a model among which the indicators of its training are looked for
WARNED = 3  # columns that are named one by one where values do not fit
EXAMPLES = """examples:
  python -m homo_dp.infer --params modelFileName=out/model.safetensors,predictFileName=out/test_predict.csv \\
      --data patients.csv
  python -m homo_dp.infer --params modelFileName=out/model.safetensors,indicatorFileName=out/test_indicator.json
      without --data: data.test_file of --config, or the rows of a bundled set that the training held out
  python -m homo_dp.infer --params modelFileName=out/model.safetensors,predict.threshold=0.3 --data patients.parquet
  python -m homo_dp.infer --params modelFileName=models:/screening/1 --data patients.csv
      a model that training registered in MLflow (tracking.model_name=screening)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, score, write; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    loaded = load_from_arguments(options)
    training = Path(loaded.config.output.indicatorFileName)
    loaded = load_from_arguments(
        options, _own_names(options, loaded.config) if loaded.process == "train" else ()
    )
    screen.notes(loaded.notes)
    table = _looked_up(loaded.config, options.data)
    _check_paths(loaded.config, table)
    return score(loaded.config, table, options.trust_factory, screen, training, loaded.named_source)


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.infer", description=__doc__, epilog=EXAMPLES)
    add_common_arguments(parser, dry_run=False)
    parser.add_argument(
        "--data", metavar="FILE", help="the table to score: CSV, .csv.gz, Parquet, .npz or IDX"
    )
    parser.add_argument(
        "--trust-factory", action="store_true", help="run the code that a factory model names"
    )
    return parser


def score(
    config: Config,
    path: str | None,
    trust_factory: bool,
    screen: Screen,
    training: Path,
    source: str | None = None,
) -> int:
    """Stream the table through the model; predictions always, indicators where the label column
    is there.

    Args:
        config: names the model and the outputs, and the table unless ``path`` does.
        path: the table to score.
        trust_factory: run the code that a factory model names.
        screen: where the result is shown.
        training: where the training would have written its indicators.
        source: where the configuration comes from, for the first line.

    Returns:
        The exit code.
    """
    with quick_imports():
        import torch

        from homo_dp.data.encoding import Encoding
        from homo_dp.data.parties import Scored
        from homo_dp.data.readers import csv_form, number_form
        from homo_dp.data.unexpected_values import WARN_ABOVE, Strays
        from homo_dp.models.device import torch_device
        from homo_dp.models.files import load_model
        from homo_dp.models.metrics import evaluate
        from homo_dp.tracking.mlflow.model_log import model_file

    with model_file(config.output.modelFileName, config.tracking.uri) as opened:
        model = load_model(opened, trust_factory)
    held_out = _held_out(config, path, model.card.split)
    screen.line(_first_line(config, path, model, held_out, source))
    model.module.to(torch_device(config.train.device))
    encoding = Encoding.from_json(model.card.encoding)
    model.check_encoding(encoding.input_shape, encoding.classes)
    strays = Strays()
    how = Scored(csv_form(config.data), number_form(config.data), strays)
    tables = _tables(config, path, encoding, how, held_out)
    first = next(tables, None)
    if first is None:
        raise DataError(
            f"{_scored(config, path, held_out)}: has no rows; give a table with at least one to "
            "--data"
        )
    columns = [str(name) for name in _frame(first).columns]
    _say_what_is_extra(columns, model, config, screen)
    rows, outputs, labels = _predict(config, model, columns, _chain(first, tables), screen)
    beside = sorted(Path(opened).parent.glob("*.json"))[:_BESIDE]
    trained = _strays_in_training(model, (training, *beside))
    _say_what_strayed(strays.warnings(WARN_ABOVE, trained), screen)
    told: dict[str, Any] = {"rows": rows, "strays": strays.counts()}
    if not labels:
        _say_no_indicators(config, model, screen)
        screen.summary({**told, "files": {"predictions": config.output.predictFileName}})
        return 0
    metrics = evaluate(
        model.task, torch.cat(outputs), torch.cat(labels), "test_", _threshold(config, model)
    )
    _indicate(config, model, metrics, told, screen)
    return 0


def _strays_in_training(model: SavedModel, places: Sequence[Path]) -> Shares | None:
    """The shares of values that the training of this model clipped, from its local indicators;
    None where those are not at hand.
    """
    for path in places:
        with contextlib.suppress(OSError, ValueError):
            file = Foreign(str(path), "train again", InputError, LARGEST_INDICATORS)
            found = file.json(file.read(path))
            if isinstance(found, dict) and found.get("run", path) == model.card.privacy.get("run"):
                return TypeAdapter(dict[str, dict[str, float]]).validate_python(
                    found.get("train_strays")
                )
    return None


def _predict(
    config: Config, model: SavedModel, columns: list[str], tables: Iterator[Table], screen: Screen
) -> tuple[int, list[Tensor], list[Tensor]]:
    """Write the predictions; how many rows there were, and outputs and labels of those that have
    a label.
    """
    from homo_dp.models.scoring import outputs_of
    from homo_dp.tracking.predictions import PredictionWriter

    outputs: list[Tensor] = []
    labels: list[Tensor] = []
    destination = config.output.predictFileName
    with (
        PredictionWriter(
            destination, columns, model.task, threshold=_threshold(config, model)
        ) as writer,
        screen.progress(None, "rows") as progress,
    ):
        for table in tables:
            scores = outputs_of(model.module, table.features)
            frame = _frame(table)  # a second file may order its columns otherwise
            writer.write(frame[columns] if set(frame.columns) == set(columns) else frame, scores)
            progress.advance(len(table))
            if table.labels is not None:
                outputs.append(scores)
                labels.append(table.labels)
    screen.line(f"predictions: {destination} ({writer.rows} rows)")
    return writer.rows, outputs, labels


def _indicate(
    config: Config,
    model: SavedModel,
    metrics: dict[str, Any],
    told: dict[str, Any],
    screen: Screen,
) -> None:
    """Write and show the indicators of a table with labels."""
    from homo_dp.tracking.indicators import build_indicators, local_only_names, write_indicators

    local_only = [*local_only_names({}, metrics), "strays"]
    extra = {"strays": told["strays"]}
    write_indicators(
        config.output.indicatorFileName,
        build_indicators({}, metrics, model.card.privacy, [], local_only, extra),
    )
    shown = {k.removeprefix("test_"): v for k, v in metrics.items() if isinstance(v, float | int)}
    screen.table("metrics", list(shown), [list(shown.values())])
    screen.line(f"indicators: {config.output.indicatorFileName}")
    files = {
        "predictions": config.output.predictFileName,
        "indicators": config.output.indicatorFileName,
    }
    # the curve is in the indicators
    numbers = {k: v for k, v in metrics.items() if not isinstance(v, list)}
    screen.summary({"rows": told["rows"], **numbers, **extra, "files": files})


def _say_no_indicators(config: Config, model: SavedModel, screen: Screen) -> None:
    older = (
        config.output.indicatorFileName if Path(config.output.indicatorFileName).exists() else None
    )
    screen.line(
        f"no indicators: the table has no label column {model.card.label!r}"
        + (f"; {older} is of an earlier run" if older else "")
    )


def _looked_up(config: Config, table: str | None) -> str | None:
    """The table of ``--data``, by its name in the registry where it is not a file."""
    if table is None or not config.data.registry or os.path.exists(table):
        return table
    return read_registry(config.data.registry).get(table, table)


def _own_names(options: argparse.Namespace, config: Config) -> list[tuple[str, str]]:
    """Outputs that `--params` does not name are those of training with `test_` before:
    training's files stay.
    """
    given = {key.removeprefix("output.") for key in overridden_keys(options)}
    paths = {name: Path(getattr(config.output, name)) for name in OUTPUTS if name not in given}
    return [
        (f"output.{name}", str(path.with_name(f"test_{path.name}"))) for name, path in paths.items()
    ]


def _check_paths(config: Config, table: str | None) -> None:
    check_outputs(config, OUTPUTS)
    for name in OUTPUTS if table is not None else ():
        path = getattr(config.output, name)
        if os.path.realpath(path) == os.path.realpath(str(table)):
            raise ConfigError(f"output.{name}={path}: is the table to score; give another path")


def _say_what_is_extra(
    columns: Sequence[str], model: SavedModel, config: Config, screen: Screen
) -> None:
    described = model.card.encoding.get("columns")
    if not described:
        return
    known = {column["name"] for column in described} | {model.card.label, config.data.id}
    extra = [name for name in columns if name not in known]
    if extra:
        shown = ", ".join(extra[:8]) + (f", ... ({len(extra)} in all)" if len(extra) > 8 else "")
        screen.line(f"not used by the model, copied to the predictions: {shown}")


def _say_what_strayed(warnings: Sequence[str], screen: Screen) -> None:
    for warning in warnings[:WARNED]:
        screen.warn(f"{warning}; the table may not mean what the model was trained on")
    if len(warnings) > WARNED:
        screen.warn(
            f"the same of {len(warnings) - WARNED} more columns; --json shows the counts of all "
            "(strays)"
        )


def _threshold(config: Config, model: SavedModel) -> float:
    return (
        config.predict.threshold
        if "threshold" in config.predict.model_fields_set
        else model.card.threshold
    )


def _held_out(config: Config, path: str | None, record: Mapping[str, Any]) -> Config | None:
    """The configuration of the rows that the training held out, where no table is named."""
    if path is not None or config.data.test_file is not None:
        return None
    from homo_dp.data.recorded_split import check_same_split, recorded_config

    held_out = recorded_config(record, config.output.modelFileName)
    if config.data.files:
        raise ConfigError(
            f"{config.output.modelFileName}: was trained on {held_out.data.embedded}, and the "
            "config names data.files; give the table to score with --data"
        )
    check_same_split(config, held_out, config.output.modelFileName)
    return held_out


def _first_line(
    config: Config, path: str | None, model: SavedModel, held_out: Config | None, source: str | None
) -> str:
    """The table, the model, and where the configuration comes from."""
    architecture = model.card.architecture
    parts = (
        f"data: {_scored(config, path, held_out)}",
        f"model: {config.output.modelFileName} ({architecture.factory or architecture.name})",
        source,
    )
    return masked("; ".join(part for part in parts if part))


def _scored(config: Config, path: str | None, held_out: Config | None) -> str:
    """The name of what is scored."""
    if held_out is not None:
        from homo_dp.data.recorded_split import split_text

        return split_text(held_out)
    tests = path or config.data.test_file or ""
    return tests if isinstance(tests, str) else ", ".join(tests.values())


def _tables(
    config: Config, path: str | None, encoding: Encoding, how: Scored, held_out: Config | None
) -> Iterator[Table]:
    from homo_dp.data.parties import iter_tables, load_federation, table_to_score

    if held_out is not None:
        for party in load_federation(held_out).parties.values():
            if party.test is not None and party.test.frame is not None:
                name = f"test rows of {held_out.data.embedded}"
                yield table_to_score(party.test.frame, encoding, name, how)
        return
    source = path or config.data.test_file or ""
    for each in source.values() if isinstance(source, dict) else [source]:
        yield from iter_tables(each, encoding, config.predict.chunk_rows, how)


def _frame(table: Table) -> DataFrame:
    if table.frame is None:
        raise DataError("the table has no raw rows to repeat in the predictions")
    return table.frame


def _chain(first: Table, rest: Iterator[Table]) -> Iterator[Table]:
    yield first
    yield from rest


if __name__ == "__main__":
    run(main)
