"""Messages of the meeting before masked sums, and of their rounds: signed by a party that bends them,
and put into the parts of a queue by anybody.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from homo_dp.core.errors import MessageError
from homo_dp.federation.mechanisms.base import Weights
from homo_dp.federation.protocol.messages import AGGREGATOR, Message
from homo_dp.federation.protocol.tensors import read_body, write_body
from homo_dp.federation.protocol.transport import Waiting
from homo_dp.federation.secure_sums.agreement import RunKeys
from homo_dp.federation.secure_sums.party import InMemory, SecureSumParty
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.federation.sessions.secure_rounds import AggregatorSums
from homo_dp.privacy.noise.source import SeededNoise
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.transport.nats.parts import Assembler
from tests.fuzz.targets_messages import LIMITS

NAMES = ["p0", "p1", "p2", "p3"]
SUM = PrivateSum(5, 1.0, 2.0, 100, share=NoiseShare(4, 1))
BENDER = "p2"


IDENTITIES = {name: Ed25519PrivateKey.generate() for name in NAMES}
KEYS = {name: RunKeys.new().raw for name in NAMES}  # the same in each run, so that seeds stay valid
ROSTER = Roster(
    "run-1",
    {name: key.public_key().public_bytes_raw() for name, key in IDENTITIES.items()},
    dropouts=1,
)


@dataclass
class _Run:
    """A meeting and a round of masked sums, in which one party bends its answer of a kind."""

    kind: str = ""
    tensors: Weights = field(default_factory=dict)
    questions: list[Message] = field(default_factory=list)
    answers: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parties = {
            name: PartySums(
                "run-1",
                SecureSumParty(ROSTER, name, key.sign, InMemory({"keys": KEYS[name]})),
                SUM,
                {},
                2,
            )
            for name, key in IDENTITIES.items()
        }
        self.sums = AggregatorSums("run-1", ROSTER, SUM, rounds=2)
        for _ in self.sums.meeting(self._ask):
            pass
        values = {"sum": SUM.release(torch.zeros(5, dtype=torch.float64), SeededNoise(1))}
        for name in self.sums.roster.names:
            tensors = self.parties[name].masked(1, values)
            update = self._said(Message("run-1", 1, name, AGGREGATOR, "update", tensors))
            with contextlib.suppress(MessageError):
                self.sums.take(update)
        for _ in self.sums.opening(1, self._ask):
            pass

    def _ask(self, questions: Sequence[Message], heard: Mapping[str, Message]) -> Waiting[None]:
        for question in questions:
            self.questions.append(question)
            answer = self._said(self.parties[question.recipient].handle(question))
            with contextlib.suppress(MessageError):  # the session notes it and goes on
                self.sums.hear(answer, question.round)
        yield from ()

    def _said(self, message: Message) -> Message:
        self.answers.append(message)
        if (message.sender, message.kind) != (BENDER, self.kind):
            return message
        return replace(message, tensors=self.tensors)


def fuzz_meeting(data: bytes) -> None:
    """The tensors of one answer of a party; the first line names its kind. The others go on."""
    kind, tensors = _read(data)
    names = _Run(kind, tensors).sums.roster.names
    if not {"p0", "p1", "p3"} <= set(names):
        raise AssertionError(f"{kind!r} of {BENDER}: others were left out, {names} stay")


def fuzz_asked(data: bytes) -> None:
    """The tensors of one question to a party; the first line names its kind."""
    kind, tensors = _read(data)
    run = _finished()
    same = next((each for each in run.questions if each.kind == kind), run.questions[0])
    run.parties[same.recipient].handle(replace(same, tensors=tensors))


def _read(data: bytes) -> tuple[str, Weights]:
    kind, _, body = data.partition(b"\n")
    return kind.decode("utf-8", "replace"), read_body(memoryview(bytearray(body)), LIMITS.tensors)


def fuzz_parts(data: bytes) -> None:
    """Headers and data of queue messages, one a line."""
    assembler = Assembler(1 << 20, part_size=4)
    for number, line in enumerate(data.split(b"\n")):
        header, _, content = line.partition(b"\0")
        try:
            found = json.loads(header)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            assembler.add(
                "p0", {name: str(value) for name, value in found.items()}, content, number
            )
            assembler.outdated("p0")


@functools.cache
def _finished() -> _Run:
    return _Run()


def _seeds(messages: Iterable[Message]) -> list[bytes]:
    """The first message of each kind, as its kind and its tensors."""
    found = {message.kind: message for message in reversed([*messages])}
    return [
        kind.encode() + b"\n" + b"".join(write_body(message.tensors))
        for kind, message in reversed(found.items())
    ]


def _part(number: int) -> bytes:
    header = {"Homo-Tag": "t", "Homo-Attempt": "a", "Homo-Part": number, "Homo-Parts": 2}
    return json.dumps(header | {"Homo-Size": 6}).encode() + b"\0abc"


SEEDS = {
    "fuzz_meeting": _seeds(each for each in _finished().answers if each.sender == BENDER),
    "fuzz_asked": _seeds(_finished().questions),
    "fuzz_parts": [_part(0) + b"\n" + _part(1)],
}
