"""The aggregator's side of secure sums over messages, as phases of its session, and both sides for
one process.

Once a run: keys, sealed secrets, ready, and shares of round keys where parties may be missing. Each
round: a masked update, the survivors, signatures, openings. The session asks parties and hands in
what they answer (``hear``); how a party answers is in ``secure_answers.py``. Neither knows a
transport.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final

import torch
from torch import Tensor

from homo_dp.core.errors import MessageError, TransportError
from homo_dp.federation.mechanisms.base import Mechanism, Weights
from homo_dp.federation.protocol.messages import AGGREGATOR, Json, Message, check_tensors
from homo_dp.federation.protocol.round_sums import RoundSums
from homo_dp.federation.protocol.transport import Waiting
from homo_dp.federation.secure_sums import agreement, shares
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
    findings_digest,
    lists_name,
    opened_places,
    rows_of,
    sum_id,
    text_of,
)
from homo_dp.privacy.private_sum import PrivateSum

Ask = Callable[[Sequence[Message], Mapping[str, Message]], Waiting[None]]
"""Sends questions, and waits until their recipients are in the mapping of who answered, or the
time is over.
"""

log = logging.getLogger(__name__)
_ANSWERS: Final = {
    "sum_start": "sum_keys",
    "sum_peers": "sum_sealed",
    "sum_secrets": "sum_ready",
    "sum_shares": "sum_kept",
}
_MEETING = tuple(_ANSWERS.values())
MEETING_ASKS: Final = 3  # times that a party is asked for one answer of the meeting


@dataclass
class AggregatorSums:
    """The aggregator's side: ``meeting`` once, then for each round ``take`` its updates and run
    ``opening``.

    What parties answer is handed to ``hear``, at any time: after a crash it comes before it is
    asked for again.

    Guarantees:
        - the survivors of a round are kept before anybody is told, and never change;
        - ``total`` is the exact sum of the survivors' integers, or None: the round is then
          discarded.
    """

    KINDS: ClassVar[tuple[str, ...]] = (*_MEETING, "signature", "opening")

    run: str
    roster: Roster
    private_sum: PrivateSum
    keep: Keep = field(default_factory=InMemory)
    others: RoundSums = field(default_factory=dict)
    rounds: int = 1
    findings: str = ""  # the digest of what was privately estimated, once it was
    total: Tensor | None = None
    survivors: tuple[str, ...] = ()
    discarded: str | None = None  # why the last sum could not be opened
    # parties whose last answer at the meeting could not be used
    bent: set[str] = field(default_factory=set)
    _asked: int = 0  # questions of the meeting so far
    _open: SecureSum | None = None
    _heard: dict[tuple[int, str], dict[str, Message]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sums = SumsOfRounds(self.private_sum, self.others, self.findings)
        self._sums.check(self.roster)
        check_rounds(self.roster, self.rounds)
        self._whole = self.roster
        kept = self.keep.get("members")
        if kept is not None:
            self.roster = self._whole.of(json.loads(kept))

    def asking(self, private_sum: PrivateSum, others: RoundSums, findings: str) -> AggregatorSums:
        """The same parties with the sums of the next stage of their run, which are of other
        sizes.
        """
        return AggregatorSums(
            self.run, self._whole, private_sum, self.keep, others, self.rounds, findings
        )

    def hear(self, message: Message, number: int) -> bool:
        """Keep an answer for the phase that asks for it, in round ``number``; returns whether it is
        the first such answer.
        """
        sender, meets = message.sender, message.kind in _MEETING
        if (
            sender not in self.roster.identities
            or message.round != (0 if meets else number)
            or (meets and self._met)
        ):
            return False
        if meets:
            try:
                self._check_meeting(message)
            except MessageError:
                self.bent.add(sender)
                raise
        found = self._heard.setdefault((message.round, message.kind), {})
        return found.setdefault(sender, message) is message

    def meeting(self, ask: Ask) -> Waiting[None]:
        """Pass the parties' keys and sealed secrets on.

        Who does not answer, or not as the meeting needs it, is asked again and then left out: it
        counts as one of ``roster.dropouts`` in every round. Raises TransportError where more are
        missing than are tolerated.
        """
        while not self._met:
            missing = yield from self._meet(ask)
            if not missing:
                self.keep.put("met", b"yes")
            elif len(missing) > self.roster.dropouts:
                raise TransportError(
                    f"privacy.secure_aggregation=true: {', '.join(missing)} did not meet the "
                    f"others, and of the parties at most {self._whole.dropouts} may be missing; "
                    "start them, then start the aggregator again: the run continues"
                )
            else:
                log.warning("the run goes on without %s", ", ".join(missing))
                there = [name for name in self.roster.names if name not in missing]
                self.keep.put("members", json.dumps(there).encode())
                self.roster = self._whole.of(there)
            self._heard.clear()

    def _meet(self, ask: Ask) -> Waiting[list[str]]:
        """One meeting of all parties of the roster; those for whom it cannot go on."""
        names = self.roster.names
        told: dict[str, Json] = {} if self.roster is self._whole else {"parties": list(names)}
        found = yield from self._introduced(ask, "sum_start", {name: {} for name in names}, told)
        if missing := self._without(found):
            return missing
        keys = {f"keys.{name}": message.tensors["keys"] for name, message in found.items()}
        found = yield from self._introduced(ask, "sum_peers", dict.fromkeys(names, keys))
        if missing := self._without(found):
            return missing
        secrets: dict[str, Weights] = {name: {} for name in names}
        for sender, message in found.items():
            for name in self._later(sender):
                secrets[name][f"from.{sender}"] = message.tensors[f"for.{name}"]
        found = yield from self._introduced(ask, "sum_secrets", secrets)
        missing = self._without(found)
        if missing or not self.roster.dropouts:
            return missing
        return (yield from self._pass_round_keys(ask, found))

    def _without(self, found: Mapping[str, Message]) -> list[str]:
        return [name for name in self.roster.names if name not in found]

    def _later(self, name: str) -> list[str]:
        """The neighbours for which a party chooses the secret."""
        return [peer for peer in self.roster.neighbours(name) if peer > name]

    def _pass_round_keys(self, ask: Ask, found: Mapping[str, Message]) -> Waiting[list[str]]:
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
        return self._without((yield from self._introduced(ask, "sum_shares", content)))

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
        sender, expected_names = message.sender, set[str]()
        if message.kind == "sum_keys":
            expected_names = {"keys"}
        elif message.kind == "sum_sealed":
            expected_names = {f"for.{name}" for name in self._later(sender)}
        if set(message.tensors) != expected_names:
            raise MessageError(
                f"kind={message.kind} from {sender}: other tensors than it must have"
            )
        if message.kind == "sum_keys":
            agreement.check_keys(self.roster, sender, text_of(message, "keys"))
        for name in self._later(sender) if message.kind == "sum_sealed" else ():
            agreement.check_sealed(self.roster, sender, name, text_of(message, f"for.{name}"))

    @property
    def _met(self) -> bool:
        """Whether all parties have met, and have left the lists that are needed if one goes
        missing.
        """
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
        """Take the masked update of a party in; raises MessageError on what does not fit the
        plan.
        """
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
        """Name the survivors of a round, gather a quorum's signatures and openings, and take the
        masks off.
        """
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
                f"sum={held.sum_id}: survivors that were named before did not send their vector "
                "again"
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
            # a bad answer excludes its sender from this sum; the others go on
            with suppress(MessageError):
                held.agreed(name, signature)
        if not held.has_quorum:
            raise SumDiscarded(
                f"sum={held.sum_id}: {len(held.signatures)} parties signed the set, "
                f"{self.roster.quorum} must have"
            )
        yield from self._ask_to_open(held, number, ask, shared if ahead else {})

    def _ask_to_open(
        self, held: SecureSum, number: int, ask: Ask, shared: Weights
    ) -> Waiting[None]:
        """Show the signatures, with the shares that a party has not got yet, and take the
        openings in.
        """
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
        self,
        ask: Ask,
        kind: str,
        tensors: Mapping[str, Weights],
        info: Mapping[str, Json] | None = None,
    ) -> Waiting[dict[str, Message]]:
        """The answers of a phase of the meeting; who gives none that can be used is asked again."""
        found: dict[str, Message] = {}
        for _ in range(MEETING_ASKS):
            missing = {name: content for name, content in tensors.items() if name not in found}
            if not missing:
                break
            self.bent.clear()
            # makes each question a message of its own, and its answer: a transport drops one that
            # it has carried before, and some say nothing but that a phase is over
            self._asked += 1
            numbered = {**(info or {}), "asked": self._asked}
            questions = self._questions(0, kind, missing, numbered)
            found |= yield from self._answers(ask, questions, _ANSWERS[kind])
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
            self._open = SecureSum(
                self.roster,
                sum_id(number),
                found.dimension,
                found.word(),
                self._sums.terms(number),
            )
        return self._open

    def _kept_set(self, number: int) -> tuple[str, ...]:
        kept = self.keep.get(f"survivors {sum_id(number)}")
        return tuple(kept.decode().split(",")) if kept else ()


def simulated_sums(
    run: str, names: Sequence[str], mechanism: Mechanism
) -> tuple[AggregatorSums, dict[str, PartySums]] | None:
    """Both sides for a run in one process, with identities made for it; None where nothing is
    masked.
    """
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
    others = mechanism.run.sums
    parties = {
        name: PartySums(
            run,
            SecureSumParty(roster, name, signs[name], InMemory()),
            found,
            others,
            mechanism.run.count,
        )
        for name in names
    }
    return AggregatorSums(run, roster, found, others=others, rounds=mechanism.run.count), parties


def next_sums(
    sums: tuple[AggregatorSums, dict[str, PartySums]] | None, mechanism: Mechanism, found: object
) -> tuple[AggregatorSums, dict[str, PartySums]] | None:
    """Both sides in the next stage of a run in one process; None where nothing is masked."""
    asked, findings = mechanism.masked_sum, findings_digest(found)
    if sums is None or asked is None:
        return None
    others = mechanism.run.sums
    parties = {name: party.asking(asked, others, findings) for name, party in sums[1].items()}
    return sums[0].asking(asked, others, findings), parties
