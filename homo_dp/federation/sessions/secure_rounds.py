"""The aggregator's side of secure sums over messages, as phases of its session, and both sides for one process.

Once a run: keys, sealed secrets, ready, and shares of round keys where parties may be missing. Each round: a masked
update, the survivors, signatures, openings. The session asks parties and hands in what they answer (``hear``); how a
party answers is in ``secure_answers.py``. Neither knows a transport.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.mechanisms.base import Mechanism, Weights
from homo_dp.federation.mechanisms.round_sums import RoundSums
from homo_dp.federation.protocol.messages import AGGREGATOR, Json, Message, check_tensors
from homo_dp.federation.protocol.transport import Waiting
from homo_dp.federation.secure_sums import shares
from homo_dp.federation.secure_sums.aggregator import SecureSum, SumDiscarded
from homo_dp.federation.secure_sums.agreement import SIGNATURE_BYTES, Sign
from homo_dp.federation.secure_sums.party import (
    COMMITMENT_BYTES,
    InMemory,
    Keep,
    MaskedVector,
    Opening,
    SecureSumParty,
)
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.federation.sessions.secure_messages import (
    ABSENT,
    COMMITMENTS,
    LISTS,
    SHARES,
    SIGNATURE,
    SUM,
    TAG_BYTES,
    SumsOfRounds,
    as_matrix,
    check_rounds,
    committed_names,
    lists_name,
    opened_places,
    rows_of,
    short_tensor,
    sum_id,
    text_of,
)
from homo_dp.privacy.private_sum import PrivateSum

Ask = Callable[[Sequence[Message], Mapping[str, Message]], Waiting[None]]
"""Sends questions, and waits until their recipients are in the mapping of who answered, or the time is over."""

log = logging.getLogger(__name__)
_MEETING = ("sum_keys", "sum_sealed", "sum_ready", "sum_kept")


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
    others: RoundSums = field(default_factory=dict)
    rounds: int = 1
    total: Tensor | None = None
    survivors: tuple[str, ...] = ()
    discarded: str | None = None  # why the last sum could not be opened
    _open: SecureSum | None = None
    _heard: dict[tuple[int, str], dict[str, Message]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sums = SumsOfRounds(self.private_sum, self.others)
        self._sums.check(self.roster)
        check_rounds(self.roster, self.rounds)

    def hear(self, message: Message, number: int) -> bool:
        """Keep an answer for the phase that asks for it, in round ``number``; returns whether it is the first such
        answer."""
        sender, meets = message.sender, message.kind in _MEETING
        if (
            sender not in self.roster.identities
            or message.round != (0 if meets else number)
            or (meets and self._met)
        ):
            return False
        if meets:
            self._check_meeting(message)
        found = self._heard.setdefault((message.round, message.kind), {})
        return found.setdefault(sender, message) is message

    def meeting(self, ask: Ask) -> Waiting[None]:
        """Pass the parties' keys and sealed secrets on; raises TransportError where somebody does not come."""
        if self._met:
            return
        names = self.roster.names
        found = yield from self._introduced(
            ask, "sum_start", {name: {} for name in names}, "sum_keys"
        )
        keys = {f"keys.{name}": message.tensors["keys"] for name, message in found.items()}
        found = yield from self._introduced(
            ask, "sum_peers", dict.fromkeys(names, keys), "sum_sealed"
        )
        secrets: dict[str, Weights] = {name: {} for name in names}
        for sender, message in found.items():
            for name in self.roster.neighbours(sender):
                if f"for.{name}" in message.tensors:
                    secrets[name][f"from.{sender}"] = message.tensors[f"for.{name}"]
        found = yield from self._introduced(ask, "sum_secrets", secrets, "sum_ready")
        if self.roster.dropouts:
            yield from self._pass_round_keys(ask, found)
        self.keep.put("met", b"yes")
        self._heard.clear()

    def _pass_round_keys(self, ask: Ask, found: Mapping[str, Message]) -> Waiting[None]:
        """Keep every party's lists, and pass the shares of its round keys on to its neighbours."""
        rows = {
            sender: dict(zip(neighbours, message.tensors[SHARES], strict=True))
            for sender, message in found.items()
            for neighbours in (self.roster.neighbours(sender),)
        }
        for sender, message in found.items():
            self.keep.put(lists_name(sender), message.tensors[LISTS].numpy().tobytes())
        content: dict[str, Weights] = {
            name: {SHARES: torch.stack([rows[peer][name] for peer in self.roster.neighbours(name)])}
            for name in self.roster.names
        }
        yield from self._introduced(ask, "sum_shares", content, "sum_kept")

    def _check_meeting(self, message: Message) -> None:
        """Refuse what has not the form of an answer at the meeting."""
        if message.kind == "sum_ready" and self.roster.dropouts:
            count = len(self.roster.neighbours(message.sender))
            sizes = (shares.SHARE_BYTES * self.rounds + TAG_BYTES, shares.SECRET_BYTES * count)
            expected = {
                SHARES: ((count, sizes[0]), torch.uint8),
                LISTS: ((self.rounds, sizes[1]), torch.uint8),
            }
            check_tensors(message.tensors, expected)
            return
        for name in message.tensors:
            short_tensor(message, name)
        if message.kind == "sum_keys":
            short_tensor(message, "keys")

    @property
    def _met(self) -> bool:
        """Whether all parties have met, and have left the lists that are needed if one goes missing."""
        met = self.keep.get("met") is not None
        return met and (
            not self.roster.dropouts or self.keep.get(lists_name(self.roster.names[-1])) is not None
        )

    def _list_of(self, name: str, number: int) -> bytes:
        """The list of a party's pair seeds of one round, as it was left at the meeting."""
        kept, size = (
            self.keep.get(lists_name(name)) or b"",
            shares.SECRET_BYTES * len(self.roster.neighbours(name)),
        )
        return kept[size * (number - 1) : size * number]

    def take(self, message: Message) -> None:
        """Take the masked update of a party in; raises MessageError on what does not fit the plan."""
        held, found = self._sum_of(message.round), self._sums.of(message.round)
        kept = self._kept_set(message.round)
        if kept and message.sender not in kept:
            raise MessageError(
                f"sender={message.sender}: sum {held.sum_id} is closed; its vector stays masked"
            )
        neighbours, committed = (
            self.roster.neighbours(message.sender),
            committed_names(self.roster, message.sender),
        )
        row = shares.SHARE_BYTES + TAG_BYTES
        words = torch.int32 if found.bits == 32 else torch.int64
        expected = {
            SUM: ((found.dimension,), words),
            SHARES: ((len(neighbours), row), torch.uint8),
            COMMITMENTS: ((len(committed), COMMITMENT_BYTES), torch.uint8),
        }
        signature = b""
        if not self.roster.dropouts and SIGNATURE in message.tensors:
            expected[SIGNATURE] = ((SIGNATURE_BYTES,), torch.uint8)
            signature = text_of(message, SIGNATURE)
        check_tensors(message.tensors, expected)
        vector = MaskedVector(
            message.tensors[SUM].numpy().view(found.word()),
            dict(zip(neighbours, rows_of(message.tensors, SHARES, len(neighbours)), strict=True)),
            dict(
                zip(committed, rows_of(message.tensors, COMMITMENTS, len(committed)), strict=True)
            ),
            signature,
        )
        held.receive(message.sender, vector)

    def opening(self, number: int, ask: Ask) -> Waiting[None]:
        """Name the survivors of a round, gather a quorum's signatures and openings, and take the masks off."""
        held = self._sum_of(number)
        self.total, self.survivors, self.discarded = None, (), None
        try:
            yield from self._opened(held, number, ask)
            self.total, self.survivors = (
                self._sums.of(number).from_words(held.total()),
                held.survivors,
            )
        except (SumDiscarded, MessageError) as reason:
            self.discarded = str(reason)
            log.warning("round %d: the sum is discarded: %s", number, reason)
        self._open = None
        self._heard.clear()

    def _opened(self, held: SecureSum, number: int, ask: Ask) -> Waiting[None]:
        passed_on = held.close()
        if self._kept_set(number) not in ((), held.survivors):
            raise SumDiscarded(
                f"sum={held.sum_id}: survivors that were named before did not send their vector again"
            )
        self.keep.put(f"survivors {held.sum_id}", ",".join(held.survivors).encode())
        missing = set(self.roster.names) - set(held.survivors)
        held.lists = {name: self._list_of(name, number) for name in missing}
        shared = {
            name: as_matrix(
                [
                    passed_on[name][peer]
                    for peer in self.roster.neighbours(name)
                    if peer in passed_on[name]
                ]
            )
            for name in held.survivors
        }
        ahead = all(vector.signature for vector in held.vectors.values())
        if ahead:
            found = {name: vector.signature for name, vector in held.vectors.items()}
        else:
            content: dict[str, Weights] = {name: {SHARES: rows} for name, rows in shared.items()}
            told = self._questions(
                number, "survivors", content, {"survivors": list(held.survivors)}
            )
            answers = yield from self._answers(ask, told, "signature")
            found = {}
            for name, message in answers.items():
                with suppress(MessageError):
                    found[name] = text_of(message, SIGNATURE)
        for name, signature in found.items():
            with suppress(
                MessageError
            ):  # a bad answer excludes its sender from this sum; the others go on
                held.agreed(name, signature)
        if not held.has_quorum:
            raise SumDiscarded(
                f"sum={held.sum_id}: {len(held.signatures)} parties signed the set, {self.roster.quorum} must have"
            )
        yield from self._ask_to_open(held, number, ask, shared if ahead else {})

    def _ask_to_open(
        self, held: SecureSum, number: int, ask: Ask, shared: Weights
    ) -> Waiting[None]:
        """Show the signatures, with the shares that a party has not got yet, and take the openings in."""
        signatures = as_matrix(list(held.signatures.values()))
        content = {
            name: {"signatures": signatures, **({SHARES: shared[name]} if shared else {})}
            for name in held.signatures
        }
        told = self._questions(number, "signatures", content, {"signers": list(held.signatures)})
        found = yield from self._answers(ask, told, "opening")
        for name, message in found.items():
            with suppress(MessageError):
                held.opened(name, self._opening_of(name, held.survivors, message))
        if not held.can_open:
            raise SumDiscarded(
                f"sum={held.sum_id}: {len(held.openings)} parties opened their shares, too few"
            )

    def _opening_of(self, holder: str, survivors: tuple[str, ...], message: Message) -> Opening:
        places, size = opened_places(self.roster, holder, survivors), shares.SHARE_BYTES
        text = text_of(message, "opening", most=size * len(places))
        if len(text) != size * len(places):
            raise MessageError(
                f"sender={holder}: its opening has {len(text)} bytes, not {size * len(places)}"
            )
        own: dict[str, bytes] = {}
        keys: dict[str, bytes] = {}
        for place, name in enumerate(places):
            part = text[size * place : size * (place + 1)]
            if part != ABSENT:
                (own if name in survivors else keys)[name] = part
        return Opening(own, keys)

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

    def _answers(
        self, ask: Ask, questions: Sequence[Message], kind: str
    ) -> Waiting[dict[str, Message]]:
        """The first answers of those who are asked, by party."""
        heard = self._heard.setdefault((questions[0].round, kind), {})
        yield from ask(questions, heard)
        return {
            message.recipient: heard[message.recipient]
            for message in questions
            if message.recipient in heard
        }

    def _questions(
        self,
        number: int,
        kind: str,
        tensors: Mapping[str, Weights],
        info: Mapping[str, Json] | None = None,
    ) -> list[Message]:
        return [
            Message(self.run, number, AGGREGATOR, name, kind, content, dict(info or {}))
            for name, content in tensors.items()
        ]

    def _sum_of(self, number: int) -> SecureSum:
        if self._open is None or self._open.sum_id != sum_id(number):
            found = self._sums.of(number)
            self._open = SecureSum(self.roster, sum_id(number), found.dimension, found.word())
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
    public = {
        name: identity.public_key().public_bytes_raw() for name, identity in identities.items()
    }
    roster = Roster(run, public, found.share.dropouts, found.share.colluders)
    others = mechanism.sums
    parties = {
        name: PartySums(
            run,
            SecureSumParty(roster, name, signs[name], InMemory()),
            found,
            others,
            mechanism.rounds,
        )
        for name in names
    }
    return AggregatorSums(run, roster, found, others=others, rounds=mechanism.rounds), parties
