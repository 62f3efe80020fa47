"""What aggregator and party processes share: ids, keys and the sealed transport, all from the
config.
"""

from __future__ import annotations

import importlib
import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from homo_dp.config.addresses import masked
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError, MessageError, one_line
from homo_dp.core.files import write_whole
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import KINDS, Kinds, Limits
from homo_dp.federation.protocol.transport import Transport
from homo_dp.federation.sessions.crash_state import RunFolder, explained
from homo_dp.runs.run_facts import public_dataset, run_params, run_tags
from homo_dp.tracking.mlflow.uris import is_local
from homo_dp.transport.keys import (
    PUBLIC_MARK,
    KeyPair,
    PublicKey,
    allow_list,
    parse_public_line,
    read_key_pair,
    read_public_key,
)
from homo_dp.transport.poison_messages import ReadingNote
from homo_dp.transport.revocation import RevokedKeys
from homo_dp.transport.sealing import Sealer

if TYPE_CHECKING:
    from homo_dp.federation.mechanisms.base import Mechanism
    from homo_dp.tracking.tracker import Tracker

log = logging.getLogger(__name__)

OpenTransport = Callable[[Config, Sealer, Path], Transport]
GO_ON = "start the same command again: the run continues where it is"


def run_name(config: Config) -> str:
    """The name of the run, which all sides must know."""
    if config.federation.run is None:
        raise ConfigError(
            "federation.run: is not given; aggregator and parties need one and the same name of "
            "the run"
        )
    return config.federation.run


def aggregator_sealer(config: Config, kinds: Kinds) -> Sealer:
    """The aggregator's keys and those of the parties on its list."""
    federation = config.federation
    if not federation.parties:
        raise ConfigError("federation.parties: is empty; list every party with its public key")
    own = _own_key(federation.key_file, "federation.key_file", AGGREGATOR)
    return _sealer(config, own, member_keys(config), kinds)


def member_keys(config: Config) -> list[PublicKey]:
    """The public keys of the parties that this process's own config lists."""
    keys = []
    for member in config.federation.parties:
        where = f"federation.parties.{member.name}"
        if member.public_key is None:
            raise ConfigError(
                f"{where}: has no public_key; paste the line that `homo_dp.keys new` printed there"
            )
        keys.append(_public_key(member.public_key, where, member.name))
    return keys


def party_sealer(config: Config) -> Sealer:
    """A party's keys and that of the aggregator; the mechanism's own kinds of messages are known
    with the plan.
    """
    party = config.party
    if party.name is None:
        raise ConfigError(
            "party.name: is not given; use the name under which the aggregator lists this party"
        )
    own = _own_key(party.key_file, "party.key_file", party.name)
    if party.aggregator_key is None:
        raise ConfigError("party.aggregator_key: is not given; paste the aggregator's public line")
    known = _public_key(party.aggregator_key, "party.aggregator_key", AGGREGATOR)
    return _sealer(config, own, [known], KINDS)


def fingerprints(sealer: Sealer) -> str:
    """Which fingerprints a party and its aggregator should compare, where one of them has a wrong
    key.
    """
    keys = (sealer.own.public, *sealer.allowed.values())
    listed = "; ".join(f"{key.name} {key.fingerprint}" for key in keys)
    return f"Compare fingerprints with the aggregator by another way: here {listed}"


def asker_sealers(config: Config) -> dict[str, tuple[Sequence[str], Sealer]]:
    """For each aggregator that may start runs at a party that serves: the names it may use, and
    keys to check it by.
    """
    party, rules = config.party, config.party.serve
    if rules is None or not rules.askers:
        return {"party.aggregator_key": (("*",), party_sealer(config))}
    if party.name is None:
        raise ConfigError(
            "party.name: is not given; use the name under which the aggregators list this party"
        )
    own, found = (
        _own_key(party.key_file, "party.key_file", party.name),
        dict[str, tuple[Sequence[str], Sealer]](),
    )
    for number, asker in enumerate(rules.askers):
        where = f"party.serve.askers[{number}].aggregator_key"
        found[where] = (
            asker.runs,
            _sealer(config, own, [_public_key(asker.aggregator_key, where, AGGREGATOR)], KINDS),
        )
    return found


def open_transport(config: Config, sealer: Sealer, state: Path) -> Transport:
    """This process's end of the configured transport; in `state` it notes which message it is
    reading.
    """
    run, transport = run_name(config), config.transport
    sealer.note = ReadingNote(state / "reading")
    if transport.kind == "directory":
        from homo_dp.transport.directory import DirectoryTransport

        return DirectoryTransport(transport.directory, run, sealer)
    if transport.kind == "nats":
        from homo_dp.transport.nats.queue import NatsTransport

        return NatsTransport(transport.nats, run, sealer, patience=config.party.patience)
    if transport.kind == "flower":
        if sealer.name == AGGREGATOR:
            raise ConfigError(
                "transport.kind=flower: the aggregator runs inside Flower: `flwr run "
                "pipelines/flower` (docs/flower.md)"
            )
        from homo_dp.transport.flower.node import NodeTransport
        from homo_dp.transport.flower.relay import socket_of

        flower = transport.flower
        return NodeTransport(socket_of(flower.socket, state.parent, run), run, sealer, flower.group)
    if transport.kind != "memory":
        return _own_transport(config, run, sealer)
    raise ConfigError(
        "transport.kind=memory: is for homo_dp.train, in one process; between processes use "
        "directory, nats or flower"
    )


