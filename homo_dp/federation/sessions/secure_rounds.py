"""Secure sums over messages: the protocol of ``secure_sums`` as a party answers it and as an aggregator leads it.

Once a run: keys, sealed secrets, ready. Each round: a masked update, the survivors, signatures, openings. A party's
side is a function from a message to its answer; the aggregator's are phases of its session, which asks parties and
hands in what they answer (``hear``). Neither knows a transport.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.mechanisms.base import Mechanism, Weights
from homo_dp.federation.protocol.messages import AGGREGATOR, Json, Message, check_tensors
from homo_dp.federation.protocol.transport import Waiting
from homo_dp.federation.secure_sums import shares
from homo_dp.federation.secure_sums.aggregator import SecureSum, SumDiscarded
from homo_dp.federation.secure_sums.agreement import Sign
from homo_dp.federation.secure_sums.party import COMMITMENT_BYTES, InMemory, Keep, MaskedVector, Opening, SecureSumParty
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.private_sum import PrivateSum

Ask = Callable[[Sequence[Message], Mapping[str, Message]], Waiting[None]]
"""Sends questions, and waits until their recipients are in the mapping of who answered, or the time is over."""

log = logging.getLogger(__name__)
_SUM, _SHARES, _COMMITMENTS = "sum", "shares", "commitments"
_MEETING = ("sum_keys", "sum_sealed", "sum_ready")
_TAG = 16  # bytes that AES-GCM adds to a row of shares
_MOST_KEY_BYTES = 4096
_ABSENT = bytes(shares.SHARE_BYTES)  # a share that its holder does not have; a true one is zero with chance 2**-256


def sum_id(number: int) -> str:
    """The name of a round's sum; signatures and seeds are bound to it, and by the roster to the run."""
    return f"{number}/update"


