"""What a training learns first, between processes: levels, counts and bounds, each in a run of its
own before it.

The aggregator of run ``r`` tells every party of ``r`` by a status (``learning``, and what), and
holds a run of statistics named ``r-levels``, ``r-counts`` or ``r-bounds`` with them: the same
sessions, masks, ledgers and crash states as any run. What it found goes into the config, with its
price, and the run ``r`` begins. A party that is told takes part in that run and comes back; it lets
in no plan of ``r`` that leaves out what it has paid for there. Levels are a list of names, which
masks cannot add up: that run has none, and a party that requires them refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from homo_dp.config.schema import Config
from homo_dp.console.options import Screen
from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import ConfigError
from homo_dp.core.files import write_whole
from homo_dp.federation.protocol.messages import KINDS
from homo_dp.federation.sessions.crash_state import RunFolder, state_file
from homo_dp.federation.sessions.ledger_heads import HeadsInMemory
from homo_dp.federation.sessions.members import Members
from homo_dp.federation.sessions.party_session import LEARNING, STEPS, learns_for
from homo_dp.runs.aggregator_process import AggregatorProcess
from homo_dp.runs.learned_bounds import (
    bounds_phase,
    counts_phase,
    learns,
    levels_phase,
    parts_of,
    with_all_columns,
    with_bounds,
    with_counts,
    with_levels,
)
from homo_dp.runs.processes import (
    aggregator_sealer,
    learning_config,
    learning_run,
    learning_screen,
    open_transport,
    run_name,
)
from homo_dp.runs.statistics_outputs import Results

FOUND: Final = "learnt.json"  # in the folder of the run that learnt


def aggregate(config: Config, screen: Screen) -> int:
    """Run an aggregator to its end, with what its config asks to be learnt first; the exit code."""
    if learns(config):
        _check_name(run_name(config))
        for step, part in parts_of(config).items():
            config = _learn(config, step, part, screen)
    return AggregatorProcess(config, screen).run()


def _check_name(run: str) -> None:
    """Refuse a name by which parties know a step of another run: they take no word that it has
    steps of its own.
    """
    base = learns_for(run)
    if base is not None:
        raise ConfigError(
            f"federation.run={run}: is the name of a run that learns for the run {base!r}, and "
            "nothing is learnt before such a run; end the name on another word than "
            f"-{', -'.join(STEPS[:-1])} or -{STEPS[-1]}, here and at every party"
        )


def _learn(config: Config, step: str, part: float, screen: Screen) -> Config:
    """The config with what one step found; a step that is over is not asked again."""
    names = [member.name for member in config.federation.parties]
    phases: dict[str, Callable[[], Config]] = {
        "levels": lambda: levels_phase(config, names, part),
        "counts": lambda: counts_phase(with_all_columns(config), names, part),
        "bounds": lambda: bounds_phase(with_all_columns(config), part),
    }
    takes: dict[str, Callable[[Results], Config]] = {
        "levels": lambda found: with_levels(config, found),
        "counts": lambda found: with_counts(config, found, names),
        "bounds": lambda found: with_bounds(with_all_columns(config), found),
    }
    run = learning_run(run_name(config), step)
    place = Path(config.federation.state_dir) / run / FOUND
    if not place.exists():
        _announce(config, step)
        crash_point("aggregator.learning_announced")
        process = AggregatorProcess(
            learning_config(phases[step](), run, step), learning_screen(screen)
        )
        process.run()
        crash_point("aggregator.before_learnt")
        write_whole(place, json.dumps(process.found).encode(), "what was learnt")
    crash_point("aggregator.after_learnt")
    file = state_file(place)
    return takes[step](file.check(dict, file.json(place.read_text(encoding="utf-8"))))


def _announce(config: Config, step: str) -> None:
    """Tell every party of the run, in its name, which step is learnt now; it waits for parties
    that are away.
    """
    run = run_name(config)
    sealer = aggregator_sealer(config, KINDS)
    folder = RunFolder(config.federation.state_dir, run)
    try:
        transport = open_transport(config, sealer, folder.path)
        try:
            members = Members(run, list(sealer.allowed), transport, HeadsInMemory(), lambda _: None)
            for party in members.parties:
                members.tell(party, 0, LEARNING, step)
        finally:
            transport.close()
    finally:
        folder.close()
