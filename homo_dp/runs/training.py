"""One training in this process, with progress and tracking: what the command and the Python API
both call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from homo_dp.console.options import Interrupted
from homo_dp.core.errors import ConfigError
from homo_dp.core.heavy_imports import quick_imports

if TYPE_CHECKING:
    from homo_dp.config.schema import Config
    from homo_dp.console.screen import Progress, Screen
    from homo_dp.runs.simulation import RunOutcome, Simulation
    from homo_dp.tracking.tracker import Tracker


@contextlib.contextmanager
def prepared(
    config: Config,
    screen: Screen,
    tracker: Tracker,
    notes: Sequence[str] = (),
    source: str | None = None,
) -> Iterator[Simulation]:
    """The federation of a config, to be run while this is open: its rounds show progress and are
    tracked.

    Args:
        config: the configuration of the run.
        screen: where the run is shown.
        tracker: where the run is kept.
        notes: lines that are shown once nothing is left that could refuse the run.
        source: where the configuration comes from, for the first line.
    """
    with quick_imports():
        from homo_dp.federation.sessions.build import mechanism_class
        from homo_dp.privacy.errors import PrivacyError
        from homo_dp.runs.auto import by_linear_solver, chosen_mechanism
        from homo_dp.runs.dry_run import continuation_note
        from homo_dp.runs.run_facts import (
            public_dataset,
            refused_tags,
            run_params,
            run_tags,
            short_name,
        )
        from homo_dp.runs.user_simulation import build_simulation
        from homo_dp.tracking.indicators import numbers_of

        if not by_linear_solver(config):
            mechanism_class(chosen_mechanism(config)).warm_up()

    bars: list[Progress] = []

    def on_round(row: Mapping[str, Any], parties: Mapping[str, Mapping[str, float]]) -> None:
        bars[0].advance(loss=row["test_loss"], accuracy=row["test_acc"], epsilon=row["epsilon"])
        numbers = {name: value for name, value in numbers_of(row).items() if name != "round"}
        tracker.log_round(row["round"], numbers, parties)

    try:
        simulation = build_simulation(config, on_round, lambda made: made.introduce(screen, source))
    except KeyboardInterrupt:
        raise Interrupted("before the first round; nothing was written") from None
    except PrivacyError:
        # the caller, who ends it, says why
        tracker.start(run_params(config), refused_tags(config), ())
        raise
    if strangers := sorted(set(config.output.parties) - set(simulation.federation.parties)):
        known = ", ".join(simulation.federation.parties)
        raise ConfigError(f"output.parties.{strangers[0]}: no such party; the parties are {known}")
    config = simulation.config
    for note in (*simulation.auto_notes, *notes):
        screen.line(note)
    if config.train.init_from is not None:
        screen.line(continuation_note(config.train.init_from))
    tags = run_tags(config, simulation.run_id, simulation.mechanism, private=simulation.private)
    tags["mlflow.runName"] = short_name(config, simulation.run_id, private=simulation.private)
    parties = list(simulation.plans)
    tracker.start(run_params(config), tags, parties, dataset=public_dataset(config, len(parties)))
    with screen.progress(simulation.mechanism.run.count) as progress:
        bars.append(progress)
        yield simulation


def check_rounds(outcome: RunOutcome) -> None:
    """Raise if the run was interrupted before its first round of training was over, so that there
    is nothing to write.
    """
    if outcome.interrupted and not outcome.rounds:
        raise Interrupted("before a model was trained; nothing was written")
