"""What goes into a ledger (a charge), what it may cost (a budget), and what comes out (a row and
its hash).
"""

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, NamedTuple

from homo_dp.privacy.accounting.dp_event import NoOpDpEvent
from homo_dp.privacy.accounting.events import (
    DpEvent,
    EventText,
    check_releases,
    from_json,
    to_json,
)
from homo_dp.privacy.errors import LedgerError, PrivacyError

__all__ = [
    "FREE",
    "MARK",
    "NOISE_ALONE",
    "NOT_PRIVATE",
    "OBSERVERS",
    "RELATIONS",
    "SIGNED",
    "UNITS",
    "Budget",
    "Charge",
    "LedgerRow",
    "Scope",
    "Spend",
    "row_hash",
    "row_of",
]

Scope = tuple[str, str, str]  # what a release is about: dataset, unit and relation


class Spend(NamedTuple):
    """A mechanism as it was accounted (its canonical text), and for which neighbours."""

    event: EventText
    unit: str
    relation: str


# the event of a row that releases nothing of rows: a mark, or noise alone
MARK = EventText('{"type":"NoOpDpEvent"}')

UNITS = ("record", "user")
RELATIONS = ("add_or_remove_one", "replace_one")
OBSERVERS = ("aggregator", "model_reader")
_LONGEST_NAME = 200
# how NoiseSource.label says it; importing it from there would load torch
NOT_PRIVATE = "NOT PRIVATE"
# the kind of a masked answer that no row has a part in: it is on the ledger and costs nothing
NOISE_ALONE = "noise"
# the kind of a mark: which parties' sum of a round was signed for, by the digest of their names
SIGNED = "survivors"
FREE = (NOISE_ALONE, SIGNED)  # kinds that release no row


class _Accounted:
    """What a charge and the row that it becomes tell alike."""

    dataset: str
    unit: str
    relation: str

    @property
    def event_text(self) -> EventText:
        """The event as the ledger keeps it: canonical JSON."""
        raise NotImplementedError

    @property
    def scope(self) -> Scope:
        """What the release is about: dataset, unit and relation."""
        return self.dataset, self.unit, self.relation

    @property
    def spend(self) -> Spend:
        """What is spent by it."""
        return Spend(self.event_text, self.unit, self.relation)

    @property
    def is_release(self) -> bool:
        """Whether something of rows is released; a mark, and noise alone, cost nothing
        (``MARK``).
        """
        return self.event_text != MARK


