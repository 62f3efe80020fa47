"""What arrives from other processes: messages, tensors, seals, keys."""

import hashlib
import json

import torch

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import KINDS, Limits, Message, decode, encode
from homo_dp.federation.protocol.tensors import read_body, write_body
from homo_dp.transport.keys import new_key_pair, parse_public_line
from homo_dp.transport.sealing import Sealer, seal

LIMITS = Limits(bytes=1 << 24)
OWN, OTHER = new_key_pair(AGGREGATOR), new_key_pair("bank_a")
SEALER = Sealer(OWN, {"bank_a": OTHER.public}, KINDS, LIMITS)
TENSORS = {"w": torch.ones(2, 3), "b": torch.zeros(3, dtype=torch.float64), "n": torch.tensor(4)}
UPDATE = Message("demo", 1, "bank_a", AGGREGATOR, "update", TENSORS, {"releases": ["update"]})
HEAD = {"count": 0, "hash": "0" * 64}
JOIN = Message("demo", 0, "bank_a", AGGREGATOR, "join", {}, {"rows": None, "ledger_head": HEAD})
FRAME = encode(UPDATE)
BODY = b"".join(write_body(TENSORS))
INFO = json.dumps({"releases": ["update"], "ledger_head": {"count": 1, "hash": "a" * 64}}).encode()

SEEDS = {
    "fuzz_message": [encode(UPDATE), encode(JOIN)],
    "fuzz_tensor_body": [BODY],
    "fuzz_signed_body": [BODY],
    "fuzz_signed_info": [INFO],
    "fuzz_seal": [seal(encode(JOIN), "demo", OTHER, OWN.public)],
    "fuzz_public_key": [OTHER.public.line.encode()],
}


def fuzz_message(data: bytes) -> None:
    """The bytes inside a seal."""
    decode(data, LIMITS)


def fuzz_tensor_body(data: bytes) -> None:
    """The tensors of a message, also in memory that they may share."""
    read_body(memoryview(bytearray(data)), LIMITS.tensors)


def fuzz_signed_body(data: bytes) -> None:
    """Any tensors, sealed and with the right digest, by a party with a valid key."""
    _open(data, {"releases": ["update"]})


def fuzz_signed_info(data: bytes) -> None:
    """Any information about an update, sealed by a party with a valid key."""
    try:
        info = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(info, dict):
        _open(BODY, info)


def fuzz_seal(data: bytes) -> None:
    """What a stranger puts into a folder or onto a queue."""
    SEALER.open_bytes(data)


def fuzz_public_key(data: bytes) -> None:
    """A line that was exchanged by mail."""
    parse_public_line(data.decode("utf-8", "replace"))


def _open(body: bytes, info: dict[str, object]) -> None:
    length = int.from_bytes(FRAME[4:8], "little")
    header = json.loads(FRAME[8 : 8 + length]) | {
        "digest": hashlib.sha256(body).hexdigest(),
        "info": info,
    }
    text = json.dumps(header).encode()
    frame = FRAME[:4] + len(text).to_bytes(4, "little") + text + body
    SEALER.open_bytes(seal(frame, "demo", OTHER, OWN.public))