def _own_transport(config: Config, run: str, sealer: Sealer) -> Transport:
    """A transport of the user's own: ``Class(options, run, sealer)``; only sealed bytes should
    travel by it.
    """
    path, options = config.transport.kind, dict(config.transport.options)
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)(options, run, sealer)
    except (Exception, SystemExit) as error:
        # the module is the user's own code, and may fail in any way
        why = f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(
            f"transport.kind={path}: cannot be opened ({why}); see docs/transports.md"
        ) from error
    if not isinstance(found, Transport):
        raise ConfigError(
            f"transport.kind={path}: has no send, receive, done and close; see docs/transports.md"
        )
    return found


def start_tracker(
    tracker: Tracker,
    config: Config,
    role: str,
    folder: RunFolder,
    mechanism: Mechanism,
    *,
    private: bool,
) -> None:
    """Tell the tracker which run this process is part of, and as what; started again, it goes on
    in its run there.
    """
    if not config.tracking.enabled:
        return
    path = folder.path / "tracking.mark"
    if not path.exists():
        write_whole(path, secrets.token_hex(16).encode(), "state")
    with explained(path):
        mark = path.read_text(encoding="ascii")
    tags = run_tags(config, run_name(config), mechanism, private=private) | {"role": role}
    if config.party.name is not None and role != "aggregator":
        tags["party"] = config.party.name
    tracker.start(run_params(config), tags, [], mark, public_dataset(config))


def tells_who_was_drawn(config: Config, mechanism: Mechanism) -> bool:
    """Whether tracking would tell a store elsewhere in which rounds this party was drawn, where
    that is secret; the log then says that nothing is sent.

    ``tracking.private_metrics`` lets the rounds go.
    """
    tracking = config.tracking
    if (
        not mechanism.hides_cohort
        or not tracking.enabled
        or is_local(tracking.uri)
        or tracking.private_metrics
    ):
        return False
    log.warning(
        "tracking.uri=%s: is not on this machine, and rounds would tell when this party was drawn; "
        "nothing is sent (tracking.private_metrics: true sends it)",
        masked(tracking.uri),
    )
    return True


def _sealer(config: Config, own: KeyPair, keys: list[PublicKey], kinds: Kinds) -> Sealer:
    """The keys; one of its own that is revoked or past its day ends a process, one of several
    peers only that peer.
    """
    sealer = Sealer(own, allow_list(keys), kinds, Limits(bytes=config.transport.max_message_bytes))
    if config.transport.revoked_keys is not None:
        sealer.revoked = RevokedKeys(Path(config.transport.revoked_keys))
    for key in (own.public, *keys):
        try:
            sealer.check_key(key)
        except MessageError as refusal:
            if own.name != AGGREGATOR or key.name == AGGREGATOR:
                raise ConfigError(str(refusal)) from None
            log.warning("%s; nothing of it is believed and nothing is sent to it", refusal)
    return sealer


def _own_key(path: str | None, where: str, name: str) -> KeyPair:
    if path is None:
        raise ConfigError(
            f"{where}: is not given; make a key with `python -m homo_dp.keys new {name}`"
        )
    pair = read_key_pair(Path(path))
    if pair.name != name:
        raise ConfigError(
            f"{where}={path}: is the key of {pair.name}, not of {name}; make one with that name"
        )
    return pair


def _public_key(given: str, where: str, name: str) -> PublicKey:
    """The key in an exchanged line, or in the .pub file at a path."""
    is_line = given.strip().startswith(PUBLIC_MARK)
    key = parse_public_line(given.strip(), where) if is_line else read_public_key(Path(given))
    if key.name != name:
        raise ConfigError(
            f"{where}: is the public key of {key.name}, not of {name}; take the right line"
        )
    return key


def check_bounds_source(config: Config) -> None:
    """Refuse a draft between processes, where values read from one party's rows would leave it.

    In one process a draft trains: whoever runs it holds all rows, and the statement says what
    epsilon does not cover.
    """
    if config.private and config.data.bounds_source == "draft":
        raise ConfigError(
            "data.bounds_source=draft: these bounds and categories were read from the rows, which "
            "no epsilon covers; replace them by public knowledge and say "
            "data.bounds_source=codebook or public (private: they were found under a budget), or "
            "try them out in one process: homo-dp train"
        )
