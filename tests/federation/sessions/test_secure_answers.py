"""Masked sums in a party's session: what it refuses before a row is touched, and what it answers
again.
"""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from homo_dp.core.errors import MessageError
from homo_dp.core.strict_json import json_digest
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Json, Message
from homo_dp.federation.secure_sums.party import SecureSumParty
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.federation.sessions.crash_state import SumFiles
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from tests.federation.queues import End, SmallRun
from tests.federation.small import RUN, small_config, small_mechanism, small_party, weights_message

NAMES = ("a", "b", "c")
FOUND = PrivateSum(4, 1.0, 2.0, 60, share=NoiseShare(3, 0))
IDENTITIES = {name: Ed25519PrivateKey.generate() for name in NAMES}
PUBLIC = {name: key.public_key().public_bytes_raw() for name, key in IDENTITIES.items()}


def side(name: str, folder: Path, terms: str = "") -> PartySums:
    roster = Roster(RUN, PUBLIC, 0, 1, terms)
    return PartySums(
        RUN, SecureSumParty(roster, name, IDENTITIES[name].sign, SumFiles(folder / name)), FOUND
    )


def asked(kind: str, tensors: dict[str, torch.Tensor] | None = None, number: int = 0) -> Message:
    return Message(RUN, number, AGGREGATOR, "a", kind, tensors or {})


def keys_of(sides: dict[str, PartySums]) -> dict[str, torch.Tensor]:
    return {
        f"keys.{name}": one.handle(asked("sum_start")).tensors["keys"]
        for name, one in sides.items()
    }


def refused(run: SmallRun) -> list[object]:
    return [message.info["reason"] for message in run.post.sent if message.kind == "refused"]


def test_a_party_without_masked_sums_refuses_their_messages_and_lives(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "a")
    session = run.party_session("a")
    session.take(Message(RUN, 0, AGGREGATOR, "a", "plan", {}, {"plan": run.plan()}))
    for kind in PartySums.KINDS:
        session.take(asked(kind, number=1))
    assert refused(run) == ["sums"] * len(PartySums.KINDS)


def test_nothing_is_signed_of_a_round_that_was_not_paid_for(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, small_config(), "a")
    session = run.party_session("a")
    session.take(Message(RUN, 0, AGGREGATOR, "a", "plan", {}, {"plan": run.plan()}))
    assert session.party is not None
    session.party.sums = side("a", tmp_path)
    session.take(Message(RUN, 1, AGGREGATOR, "a", "survivors", {}, {"survivors": list(NAMES)}))
    assert refused(run) == ["sums"]
    assert not (tmp_path / "a" / "agreed%201%2Fupdate").exists()


def test_weights_before_the_peers_are_met_are_refused_before_a_row_is_touched(
    tmp_path: Path,
) -> None:
    config = small_config(
        privacy__mechanism="dp_fedsgd", train__local_steps=None, privacy__secure_aggregation=True
    )
    mechanism = small_mechanism(config, dict.fromkeys(NAMES, 20))
    party = small_party(config, tmp_path, mechanism=mechanism, sums=side("a", tmp_path))
    with pytest.raises(MessageError, match="met"):
        party.handle(weights_message())
    assert party.failure is None
    assert party.ledger is not None
    assert party.ledger.rows() == []


class _Skipping(End):
    """The end of a party that answers every round with the word of a failed fit."""

    def send(self, message: Message) -> None:
        if message.kind == "update":
            info = {"reason": "skipped", "ledger_head": message.info["ledger_head"]}
            message = Message(RUN, message.round, self.name, AGGREGATOR, "refused", {}, info)
        super().send(message)


class _Joining(End):
    """The end of a party that joins again in the middle of every sum."""

    head: Json = None

    def send(self, message: Message) -> None:
        self.head = message.info.get("ledger_head", self.head)
        if message.kind == "signature":
            info = {"rows": 20, "ledger_head": self.head}
            super().send(Message(RUN, message.round, self.name, AGGREGATOR, "join", {}, info))
        super().send(message)


def test_a_session_opens_the_sum_of_those_who_are_there(tmp_path: Path) -> None:
    asked_for = {"privacy__secure_aggregation": True, "privacy__tolerated_dropouts": 1}
    config = small_config(privacy__mechanism="dp_fedsgd", train__local_steps=None, **asked_for)
    run = SmallRun(tmp_path, config, "abcd", min_parties=1)
    threads = []
    for name, end in {"a": _Joining, "b": End, "c": End, "d": _Skipping}.items():
        party = run.party_session(name)
        party.transport = end(run.post, name)
        threads.append(Thread(target=party.run, daemon=True))
        threads[-1].start()
    session = run.aggregate()
    for thread in threads:
        thread.join(30)
    assert [(row["replied"], row["missing"], row["counted"]) for row in session.rows] == [
        (list("abc"), ["d"], True)
    ] * 2
    assert float(session.aggregator.weights["linear.weight"].norm()) > 0
    welcomed = {
        message.round
        for message in run.post.sent
        if message.kind == "status" and message.recipient == "a"
    }
    assert welcomed >= {1, 2}  # what is no answer of a sum is heard as ever


def test_parties_that_were_told_of_different_plans_do_not_meet(tmp_path: Path) -> None:
    plan, weaker = json_digest({"noise": 4.0}), json_digest({"noise": 1.0})
    sides = {name: side(name, tmp_path, weaker if name == "c" else plan) for name in NAMES}
    with pytest.raises(MessageError, match="sender=c"):
        sides["a"].handle(asked("sum_peers", keys_of(sides)))


def test_started_again_a_party_answers_with_the_same_bytes(tmp_path: Path) -> None:
    sides = {name: side(name, tmp_path) for name in NAMES}
    keys = keys_of(sides)
    first = sides["a"].handle(asked("sum_peers", keys))
    again = {name: side(name, tmp_path) for name in NAMES}
    second = again["a"].handle(asked("sum_peers", keys))
    assert all(torch.equal(tensor, keys_of(again)[name]) for name, tensor in keys.items())
    assert first.tensors.keys() == second.tensors.keys() == {"for.b", "for.c"}
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
