"""A party's side of secure sums over messages: a function from each question of the aggregator
to its answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from homo_dp.core.errors import MessageError
from homo_dp.federation.mechanisms.base import Weights
from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.protocol.round_sums import RoundSums
from homo_dp.federation.secure_sums.party import SecureSumParty
from homo_dp.federation.sessions.secure_messages import (
    ABSENT,
    COMMITMENTS,
    LISTS,
    SHARES,
    SIGNATURE,
    SUM,
    SumsOfRounds,
    as_bytes,
    as_matrix,
    check_rounds,
    committed_names,
    named_texts,
    names_of,
    opened_places,
    rows_of,
    sum_id,
)
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.private_sum import PrivateSum


class PartySums:
    """A party's side.

    Guarantees:
        - those of ``SecureSumParty``: what is not signed by the peers of the party's own config is
          refused, and one set of survivors a round is ever signed;
        - a round is masked once: its seeds are used for one vector, which an outbox then repeats
          byte for byte.
    """

    KINDS: ClassVar[tuple[str, ...]] = (
        *("sum_start", "sum_peers", "sum_secrets", "sum_shares"),
        *("survivors", "signatures"),
    )

    def __init__(
        self,
        run: str,
        party: SecureSumParty,
        private_sum: PrivateSum,
        others: RoundSums | None = None,
        rounds: int = 1,
        findings: str = "",
    ) -> None:
        """Take part in the sums of a run.

        Args:
            run: its name.
            party: the keys and masks of this party.
            private_sum: the sum of a round of training.
            others: the rounds that ask another sum.
            rounds: how many rounds the run has.
            findings: the digest of what was privately estimated, once it was.
        """
        check_rounds(party.roster, rounds)
        self._ids = [sum_id(number) for number in range(1, rounds + 1)]
        self._run, self._party, self._sums = (
            run,
            party,
            SumsOfRounds(private_sum, others or {}, findings),
        )
        self._sums.check(party.whole)  # a party that was started again knows who has met
        self._rounds = rounds

    def asking(self, private_sum: PrivateSum, others: RoundSums, findings: str) -> PartySums:
        """The same party with the sums of the next stage of its run, which are of other sizes."""
        return PartySums(self._run, self._party, private_sum, others, self._rounds, findings)

    @property
    def ready(self) -> bool:
        """Whether this party has met its peers."""
        return self._party.ready

    def signed(self, number: int) -> bool:
        """Whether this party has signed the survivors of a round."""
        return self._party.has_agreed(sum_id(number))

    def survivors_digest(self, message: Message) -> str:
        """What stands for the set of survivors that a message asks to sign; MessageError where
        it may not be.
        """
        statement = self._party.statement(sum_id(message.round), names_of(message, "survivors"))
        return hashlib.sha256(statement).hexdigest()

    def masked(self, number: int, released: Mapping[str, Tensor]) -> Weights:
        """The tensors of the update of a round: the masked vector and what opens its masks."""
        steps = released.get(SUM)
        found = self._sums.of(number)
        if set(released) != {SUM} or steps is None or steps.shape != (found.dimension,):
            raise PrivacyError(
                f"a masked update is one vector of {found.dimension} numbers; release that"
            )
        vector = self._party.mask(sum_id(number), found.to_words(steps), self._sums.terms(number))
        signed = np.int32 if found.bits == 32 else np.int64
        neighbours = self._party.roster.neighbours(self._party.name)
        signed_ahead = {SIGNATURE: as_bytes(vector.signature)} if vector.signature else {}
        return {
            **signed_ahead,
            SUM: torch.from_numpy(vector.values.view(signed)),
            SHARES: as_matrix([vector.sealed_shares[peer] for peer in neighbours]),
            COMMITMENTS: as_matrix(
                [
                    vector.commitments[name]
                    for name in committed_names(self._party.roster, self._party.name)
                ]
            ),
        }

    def handle(self, message: Message) -> Message:
        """Answer one message of the aggregator; asked again, with the same bytes."""
        if message.kind == "sum_start":
            if "parties" in message.info:  # else all meet
                self._party = self._party.among(names_of(message, "parties"))
            return self._answer(message, "sum_keys", {"keys": as_bytes(self._party.keys())})
        if message.kind == "sum_peers":
            sealed = self._party.introduce(named_texts(message.tensors, "keys."))
            return self._answer(
                message,
                "sum_sealed",
                {f"for.{name}": as_bytes(text) for name, text in sealed.items()},
            )
        if message.kind == "sum_secrets":
            self._party.meet(named_texts(message.tensors, "from."))
            return self._answer(message, "sum_ready", self._round_keys())
        if message.kind == "sum_shares":
            if not self._party.roster.dropouts:
                raise MessageError(
                    "kind=sum_shares: nobody may be missing in this run, so there are no round keys"
                )
            peers = self._party.roster.neighbours(self._party.name)
            rows = rows_of(message.tensors, SHARES, len(peers))
            self._party.keep_round_keys(self._ids, dict(zip(peers, rows, strict=True)))
            return self._answer(message, "sum_kept", {})
        if message.kind == "survivors":
            return self._sign(message)
        return self._open(message)

    def _round_keys(self) -> Weights:
        """Sealed shares of this party's round keys and the lists that they lock; nothing if
        nobody may be missing.
        """
        if not self._party.roster.dropouts:
            return {}
        made = self._party.share_round_keys(self._ids)
        neighbours = self._party.roster.neighbours(self._party.name)
        return {
            SHARES: as_matrix([made.sealed[peer] for peer in neighbours]),
            LISTS: as_matrix(made.lists),
        }

    def _sign(self, message: Message) -> Message:
        survivors, roster = names_of(message, "survivors"), self._party.roster
        peers = [peer for peer in roster.neighbours(self._party.name) if peer in survivors]
        rows = rows_of(message.tensors, SHARES, len(peers))
        signature = self._party.agree(
            sum_id(message.round), survivors, dict(zip(peers, rows, strict=True))
        )
        return self._answer(message, "signature", {"signature": as_bytes(signature)})

    def _open(self, message: Message) -> Message:
        signers = names_of(message, "signers")
        found = rows_of(message.tensors, "signatures", len(signers))
        signatures, roster, name = (
            dict(zip(signers, found, strict=True)),
            self._party.roster,
            sum_id(message.round),
        )
        if SHARES in message.tensors:  # everybody signed ahead
            peers, survivors = roster.neighbours(self._party.name), roster.names
            shared = dict(zip(peers, rows_of(message.tensors, SHARES, len(peers)), strict=True))
            opening = self._party.open_all(name, signatures, shared)
        else:
            opening, survivors = self._party.open(name, signatures), self._party.agreed_set(name)
        places = opened_places(self._party.roster, self._party.name, survivors)
        parts = [
            (opening.own if name in survivors else opening.keys).get(name, ABSENT)
            for name in places
        ]
        return self._answer(message, "opening", {"opening": as_bytes(b"".join(parts))})

    def _answer(self, message: Message, kind: str, tensors: Weights) -> Message:
        asked = {name: message.info[name] for name in ("asked",) if name in message.info}
        return Message(self._run, message.round, self._party.name, AGGREGATOR, kind, tensors, asked)
