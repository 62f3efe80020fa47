"""Statistics in one process: the same sessions as training, with a mechanism that only asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homo_dp.config.load import config_from
from homo_dp.config.schema import Config
from homo_dp.console.options import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.statistics import Statistics
from homo_dp.federation.sessions.aggregator import RoundReport
from homo_dp.federation.sessions.crash_state import Row
from homo_dp.federation.sessions.statement import federation_epsilon, quoted_observer
from homo_dp.runs.lifecycle import Life
from homo_dp.runs.run_facts import run_params, run_tags
from homo_dp.runs.simulation import Simulation
from homo_dp.runs.statistics_outputs import Results, published, results_of
from homo_dp.tracking.tracker import Tracker


def asking(
    config: Config, ask: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> Config:
    """A config of statistics with these questions, about these columns.

    >>> from homo_dp.config.load import load_config
    >>> asking(load_config(None, {"privacy.mechanism": "statistics"}), ["means"]).statistics.ask
    ('means',)
    """
    tree = config.model_dump(mode="json")
    given = {"ask": ask, "columns": columns}
    tree["statistics"] |= {name: list(value) for name, value in given.items() if value is not None}
    return config_from(tree)


class StatisticsSimulation(Simulation):
    """One in-process run that asks; the outcome's answers are in ``mechanism``."""

    def __init__(self, config: Config, begin: Callable[[Simulation], None] | None = None) -> None:
        super().__init__(config, lambda row, numbers: None, begin)

    @property
    def statistics(self) -> Statistics:
        """The mechanism, which holds the answers."""
        if not isinstance(self.mechanism, Statistics):
            raise ConfigError(
                f"privacy.mechanism={self.mechanism.name}: asks no questions; write statistics"
            )
        return self.mechanism

    def _check_prediction_columns(self) -> None:
        """Nothing is predicted."""

    def _report(self, report: RoundReport, kept: Row) -> Row:
        spent = (
            federation_epsilon(self.plans, quoted_observer(self.plans), report.round)
            if self.private
            else None
        )
        self.rounds.append({"round": report.round, "asked": report.asked, "epsilon": spent})
        return kept


def ask_in_process(
    config: Config,
    tracker: Tracker | None = None,
    begin: Callable[[Simulation], None] | None = None,
) -> Results:
    """The answers of all parties of a config, in one process; ``begin`` is that of Simulation."""
    simulation = StatisticsSimulation(config, begin)
    if tracker is not None:
        tags = run_tags(config, simulation.run_id, simulation.mechanism, private=simulation.private)
        tracker.start(run_params(config), tags, list(simulation.plans))
    outcome = simulation.run()
    if simulation.ledger is not None:
        simulation.ledger.close()
    return results_of(simulation.statistics, outcome.weights, outcome.run, outcome.statement)


def ask_and_publish(config: Config, screen: Screen, source: str | None = None) -> Results:
    """The same with files, MLflow and a table on screen."""
    with Life(config, screen) as life:
        results = ask_in_process(config, life.tracker, lambda made: made.introduce(screen, source))
        life.finish(published(config, results))
    return results
