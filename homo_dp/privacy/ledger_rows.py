"""What goes into a ledger (a charge), what it may cost (a budget), and what comes out (a row and its hash)."""

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.events import DpEvent, check_releases, to_json

__all__ = ["OBSERVERS", "RELATIONS", "UNITS", "Budget", "Charge", "LedgerRow", "Scope", "row_hash"]

Scope = tuple[str, str, str]  # what a lifetime budget is about: dataset, unit and relation

UNITS = ("record", "user")
RELATIONS = ("add_or_remove_one", "replace_one")
OBSERVERS = ("aggregator", "model_reader")
_LONGEST_NAME = 200
_NOT_PRIVATE = "NOT PRIVATE"  # how NoiseSource.label says it; importing it from there would load torch


@dataclass(frozen=True)
class Charge:
    """One release that a party is about to make.

    ``sigma`` is the standard deviation that was added, ``event`` the mechanism as accounted, ``observer`` whom the
    guarantee holds against. ``message_sha256`` ties the charge to the bytes that leave, so that only those can be
    sent again under it; it is None where no message is kept. ``noise`` is the label of the noise source: secure,
    ordinary, or NOT PRIVATE.
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
        if isinstance(self.round, bool) or not isinstance(self.round, int) or not 0 <= self.round < 2**63:
            raise PrivacyError(f"round={self.round!r} must be a whole number >= 0")
        _check_number("delta", self.delta, 1.0)
        _check_number("sigma", self.sigma, math.inf)
        self.event_text  # noqa: B018 (refuses what the accountants do not know)
        check_releases(self.event)

    @functools.cached_property
    def event_text(self) -> str:
        """The event as the ledger keeps it: canonical JSON."""
        return to_json(self.event)

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What makes a release one release: run, party, round and kind."""
        return self.run, self.party, self.round, self.kind

    @property
    def scope(self) -> Scope:
        """What a lifetime budget is about: dataset, unit and relation."""
        return self.dataset, self.unit, self.relation


@dataclass(frozen=True)
class Budget:
    """How much may be spent; None is no limit.

    ``epsilon`` is for this run at the charges' own delta, ``lifetime_epsilon`` at ``lifetime_delta`` for all runs
    on one dataset name, unit and relation.
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
                f"lifetime_epsilon={self.lifetime_epsilon:g} needs lifetime_delta in (0, 1); set privacy.lifetime_delta"
            )


@dataclass(frozen=True)
class LedgerRow:
    """One release as the ledger holds it; the epsilons are of the run so far, this release included."""

    row: int
    run: str
    dataset: str
    unit: str
    relation: str
    party: str
    round: int
    kind: str
    event: str
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

    @property
    def scope(self) -> Scope:
        """What a lifetime budget is about: dataset, unit and relation."""
        return self.dataset, self.unit, self.relation

    @property
    def epsilon(self) -> float:
        """The figure to quote: PLD where it exists, else RDP."""
        return self.epsilon_rdp if self.epsilon_pld is None else self.epsilon_pld

    @property
    def private(self) -> bool:
        """Whether the noise was one that nobody can repeat; if not, no epsilon may be quoted."""
        return not self.noise.startswith(_NOT_PRIVATE)

    def to_dict(self) -> dict[str, Any]:
        """The row with plain, stable names, ready for JSON."""
        fields = {name: _finite(value) for name, value in vars(self).items()}
        quoted = _finite(self.epsilon) if self.private else None
        return fields | {"event": json.loads(self.event), "epsilon": quoted}


def row_hash(fields: Mapping[str, Any]) -> str:
    """SHA-256 of everything in a row but its own hash, the hash of the row before included."""
    content = {name: value for name, value in fields.items() if name != "hash"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(b"homo_dp ledger row 1\n" + text.encode()).hexdigest()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or not value.isprintable():
        raise PrivacyError(f"{name}={value!r:.80} must be 1 to {_LONGEST_NAME} printable characters; rename it")


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PrivacyError(f"{name}={value!r:.80} must be one of {', '.join(allowed)}")


def _check_number(name: str, value: object, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < high:
        raise PrivacyError(f"{name}={value!r:.80} must be a number in (0, {high:g}); set it in the privacy section")
