"""Random search for settings: ``python -m homo_dp.tune --range train.learning_rate=0.1:10 --trials
8``.

Draws settings within the given ranges, trains each, on all cores, and names the best. The same
command again goes on where it was interrupted.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homo_dp.compare import MOST_RUNS, Sweep
from homo_dp.compat.command_line import load_from_arguments
from homo_dp.console.options import (
    Parser,
    Screen,
    add_common_arguments,
    run,
    screen_from_arguments,
)
from homo_dp.core.errors import ConfigError
from homo_dp.core.files import check_writable
from homo_dp.core.heavy_imports import quick_imports

if TYPE_CHECKING:
    import argparse

    from homo_dp.compat.load import Loaded
    from homo_dp.config.schema import Config
    from homo_dp.runs.sweep import Cell

EXAMPLES = """examples:
  python -m homo_dp.tune --range train.learning_rate=0.1:10 --range privacy.max_grad_norm=0.1:3 --trials 8
  python -m homo_dp.tune --config conf/homo_lr_dpsgd.yaml --range train.rounds=5:50 --vary train.batch_size=32,64,128
  python -m homo_dp.tune --publish winner --range train.learning_rate=0.1:10 --trials 8 --params metrics.release=noised
ranges:
  KEY=LOW:HIGH draws a number, by its logarithm where LOW is above 0 and HIGH at least ten times as large; whole numbers
  stay whole. --vary KEY=V1,V2 draws one of the values.
what it costs:
  every trial is a real run and charges privacy.ledger. The best is chosen by public test rows (data.public_test, an
  embedded set) or by metrics that are released with noise (metrics.release: noised), never by private test rows as they
  are, which no epsilon would cover. Choosing costs the epsilon of all trials together, which is shown at the end.
  --publish winner costs less towards those who get the winner alone: the number of trials is drawn in secret (--trials
  is its mean), other trials stay in OUT/LOCAL, the winner with its epsilon is in OUT/winner. It needs
  metrics.release=noised (or public test rows), and ranges that change no cost. The ledger is charged once, before the
  first trial, with what the winner costs: rows of each trial would tell their number to later aggregators."""

# which decides, and whether more is better
FIGURES = (("acc", 1.0), ("auc", 1.0), ("loss", -1.0), ("mse", -1.0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, draw, run what is not done yet, show; the exit code."""
    options = make_parser().parse_args(arguments)
    screen = screen_from_arguments(options)
    if not 1 <= options.trials <= MOST_RUNS or options.jobs < 1:
        raise ConfigError(
            f"--trials {options.trials} --jobs {options.jobs}: give 1 to {MOST_RUNS}, and at least "
            "1 job"
        )
    folder = Path(options.out)
    with quick_imports():
        from homo_dp.runs.dry_run import introduce

    loaded = load_from_arguments(options)
    if options.publish == "winner":
        return _publish_winner(options, loaded, folder, screen)
    drawn = draws(options.range, options.vary, options.trials, random.Random(options.seed or 0))
    cells = [_cell(values, folder, options) for values in drawn]
    cells = list({cell.id: cell for cell in cells}.values())
    for cell in cells:
        check_choice(cell.config)
    check_writable(folder / "compare.csv", "--out")
    introduce(loaded.config, screen, loaded.source)
    code = Sweep(cells, folder, options.jobs, loaded.config, screen).run()
    _say_best(cells, folder, screen)
    return code


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.tune", description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "--range", action="append", default=[], metavar="KEY=LOW:HIGH", help="a range; repeat"
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="values to draw from; repeat",
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=8,
        metavar="N",
        help="settings to draw (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=None, metavar="N", help="of the draws (default: 0)"
    )
    parser.add_argument(
        "--publish",
        choices=("all", "winner"),
        default="all",
        help="what others get (default: all)",
    )
    parser.add_argument(
        "--number",
        choices=("geometric", "poisson"),
        default="geometric",
        help="how --publish winner draws the number of trials (default: %(default)s)",
    )
    parser.add_argument(
        "--out", default="out/tune", metavar="DIR", help="results and state (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="runs at a time"
    )
    add_common_arguments(parser, dry_run=False)
    return parser


