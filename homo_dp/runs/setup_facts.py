"""Who ran what in a run, for its report: one process with all rows, a party, or the aggregator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from homo_dp.federation.protocol.ids import AGGREGATOR

if TYPE_CHECKING:
    from homo_dp.config.schema import Config
    from homo_dp.transport.sealing import Sealer

# One process holds the rows of all parties, and their messages stay in its memory.
SIMULATION: dict[str, Any] = {"role": "simulation", "transport": "memory"}


def party_setup(config: Config, sealer: Sealer, parties: int) -> dict[str, Any]:
    """The part of one party.

    Args:
        config: its own config, before the plan.
        sealer: its keys, and the aggregator's.
        parties: how many parties the plan names.
    """
    (aggregator,) = (key for key in sealer.allowed.values() if key.name == AGGREGATOR)
    return {
        "role": "party",
        "transport": config.transport.kind,
        "party": sealer.name,
        "fingerprint": sealer.own.public.fingerprint,
        "aggregator": aggregator.fingerprint,
        "parties": parties,
    }


def aggregator_setup(config: Config, sealer: Sealer) -> dict[str, Any]:
    """The part of the aggregator, who has no rows."""
    return {
        "role": "aggregator",
        "transport": config.transport.kind,
        "aggregator": sealer.own.public.fingerprint,
        "parties": len(sealer.allowed),
    }


def bounds_facts(config: Config, own: Config | None = None) -> dict[str, Any]:
    """Where bounds and categories come from.

    Args:
        config: what the run went by.
        own: the party's own config, where it agreed to a plan.
    """
    data = config.data
    bundled = data.columns_from or (data.embedded if not data.files else None)
    shipped = bundled if not data.columns else None
    columns = {
        name: block.source for name, block in data.columns.items() if block.source is not None
    }
    source = data.bounds_source or ("public" if shipped else "not stated")
    given = own is not None and not (own.data.columns or own.data.columns_from)
    return {
        "source": source,
        **({"shipped": shipped} if shipped else {}),
        **({"given_by": "plan" if given else "own config"} if own is not None else {}),
        **({"columns": columns} if columns else {}),
    }