class PartySums:
    """A party's side.

    Guarantees:
        - those of ``SecureSumParty``: what is not signed by the peers of the party's own config is refused, and one set
          of survivors a round is ever signed;
        - a round is masked once: its seeds are used for one vector, which an outbox then repeats byte for byte.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("sum_start", "sum_peers", "sum_secrets", "survivors", "signatures")

    def __init__(self, run: str, party: SecureSumParty, private_sum: PrivateSum) -> None:
        _check_share(party.roster, private_sum)
        self._run, self._party, self._sum = run, party, private_sum

    @property
    def ready(self) -> bool:
        """Whether this party has met its peers."""
        return self._party.ready

    def masked(self, number: int, released: Mapping[str, Tensor]) -> Weights:
        """The tensors of the update of a round: the masked vector and what opens its masks."""
        steps = released.get(_SUM)
        if set(released) != {_SUM} or steps is None or steps.shape != (self._sum.dimension,):
            raise PrivacyError(f"a masked update is one vector of {self._sum.dimension} numbers; release that")
        vector = self._party.mask(sum_id(number), self._sum.to_words(steps))
        signed = np.int32 if self._sum.bits == 32 else np.int64
        neighbours = self._party.roster.neighbours(self._party.name)
        return {
            _SUM: torch.from_numpy(vector.values.view(signed)),
            _SHARES: _matrix([vector.sealed_shares[peer] for peer in neighbours]),
            _COMMITMENTS: _matrix(
                [vector.commitments[name] for name in _committed(self._party.roster, self._party.name)]
            ),
        }

    def handle(self, message: Message) -> Message:
        """Answer one message of the aggregator; asked again, with the same bytes."""
        if message.kind == "sum_start":
            return self._answer(message, "sum_keys", {"keys": _bytes(self._party.keys())})
        if message.kind == "sum_peers":
            sealed = self._party.introduce(_named(message.tensors, "keys."))
            return self._answer(message, "sum_sealed", {f"for.{name}": _bytes(text) for name, text in sealed.items()})
        if message.kind == "sum_secrets":
            self._party.meet(_named(message.tensors, "from."))
            return self._answer(message, "sum_ready", {})
        if message.kind == "survivors":
            return self._sign(message)
        return self._open(message)

    def _sign(self, message: Message) -> Message:
        survivors, roster = _names(message, "survivors"), self._party.roster
        peers = [peer for peer in roster.neighbours(self._party.name) if peer in survivors]
        rows = _rows(message.tensors, _SHARES, len(peers))
        signature = self._party.agree(sum_id(message.round), survivors, dict(zip(peers, rows, strict=True)))
        return self._answer(message, "signature", {"signature": _bytes(signature)})

    def _open(self, message: Message) -> Message:
        signers = _names(message, "signers")
        found = _rows(message.tensors, "signatures", len(signers))
        opening = self._party.open(sum_id(message.round), dict(zip(signers, found, strict=True)))
        survivors = self._party.agreed_set(sum_id(message.round))
        places = _places(self._party.roster, self._party.name, survivors)
        parts = [(opening.own if peer == of else opening.pairs.get(of, {})).get(peer, _ABSENT) for of, peer in places]
        return self._answer(message, "opening", {"opening": _bytes(b"".join(parts))})

    def _answer(self, message: Message, kind: str, tensors: Weights) -> Message:
        return Message(self._run, message.round, self._party.name, AGGREGATOR, kind, tensors)


@dataclass
class AggregatorSums:
    """The aggregator's side: ``meeting`` once, then for each round ``take`` its updates and run ``opening``.

    What parties answer is handed to ``hear``, at any time: after a crash it comes before it is asked for again.

    Guarantees:
        - the survivors of a round are kept before anybody is told, and never change;
        - ``total`` is the exact sum of the survivors' integers, or None: the round is then discarded.
    """

    KINDS: ClassVar[tuple[str, ...]] = (*_MEETING, "signature", "opening")

    run: str
    roster: Roster
    private_sum: PrivateSum
    keep: Keep = field(default_factory=InMemory)
    total: Tensor | None = None
    survivors: tuple[str, ...] = ()
    discarded: str | None = None  # why the last sum could not be opened
    _open: SecureSum | None = None
    _heard: dict[tuple[int, str], dict[str, Message]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_share(self.roster, self.private_sum)

    def hear(self, message: Message, number: int) -> bool:
        """Keep an answer for the phase that asks for it, in round ``number``; whether it is one, and the first."""
        sender, meets = message.sender, message.kind in _MEETING
        if sender not in self.roster.identities or message.round != (0 if meets else number) or (meets and self._met):
            return False
        if meets:
            for name in message.tensors:
                _short(message, name)
            if message.kind == "sum_keys":
                _short(message, "keys")
        found = self._heard.setdefault((message.round, message.kind), {})
        return found.setdefault(sender, message) is message

    def meeting(self, ask: Ask) -> Waiting[None]:
        """Pass the parties' keys and sealed secrets on; raises TransportError where somebody does not come."""
        if self._met:
            return
        names = self.roster.names
        found = yield from self._introduced(ask, "sum_start", {name: {} for name in names}, "sum_keys")
        keys = {f"keys.{name}": message.tensors["keys"] for name, message in found.items()}
        found = yield from self._introduced(ask, "sum_peers", dict.fromkeys(names, keys), "sum_sealed")
        secrets: dict[str, Weights] = {name: {} for name in names}
        for sender, message in found.items():
            for name in self.roster.neighbours(sender):
                if f"for.{name}" in message.tensors:
                    secrets[name][f"from.{sender}"] = message.tensors[f"for.{name}"]
        yield from self._introduced(ask, "sum_secrets", secrets, "sum_ready")
        self.keep.put("met", b"yes")
        self._heard.clear()

    @property
    def _met(self) -> bool:
        return self.keep.get("met") is not None

    def take(self, message: Message) -> None:
        """Take the masked update of a party in; raises MessageError on what does not fit the plan."""
        held = self._sum_of(message.round)
        kept = self._kept_set(message.round)
        if kept and message.sender not in kept:
            raise MessageError(f"sender={message.sender}: sum {held.sum_id} is closed; its vector stays masked")
        neighbours, committed = self.roster.neighbours(message.sender), _committed(self.roster, message.sender)
        row = shares.SHARE_BYTES * (len(neighbours) + 1 if self.roster.dropouts else 1) + _TAG
        words = torch.int32 if self.private_sum.bits == 32 else torch.int64
        expected = {
            _SUM: ((self.private_sum.dimension,), words),
            _SHARES: ((len(neighbours), row), torch.uint8),
            _COMMITMENTS: ((len(committed), COMMITMENT_BYTES), torch.uint8),
        }
        check_tensors(message.tensors, expected)
        vector = MaskedVector(
            message.tensors[_SUM].numpy().view(self.private_sum.word()),
            dict(zip(neighbours, _rows(message.tensors, _SHARES, len(neighbours)), strict=True)),
            dict(zip(committed, _rows(message.tensors, _COMMITMENTS, len(committed)), strict=True)),
        )
        held.receive(message.sender, vector)

    def opening(self, number: int, ask: Ask) -> Waiting[None]:
        """Name the survivors of a round, gather a quorum's signatures and openings, and take the masks off."""
        held = self._sum_of(number)
        self.total, self.survivors, self.discarded = None, (), None
        try:
            yield from self._opened(held, number, ask)
            self.total, self.survivors = self.private_sum.from_words(held.total()), held.survivors
        except (SumDiscarded, MessageError) as reason:
            self.discarded = str(reason)
            log.warning("round %d: the sum is discarded: %s", number, reason)
        self._open = None
        self._heard.clear()

    def _opened(self, held: SecureSum, number: int, ask: Ask) -> Waiting[None]:
        passed_on = held.close()
        if self._kept_set(number) not in ((), held.survivors):
            raise SumDiscarded(f"sum={held.sum_id}: survivors that were named before did not send their vector again")
        self.keep.put(f"survivors {held.sum_id}", ",".join(held.survivors).encode())
        content = {
            name: {
                _SHARES: _matrix(
                    [passed_on[name][peer] for peer in self.roster.neighbours(name) if peer in passed_on[name]]
                )
            }
            for name in held.survivors
        }
        told = self._questions(number, "survivors", content, {"survivors": list(held.survivors)})
        found = yield from self._answers(ask, told, "signature")
        for name, message in found.items():
            with suppress(MessageError):  # a bad answer costs its sender its part in this sum, and nobody else anything
                held.agreed(name, _text(message, "signature"))
        if not held.has_quorum:
            raise SumDiscarded(
                f"sum={held.sum_id}: {len(held.signatures)} parties signed the set, {self.roster.quorum} must have"
            )
        signed = {"signatures": _matrix(list(held.signatures.values()))}
        signers = dict.fromkeys(held.signatures, signed)
        told = self._questions(number, "signatures", signers, {"signers": list(held.signatures)})
        found = yield from self._answers(ask, told, "opening")
        for name, message in found.items():
            with suppress(MessageError):
                held.opened(name, self._opening_of(name, held.survivors, message))
        if not held.can_open:
            raise SumDiscarded(f"sum={held.sum_id}: {len(held.openings)} parties opened their shares, too few")

    def _opening_of(self, holder: str, survivors: tuple[str, ...], message: Message) -> Opening:
        places, size = _places(self.roster, holder, survivors), shares.SHARE_BYTES
        text = _text(message, "opening", most=size * len(places))
        if len(text) != size * len(places):
            raise MessageError(f"sender={holder}: its opening has {len(text)} bytes, not {size * len(places)}")
        own: dict[str, bytes] = {}
        pairs: dict[str, dict[str, bytes]] = {}
        for place, (of, peer) in enumerate(places):
            part = text[size * place : size * (place + 1)]
            if part != _ABSENT:
                (own if peer == of else pairs.setdefault(of, {}))[peer] = part
        return Opening(own, pairs)

    def _introduced(
        self, ask: Ask, kind: str, tensors: Mapping[str, Weights], answer: str
    ) -> Waiting[dict[str, Message]]:
        """The answers of all parties: masks need everybody once, at the start of a run."""
        found = yield from self._answers(ask, self._questions(0, kind, tensors), answer)
        missing = [name for name in tensors if name not in found]
        if missing:
            raise TransportError(
                f"privacy.secure_aggregation=true: no {answer} from {', '.join(missing)}, and all parties must meet "
                "before the first round; start them, then start the aggregator again: the run continues"
            )
        return found

    def _answers(self, ask: Ask, questions: Sequence[Message], kind: str) -> Waiting[dict[str, Message]]:
        """The first answers of those who are asked, by party."""
        heard = self._heard.setdefault((questions[0].round, kind), {})
        yield from ask(questions, heard)
        return {message.recipient: heard[message.recipient] for message in questions if message.recipient in heard}

    def _questions(
        self, number: int, kind: str, tensors: Mapping[str, Weights], info: Mapping[str, Json] | None = None
    ) -> list[Message]:
        return [
            Message(self.run, number, AGGREGATOR, name, kind, content, dict(info or {}))
            for name, content in tensors.items()
        ]

    def _sum_of(self, number: int) -> SecureSum:
        if self._open is None or self._open.sum_id != sum_id(number):
            self._open = SecureSum(self.roster, sum_id(number), self.private_sum.dimension, self.private_sum.word())
        return self._open

    def _kept_set(self, number: int) -> tuple[str, ...]:
        kept = self.keep.get(f"survivors {sum_id(number)}")
        return tuple(kept.decode().split(",")) if kept else ()


