"""``homo_dp.party`` and ``homo_dp.aggregator``: one side of a federation from Python, as the
commands run it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from homo_dp.api.model import Model, load
from homo_dp.api.settings import Settings, config_of, with_arguments
from homo_dp.api.training import screen_for

if TYPE_CHECKING:
    from homo_dp.config.schema import Config


def party(
    settings: Settings, *, transport: str | type | None = None, progress: bool = True
) -> Model:
    """Run one party of a federation to its end, beside its own table; the final model.

    Args:
        settings: what ``conf/party_a.yaml`` holds, as a ``Config``, dotted names or nested dicts.
        transport: ``directory``, ``nats``, or a class of your own that is called as
            ``Class(options, run, sealer)`` (docs/transports.md); as ``transport.kind`` if it is not
            given.
        progress: whether to show rounds as they are answered.

    Ledger, state and outputs are files, as the command keeps them: called again after a crash, it
    goes on.
    """
    from homo_dp.runs.party_process import PartyProcess

    config = _config(settings, transport)
    PartyProcess(config, screen_for(progress)).run()
    return load(config.output.modelFileName)


def aggregator(
    settings: Settings, *, transport: str | type | None = None, progress: bool = True
) -> Model:
    """Run the aggregator of a federation to its end; the final model. Arguments as for
    ``homo_dp.party``.
    """
    from homo_dp.runs.aggregator_process import AggregatorProcess

    config = _config(settings, transport)
    AggregatorProcess(config, screen_for(progress)).run()
    return load(config.output.modelFileName)


def _config(settings: Settings, transport: str | type | None) -> Config:
    return config_of(with_arguments(settings, {"transport.kind": transport}))