def _publish_winner(
    options: argparse.Namespace, loaded: Loaded, folder: Path, screen: Screen
) -> int:
    """Run a secret number of trials and publish the best; no line of the screen tells of any
    other.
    """
    from homo_dp.runs.dry_run import introduce
    from homo_dp.runs.private_search import (
        LOCAL,
        Search,
        best_of,
        check_search,
        commit,
        cost_words,
        publish,
        search_cost,
        secret_trials,
    )
    from homo_dp.runs.sweep import finished, run_cells

    if options.seed is not None:
        raise ConfigError("--seed: trials of --publish winner are drawn in secret; leave it out")
    search = Search(options.trials, options.number, (*options.range, *options.vary))
    config = loaded.config

    def of_trial(values: Sequence[tuple[str, Any]]) -> Config:
        # rules would follow the values of a trial, and so would its price
        return load_from_arguments(options, [*values, ("train.auto", False)]).config

    (example,) = draws(options.range, options.vary, 1, random.Random(0))
    trial = of_trial(list(example.items()))
    check_search(trial, sorted(example), search)
    check_writable(folder / "winner" / "winner.json", "--out")
    introduce(trial, screen, loaded.source)
    run, cells = secret_trials(
        lambda source, number: draws(options.range, options.vary, number, source),
        search,
        folder,
        of_trial,
    )
    local = folder / LOCAL
    screen.line(f"trials run now; their number is secret, their results stay in {local}")
    committed = commit(trial, search, run)
    left = [cell for cell in cells if finished(cell, local) is None]
    for _, result in run_cells(left, local, options.jobs):
        if result["status"] != "finished":
            screen.warn(f"a trial could not run, so nothing is published: {result['reason']}")
            return int(result["code"])
    if not cells:
        screen.line(
            "the number that was drawn is 0: there is no winner; the search was charged as any"
        )
        return 0
    results = [(cell, finished(cell, local) or {}) for cell in cells]
    target = config.privacy.target_epsilon or 1.0
    cost = search_cost([result for _, result in results], search, committed, target)
    cell, name, value = best_of(results, public_test=config.data.public_test)
    files = publish(cell, (name, value), search, cost, folder)
    words = cost_words(search, cost)
    screen.line(f"winner by {name} {value:.4g}: --params {_params(cell)}")
    screen.line(f"epsilon {cost.epsilon:.4g} at delta {cost.delta:g} by {words['cost_by']}")
    screen.line(f"it is {words['why']}; {words['conditions']}")
    for role, path in files.items():
        screen.line(f"{role}: {path}")
    told = {
        "settings": dict(cell.values),
        name: value,
        "epsilon": cost.epsilon,
        "delta": cost.delta,
        **words,
    }
    screen.summary({**told, "files": {role: str(path) for role, path in files.items()}})
    return 0


def check_choice(config: Config) -> None:
    """Refuse to choose by private test rows as they are: which trial is the best would tell of
    them, at no price.

    >>> from homo_dp.config.load import load_config
    >>> check_choice(load_config(None, {"data.embedded": "digits"}))
    """
    data = config.data
    if (
        not config.private
        or data.public_test
        or data.public
        or (data.embedded is not None and not data.test_file)
    ):
        return
    if config.metrics.release != "noised":
        raise ConfigError(
            "metrics.release=local: the best trial would be chosen by private test rows, which no "
            "epsilon covers; write metrics.release: noised, or data.public_test: true where the "
            "test table is public"
        )


def draws(
    ranges: Sequence[str], vary: Sequence[str], trials: int, source: random.Random
) -> list[dict[str, Any]]:
    """The settings of all trials: by a seed that anybody may know, or by the operating system's
    entropy.

    >>> draws(["train.rounds=5:50"], [], 2, random.Random(0))
    [{'train.rounds': 35}, {'train.rounds': 29}]
    """
    from homo_dp.runs.sweep import parse_vary

    spans = dict(_span(text) for text in ranges)
    choices = parse_vary(vary)
    if not spans and not choices:
        raise ConfigError(
            "--range is missing: name a key and its range, such as train.learning_rate=0.1:10"
        )
    if both := sorted(set(spans) & set(choices)):
        raise ConfigError(f"--range {both[0]}: is in --vary too; keep it in one of them")
    found = []
    for _ in range(trials):
        values: dict[str, Any] = {key: _number(source, *span) for key, span in spans.items()}
        found.append(values | {key: source.choice(listed) for key, listed in choices.items()})
    return found


def _span(text: str) -> tuple[str, tuple[float, float]]:
    from homo_dp.config.params import parse_value

    key, _, ends = text.partition("=")
    low, mark, high = ends.partition(":")
    pair: tuple[Any, Any] = (parse_value(low), parse_value(high)) if mark else (None, None)
    if not key.strip() or not all(
        isinstance(end, int | float) and not isinstance(end, bool) for end in pair
    ):
        raise ConfigError(
            f"--range {text}: must be key=low:high, such as train.learning_rate=0.1:10"
        )
    if not pair[0] < pair[1]:
        raise ConfigError(f"--range {text}: low must be below high")
    return key, pair


def _number(generator: random.Random, low: float, high: float) -> float:
    logs = low > 0 and high >= 10 * low
    found = (
        math.exp(generator.uniform(math.log(low), math.log(high)))
        if logs
        else generator.uniform(low, high)
    )
    if isinstance(low, int) and isinstance(high, int):
        return min(high, max(low, round(found)))
    return float(f"{found:.4g}")


def _cell(values: Mapping[str, Any], folder: Path, options: Any) -> Cell:
    from homo_dp.runs.sweep import cells_of

    alone = {key: (value,) for key, value in values.items()}
    (cell,) = cells_of(alone, 1, folder, lambda extra: load_from_arguments(options, extra).config)
    return cell


def _say_best(cells: Sequence[Cell], folder: Path, screen: Screen) -> None:
    """Name the best trial by the first figure that there is."""
    from homo_dp.runs.sweep import finished

    done = [(cell, result) for cell in cells if (result := finished(cell, folder)) is not None]
    prefix = (
        "released_" if all(cell.config.metrics.release == "noised" for cell in cells) else "test_"
    )
    for name, sign in ((prefix + figure, sign) for figure, sign in FIGURES):
        known = [(cell, result) for cell, result in done if result.get(name) is not None]
        if known:
            cell, result = max(known, key=lambda each: sign * float(each[1][name]))
            screen.line(
                f"best of {len(known)} trials by {name} {float(result[name]):.4g}: --params "
                f"{_params(cell)}"
            )
            return


def _params(cell: Cell) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in cell.values.items())


if __name__ == "__main__":
    run(main)