def simulated_sums(
    run: str, names: Sequence[str], mechanism: Mechanism
) -> tuple[AggregatorSums, dict[str, PartySums]] | None:
    """Both sides for a run in one process, with identities made for it; None where nothing is masked."""
    found = mechanism.masked_sum
    if found is None or found.share is None:
        return None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    identities = {name: Ed25519PrivateKey.generate() for name in names}
    signs: dict[str, Sign] = {name: identity.sign for name, identity in identities.items()}
    public = {name: identity.public_key().public_bytes_raw() for name, identity in identities.items()}
    roster = Roster(run, public, found.share.dropouts, found.share.colluders)
    parties = {name: PartySums(run, SecureSumParty(roster, name, signs[name], InMemory()), found) for name in names}
    return AggregatorSums(run, roster, found), parties


def _check_share(roster: Roster, private_sum: PrivateSum) -> None:
    share = private_sum.share
    planned = None if share is None else (share.parties, share.dropouts, share.colluders)
    if planned != (len(roster.names), roster.dropouts, roster.colluders):
        raise PrivacyError(
            f"the noise is planned for (parties, dropouts, colluders)={planned}, the masks for "
            f"{(len(roster.names), roster.dropouts, roster.colluders)}; use one roster for both"
        )


def _committed(roster: Roster, name: str) -> tuple[str, ...]:
    """Whose seeds a party commits to: its own, and where somebody may be missing those with its neighbours."""
    return (name, *(roster.neighbours(name) if roster.dropouts else ()))


