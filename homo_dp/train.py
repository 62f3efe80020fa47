"""Train a federation in one process: ``python -m homo_dp.train [--config FILE] [--params
key=value,...]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from homo_dp.compat.command_line import load_from_arguments
from homo_dp.console.options import (
    Interrupted,
    Parser,
    Screen,
    add_common_arguments,
    check_outputs,
    run,
    screen_from_arguments,
)
from homo_dp.core.errors import ConfigError
from homo_dp.core.heavy_imports import quick_imports

if TYPE_CHECKING:
    from homo_dp.config.schema import Config
    from homo_dp.runs.lifecycle import Ending, Life
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
    # not at the top: pydantic may be missing, which main answers with one line
    from homo_dp.runs.lifecycle import Life

    with Life(config, screen) as life:
        return _train(config, life, source)


def _train(config: Config, life: Life, source: str | None) -> int:
    from homo_dp.runs.training import check_rounds, prepared

    notes = _what_is_replaced(config)
    with prepared(config, life.screen, life.tracker, notes, source) as simulation:
        outcome = simulation.run()
    check_rounds(outcome)
    from homo_dp.runs.outputs import write_outputs  # after the heavy imports of training

    norms, draw = simulation.gradient_norms, life.tracker.draw
    written = write_outputs(outcome, simulation.ledger, norms, draw)
    life.finish(_ending(outcome, written))
    if outcome.interrupted:
        done = f"{len(outcome.rounds)} of {simulation.mechanism.run.count} rounds"
        raise Interrupted(f"after {done}; the model so far is in {written.files['model']}")
    return 0


def _ending(outcome: RunOutcome, written: Written) -> Ending:
    from homo_dp.federation.sessions.statement import statement_lines
    from homo_dp.runs.lifecycle import Ending, Table
    from homo_dp.runs.outputs import judged_line, metrics_table, released_line
    from homo_dp.runs.user_simulation import counted
    from homo_dp.tracking.indicators import no_better_than_majority, numbers_of

    statement, indicators = outcome.statement, written.indicators
    columns = ("party", counted(outcome.config), "steps", "noise multiplier")
    keys = ("rows", "steps", "noise_multiplier", "epsilon_pld", "epsilon_rdp", "delta")
    rows = [[name, *(party[key] for key in keys)] for name, party in statement["parties"].items()]
    parties = Table("privacy", (*columns, "epsilon (PLD)", "epsilon (RDP)", "delta"), rows)
    not_private = "NOT PRIVATE: this run gives no differential-privacy guarantee"
    return Ending(
        statement=statement,
        files=written.files,
        guarantee=(*statement_lines(statement), *statement["notes"]),
        summary=_summary(outcome, written),
        numbers=numbers_of(indicators),
        tables=(parties, metrics_table("metrics", indicators)),
        warnings=[no_better_than_majority(indicators)],
        lines=[
            None if statement["private"] else not_private,
            *_compared(indicators),
            released_line(indicators),
            judged_line(indicators),
        ],
        interrupted=outcome.interrupted,
    )


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
    return {**numbers, "privacy": outcome.statement}


if __name__ == "__main__":
    run(main)
