"""One training in this process, with progress and tracking: what the command and the Python API both call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from homo_dp.console.options import Interrupted
from homo_dp.core.heavy_imports import quick_imports

if TYPE_CHECKING:
    from homo_dp.config.schema import Config
    from homo_dp.console.screen import Screen
    from homo_dp.runs.simulation import Outcome, Simulation
    from homo_dp.tracking.tracker import Tracker


@contextlib.contextmanager
def prepared(config: Config, screen: Screen, tracker: Tracker) -> Iterator[Simulation]:
    """The federation of a config, to be run while this is open: its rounds show progress and are tracked."""
    with quick_imports():
        from homo_dp.federation.sessions.build import mechanism_class
        from homo_dp.runs.dry_run import continuation_note
        from homo_dp.runs.run_facts import run_params, run_tags
        from homo_dp.runs.user_simulation import build_simulation

        mechanism_class(config.privacy.mechanism).warm_up()

    with screen.progress(config.train.rounds) as progress:

        def on_round(row: Mapping[str, Any], parties: Mapping[str, Mapping[str, float]]) -> None:
            progress.advance(loss=row["test_loss"], accuracy=row["test_acc"], epsilon=row["epsilon"])
            tracker.log_round(row["round"], {k: v for k, v in row.items() if k != "round" and v is not None}, parties)

        try:
            simulation = build_simulation(config, on_round)
        except KeyboardInterrupt:
            raise Interrupted("before the first round; nothing was written") from None
        if config.train.init_from is not None:
            screen.line(continuation_note(config.train.init_from))
        tags = run_tags(config, simulation.run_id, simulation.mechanism, private=simulation.private)
        tracker.start(run_params(config), tags, list(simulation.plans))
        yield simulation


def check_rounds(outcome: Outcome, tracker: Tracker) -> None:
    """Raise if the run was interrupted before its first round was over, so that there is nothing to write."""
    if outcome.interrupted and not outcome.rounds:
        tracker.finish("KILLED", {}, {})
        raise Interrupted("before the first round was over; nothing was written")