def _places(roster: Roster, holder: str, survivors: Sequence[str]) -> list[tuple[str, str]]:
    """The shares of an opening in their order: of each survivor its own seed, then those with missing neighbours."""
    present = set(survivors)
    return [
        (of, peer)
        for of in sorted(survivors)
        if holder in roster.holders(of)
        for peer in (of, *(name for name in roster.neighbours(of) if name not in present))
    ]


def _bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.zeros(0, dtype=torch.uint8)


def _matrix(rows: Sequence[bytes]) -> Tensor:
    if not rows:
        return torch.zeros((0, 0), dtype=torch.uint8)
    return _bytes(b"".join(rows)).reshape(len(rows), len(rows[0]))


def _rows(tensors: Mapping[str, Tensor], name: str, count: int) -> list[bytes]:
    found = tensors.get(name)
    if found is None or found.dtype is not torch.uint8 or found.dim() != 2 or len(found) != count:
        raise MessageError(f"tensor {name}: must be {count} rows of bytes")
    return [bytes(row.numpy().tobytes()) for row in found]


def _text(message: Message, name: str, most: int = _MOST_KEY_BYTES) -> bytes:
    return _short(message, name, most).numpy().tobytes()


def _short(message: Message, name: str, most: int = _MOST_KEY_BYTES) -> Tensor:
    found = message.tensors.get(name)
    if found is None or found.dtype is not torch.uint8 or found.dim() != 1 or found.numel() > most:
        raise MessageError(f"sender={message.sender}: tensor {name} must be at most {most} bytes")
    return found


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, bytes]:
    if any(not name.startswith(prefix) or t.dtype is not torch.uint8 or t.dim() != 1 for name, t in tensors.items()):
        raise MessageError(f"tensors must be bytes under names that begin with {prefix}")
    return {name.removeprefix(prefix): tensor.numpy().tobytes() for name, tensor in tensors.items()}


def _names(message: Message, name: str) -> tuple[str, ...]:
    value = message.info.get(name)
    if not isinstance(value, list):
        raise MessageError(f"kind={message.kind}: {name} is missing")
    return tuple(str(item) for item in value)
