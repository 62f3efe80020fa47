"""Masked sums between processes: peers by the keys of one's own config, bound to the plan, with
all secrets on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError, MessageError
from homo_dp.core.strict_json import json_digest
from homo_dp.federation.mechanisms.base import Mechanism
from homo_dp.federation.secure_sums.party import SecureSumParty
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.federation.sessions.crash_state import SumFiles
from homo_dp.federation.sessions.plan import PlanJson, PlanRefused
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.federation.sessions.secure_messages import findings_digest
from homo_dp.federation.sessions.secure_rounds import AggregatorSums
from homo_dp.privacy.private_sum import NoiseShare
from homo_dp.runs.processes import member_keys, run_name
from homo_dp.transport.keys import PublicKey
from homo_dp.transport.sealing import Sealer


def party_sums(
    own: Config,
    plan: PlanJson,
    sealer: Sealer,
    mechanism: Mechanism,
    folder: Path,
    found: object = None,
) -> PartySums | None:
    """A party's side.

    Args:
        own: the party's config.
        plan: as it came, since all parties must have got the same.
        sealer: its keys.
        mechanism: of the stage that the run is in.
        folder: of the run.
        found: what was privately estimated, as it came; None before.

    Returns:
        The masks; None where nothing is masked.

    Guarantees:
        - peers are those of the party's own ``federation.parties``, with keys that are neither
          expired nor revoked;
        - what has to survive a crash is in ``folder`` before anything that follows from it is sent.
    """
    asked = mechanism.masked_sum
    if asked is None or asked.share is None:
        return None
    keys = {key.name: key for key in member_keys(own)}
    try:
        for key in keys.values():
            sealer.check_key(key)
    except MessageError as refusal:
        raise PlanRefused("roster", f"federation.parties: {refusal}") from None
    if keys[sealer.name].raw != sealer.own.public.raw:
        raise ConfigError(
            f"federation.parties.{sealer.name}: is not the public key of party.key_file; take the "
            "line of that key"
        )
    roster = _roster(run_name(own), keys, asked.share, plan)
    party = SecureSumParty(roster, sealer.name, sealer.own.signer.sign, SumFiles(folder / "sums"))
    return PartySums(
        run_name(own),
        party,
        asked,
        mechanism.run.sums,
        mechanism.run.count,
        findings_digest(found),
    )


def aggregator_sums(
    run: str,
    plan: PlanJson,
    sealer: Sealer,
    mechanism: Mechanism,
    folder: Path,
    found: object = None,
) -> AggregatorSums | None:
    """The aggregator's side, None where nothing is masked; arguments as for ``party_sums``."""
    asked = mechanism.masked_sum
    if asked is None or asked.share is None:
        return None
    return AggregatorSums(
        run,
        _roster(run, sealer.allowed, asked.share, plan),
        asked,
        SumFiles(folder / "sums"),
        mechanism.run.sums,
        mechanism.run.count,
        findings_digest(found),
    )


def _roster(run: str, keys: Mapping[str, PublicKey], share: NoiseShare, plan: PlanJson) -> Roster:
    identities = {name: key.raw[:32] for name, key in keys.items() if name in plan["rows"]}
    return Roster(run, identities, share.dropouts, share.colluders, json_digest(plan))
