"""An aggregator inside a Flower ServerApp: the same process as elsewhere, with Flower's Grid as
its transport.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homo_dp.compat.load import load
from homo_dp.compat.params import parse_params
from homo_dp.config.schema import Config
from homo_dp.console.options import check_outputs, explain, use_threads
from homo_dp.console.screen import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.runs.aggregator_process import AggregatorProcess
from homo_dp.runs.processes import run_name
from homo_dp.transport.flower.grid import Fleet, GridTransport
from homo_dp.transport.flower.server_app import server_app
from homo_dp.transport.sealing import Sealer


def aggregate(fleet: Fleet, run_config: Mapping[str, Any]) -> None:
    """Run the aggregator that the run's config names; what a user can mend is one line in
    Flower's log.
    """
    try:
        config = _config(run_config)

        def transport(config: Config, sealer: Sealer, state: Path) -> GridTransport:
            found = GridTransport(fleet, run_name(config), sealer)
            found.last_words = config.federation.round_timeout
            return found

        AggregatorProcess(config, Screen(quiet=False, as_json=False), transport).run()
    except Exception as error:
        raise RuntimeError(explain(error)[1]) from error


def _config(run_config: Mapping[str, Any]) -> Config:
    path = run_config.get("config")
    if not isinstance(path, str) or not path:
        raise ConfigError(
            "config: is not given; flwr run ... --run-config 'config=\"conf/federation.yaml\"' "
            "names the aggregator's file, on the machine where the ServerApp runs"
        )
    given = str(run_config.get("params", ""))
    params = parse_params([given] if given else [])
    loaded = load(path, (*params.items, ("transport.kind", "flower")))
    use_threads(loaded.config.train.threads)
    check_outputs(loaded.config, ("indicatorFileName", "modelFileName"))
    return loaded.config


app = server_app(aggregate)