@dataclass(frozen=True)
class Charge(_Accounted):
    """One release that a party is about to make.

    ``sigma`` is the standard deviation that was added, ``event`` the mechanism as accounted,
    ``observer`` whom the guarantee holds against. ``message_sha256`` ties the charge to the bytes
    that leave, so that only those can be sent again under it; it is None where no message is kept.
    ``noise`` is the label of the noise source: secure, ordinary, or NOT PRIVATE.
    """

    run: str
    dataset: str
    unit: str
    relation: str
    party: str
    round: int
    kind: str
    event: DpEvent
    delta: float
    sigma: float
    observer: str
    message_sha256: str | None = None
    noise: str = "not stated"

    def __post_init__(self) -> None:
        for name in ("run", "dataset", "party", "kind", "noise"):
            _check_name(name, getattr(self, name))
        _check_choice("unit", self.unit, UNITS)
        _check_choice("relation", self.relation, RELATIONS)
        _check_choice("observer", self.observer, OBSERVERS)
        if (
            isinstance(self.round, bool)
            or not isinstance(self.round, int)
            or not 0 <= self.round < 2**63
        ):
            raise PrivacyError(f"round={self.round!r} must be a whole number >= 0")
        _check_number("delta", self.delta, 1.0)
        _check_number("sigma", self.sigma, math.inf)
        self.event_text  # noqa: B018 (refuses what the accountants do not know)
        if self.kind not in FREE:
            check_releases(self.event)
        elif not isinstance(self.event, NoOpDpEvent):
            raise PrivacyError(
                f"kind={self.kind}: is no release of rows, so its event must be none"
            )

    @functools.cached_property
    def event_text(self) -> EventText:
        """The event as the ledger keeps it: canonical JSON."""
        return to_json(self.event)

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What makes a release one release: run, party, round and kind."""
        return self.run, self.party, self.round, self.kind


@dataclass(frozen=True)
class Budget:
    """How much may be spent; None means no limit.

    ``epsilon`` is for this run at the charges' own delta, ``lifetime_epsilon`` at
    ``lifetime_delta`` for all runs on one dataset name, whatever their unit, relation and
    mechanism.
    """

    epsilon: float | None = None
    lifetime_epsilon: float | None = None
    lifetime_delta: float | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "lifetime_epsilon"):
            if getattr(self, name) is not None:
                _check_number(name, getattr(self, name), math.inf)
        if self.lifetime_delta is not None:
            _check_number("lifetime_delta", self.lifetime_delta, 1.0)
        elif self.lifetime_epsilon is not None:
            raise PrivacyError(
                f"lifetime_epsilon={self.lifetime_epsilon:g} needs lifetime_delta in (0, 1); set "
                "privacy.lifetime_delta"
            )


@dataclass(frozen=True)
class LedgerRow(_Accounted):
    """One release as the ledger holds it; the epsilons are of the run so far, this release
    included.

    ``salt`` is random and goes into the hash: the hash of the last row is shown to others, and
    without a salt they could find a row's numbers by trying them all. ``first_row`` is the first
    row of the same commit; ``checkpoint`` the digest of the sums over all rows before this one,
    where they were written down. Rows of version 2 have none of them.
    """

    row: int
    run: str
    dataset: str
    unit: str
    relation: str
    party: str
    round: int
    kind: str
    event: EventText
    delta: float
    epsilon_pld: float | None
    epsilon_rdp: float
    sigma: float
    observer: str
    noise: str
    time: str
    message_sha256: str | None
    lifetime_order: float | None
    previous_hash: str
    hash: str
    salt: str | None = None
    first_row: int | None = None
    checkpoint: str | None = None

    @property
    def event_text(self) -> EventText:
        """The event as the ledger keeps it: canonical JSON."""
        return self.event

    @property
    def epsilon(self) -> float:
        """The figure to quote: PLD where it exists, else RDP."""
        return self.epsilon_rdp if self.epsilon_pld is None else self.epsilon_pld

    @property
    def private(self) -> bool:
        """Whether the noise cannot be repeated; if it can, no epsilon may be quoted."""
        return not self.noise.startswith(NOT_PRIVATE)

    def to_dict(self) -> dict[str, Any]:
        """The row with plain, stable names, ready for JSON."""
        fields = {
            name: _finite(value)
            for name, value in vars(self).items()
            if value is not None or name not in _NEW
        }
        quoted = _finite(self.epsilon) if self.private else None
        return fields | {"event": json.loads(self.event), "epsilon": quoted}


# since version 3; where they are absent the hash is that of version 2
_NEW = ("salt", "first_row", "checkpoint")
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=repr).encode


def row_hash(fields: Mapping[str, Any]) -> str:
    """SHA-256 of everything in a row but its own hash, the hash of the row before and the secret
    salt included.
    """
    content = dict(fields)
    content.pop("hash", None)
    for name in _NEW:
        if content.get(name) is None:
            content.pop(name, None)
    version = b"1" if "salt" not in content else b"2"
    return hashlib.sha256(
        b"homo_dp ledger row " + version + b"\n" + _encode(content).encode()
    ).hexdigest()


def row_of(values: Sequence[Any], ledger: object) -> LedgerRow:
    """A row from what SQLite holds, which may be of any type; raises naming the row and the
    column.
    """
    if tuple(map(type, values)) not in _GOOD:
        for field, value in zip(fields(LedgerRow), values, strict=True):
            if type(value) not in _types_of(field):
                raise LedgerError(
                    f"ledger={ledger} row={values[0]!r:.20} was edited: {field.name}={value!r:.80} "
                    f"must be {_type_name(field)}; restore the ledger and its .head from a backup "
                    "that is not older"
                )
    row = LedgerRow(*values)
    if not _known_event(row.event):
        raise LedgerError(
            f"ledger={ledger} row={row.row} was edited: event={row.event!r:.80} is not an event "
            "that homo_dp releases; restore the ledger and its .head from a backup that is not "
            "older"
        )
    return row


@functools.lru_cache(maxsize=4096)
def _known_event(text: str) -> bool:
    try:
        return to_json(from_json(text)) == text
    except (PrivacyError, OverflowError):
        return False


_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "float": (float,),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "float | None": (float, type(None)),
}


def _type_name(field: Field[Any]) -> str:
    return "str" if field.type is EventText else str(getattr(field.type, "__name__", field.type))


def _types_of(field: Field[Any]) -> tuple[type, ...]:
    return _TYPES[_type_name(field)]


_GOOD = frozenset(itertools.product(*map(_types_of, fields(LedgerRow))))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or not value.isprintable():
        raise PrivacyError(
            f"{name}={value!r:.80} must be 1 to {_LONGEST_NAME} printable characters; rename it"
        )


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PrivacyError(f"{name}={value!r:.80} must be one of {', '.join(allowed)}")


def _check_number(name: str, value: object, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < high:
        raise PrivacyError(
            f"{name}={value!r:.80} must be a number in (0, {high:g}); set it in the privacy section"
        )
