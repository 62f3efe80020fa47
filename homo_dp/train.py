"""Train a federation in one process: ``python -m homo_dp.train [--config FILE] [--params
key=value,...]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from homo_dp.compat.command_line import load_from_arguments
from homo_dp.config.addresses import masked
from homo_dp.console.options import (
    Interrupted,
    Parser,
    Screen,
    add_common_arguments,
    check_outputs,
    run,
    screen_from_arguments,
)
from homo_dp.core.callable_module import make_callable
from homo_dp.core.errors import ConfigError
from homo_dp.core.heavy_imports import quick_imports
from homo_dp.tracking.mlflow.tracker import open_tracker
from homo_dp.tracking.tracker import Tracker

if TYPE_CHECKING:
    from homo_dp.config.schema import Config
    from homo_dp.runs.outputs import Written
    from homo_dp.runs.simulation import RunOutcome

PLAIN_FIGURES = {"test_acc": "accuracy", "test_auc": "AUC", "test_r2": "R2"}
EXAMPLES = """examples:
  python -m homo_dp.train
      the default recipe: logistic regression on the embedded breast-cancer data, 3 parties, settings by rule, into out/
  python -m homo_dp.train --config conf/homo_lr_dpsgd.yaml --params privacy.target_epsilon=2,train.rounds=30
  python -m homo_dp.train --params data.files.a=a.csv,data.files.b=b.csv,data.columns_from=breast_cancer
  python -m homo_dp.train --dry-run
      what would be released, at what epsilon, without touching data"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train, write; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    loaded = load_from_arguments(options, [("output.keep", True)] if options.keep else ())
    screen.notes(loaded.notes)
    if loaded.process == "predict":
        raise ConfigError(
            "process=predict: the task scores a table; run it with python -m homo_dp.infer or "
            "homo_dp.primihub"
        )
    if options.dry_run:
        with quick_imports():
            from homo_dp.runs.dry_run import show_plan

        show_plan(loaded.config, screen, loaded.source)
        return 0
    check_outputs(loaded.config)
    return train(_placed(loaded.config), screen, loaded.source)


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.train", description=__doc__, epilog=EXAMPLES)
    add_common_arguments(parser)
    parser.add_argument(
        "--keep",
        action="store_true",
        help="write into a new folder, out/run-001/ (output.keep: true)",
    )
    return parser


def _placed(config: Config) -> Config:
    """The config with its outputs in a folder of their own, where they are kept."""
    if not config.output.keep:
        return config
    with quick_imports():
        from homo_dp.runs.outputs import numbered

    return config.model_copy(update={"output": numbered(config.output)})


def _what_is_replaced(config: Config) -> list[str]:
    with quick_imports():
        from homo_dp.runs.outputs import replaced

    return [] if (what := replaced(config.output)) is None else [what]


def train(config: Config, screen: Screen, source: str | None = None) -> int:
    """Run the simulation with progress and tracking, write its files, show the result.

    Args:
        config: the configuration of the run.
        screen: where progress and result are shown.
        source: where the configuration comes from, for the first line.
    """
    tracker = open_tracker(config)
    try:
        return _train(config, screen, tracker, source)
    except BaseException as error:
        from homo_dp.runs.run_facts import failure_tags

        tracker.finish("FAILED", {}, failure_tags(config, error))
        raise


def _train(config: Config, screen: Screen, tracker: Tracker, source: str | None) -> int:
    from homo_dp.runs.training import check_rounds, prepared

    notes = _what_is_replaced(config)
    with prepared(config, screen, tracker, notes, source) as simulation:
        outcome = simulation.run()
    check_rounds(outcome, tracker)
    from homo_dp.runs.outputs import write_outputs  # after the heavy imports of training
    from homo_dp.tracking.indicators import numbers_of

    written = write_outputs(outcome, simulation.ledger, simulation.gradient_norms, tracker.draw)
    numbers = numbers_of(written.indicators)
    status = "KILLED" if outcome.interrupted else "FINISHED"
    tracked = tracker.finish(
        status, written.files, {"statement": outcome.statement["statement"]}, numbers
    )
    _show(screen, outcome, written, tracked)
    if outcome.interrupted:
        done = f"{len(outcome.rounds)} of {simulation.mechanism.rounds} rounds"
        raise Interrupted(f"after {done}; the model so far is in {written.files['model']}")
    return 0


def _show(screen: Screen, outcome: RunOutcome, written: Written, tracked: str | None) -> None:
    from homo_dp.federation.sessions.statement import statement_lines
    from homo_dp.runs.outputs import judged_line, released_line
    from homo_dp.runs.user_simulation import counted
    from homo_dp.tracking.indicators import no_better_than_majority

    statement, indicators = outcome.statement, written.indicators
    if not statement["private"]:
        screen.line("NOT PRIVATE: this run gives no differential-privacy guarantee")
    columns = [
        "party",
        counted(outcome.config),
        "steps",
        "noise multiplier",
        "epsilon (PLD)",
        "epsilon (RDP)",
        "delta",
    ]
    keys = ["rows", "steps", "noise_multiplier", "epsilon_pld", "epsilon_rdp", "delta"]
    rows = [[name, *(party[key] for key in keys)] for name, party in statement["parties"].items()]
    screen.table("privacy", columns, rows)
    metrics = [
        name
        for name in ("loss", "acc", "auc", "ks", "f1", "r2", "mse")
        if f"test_{name}" in indicators
    ]
    cells = [
        [part, *(indicators.get(f"{part}_{name}") for name in metrics)]
        for part in ("train", "test")
    ]
    screen.table("metrics", ["rows of", *metrics], cells)
    if (useless := no_better_than_majority(indicators)) is not None:
        screen.warn(useless)
    for text in _compared(indicators):
        screen.line(text)
    for line in (released_line(indicators), judged_line(indicators)):
        if line is not None:
            screen.line(line)
    for text in (*statement_lines(statement), *statement["notes"]):
        screen.line(text)
    for name, path in written.files.items():
        screen.line(f"{name}: {path}")
    if tracked is not None:
        screen.line(f"MLflow run: {tracked} in {masked(outcome.config.tracking.uri)}")
    screen.summary(_summary(outcome, written) | {"mlflow_run": tracked})


def _compared(indicators: Mapping[str, Any]) -> list[str]:
    """What to compare the test figures with."""
    lines = []
    if indicators.get("test_majority") is not None:
        lines.append(
            "always answering the most frequent class: test accuracy "
            f"{indicators['test_majority']:.4g}"
        )
    fit = indicators.get("plain_fit") or {}
    figures = [
        f"{name} {fit[key]:.4g}" for key, name in PLAIN_FIGURES.items() if fit.get(key) is not None
    ]
    if figures:
        lines.append(f"{fit['what']}: test {', '.join(figures)}")
    return lines


def _summary(outcome: RunOutcome, written: Written) -> dict[str, Any]:
    numbers = {
        k: v for k, v in written.indicators.items() if isinstance(v, int | float | str | None)
    }
    files = {name: str(path) for name, path in written.files.items()}
    return {**numbers, "privacy": outcome.statement, "files": files}


make_callable(__name__, "homo_dp.api.training:train")  # homo_dp.train(...) is the Python API

if __name__ == "__main__":
    run(main)
