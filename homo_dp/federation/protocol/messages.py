"""What aggregator and parties say to each other: a JSON header and a safetensors body, checked
before use.

Nothing else can travel: every kind of message lists here the numbers and words that it may carry
(`KINDS`), and a mechanism that needs one more says so with `extended`, where a reader of the
mechanism sees it.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.ids import AGGREGATOR as AGGREGATOR
from homo_dp.federation.protocol.ids import check_id as check_id
from homo_dp.federation.protocol.tensors import parse_json, read_body, write_body

Json = None | bool | int | float | str | list[Any] | dict[str, Any]

SCHEMA: Final = 1
_MAGIC: Final = b"HDP"
_FRAMING: Final = 1
_CODE: Final = re.compile(r"[a-z_]{1,60}")  # no digits: a reason cannot carry a number
_RELEASE: Final = re.compile(r"[a-z][a-z_./-]{0,62}")
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_MAX_ROUND: Final = 10**9
_MOST_PARTIES: Final = 10_000
_HEADER_KEYS: Final = frozenset(
    {"schema", "run", "round", "sender", "recipient", "kind", "digest", "info"}
)


@dataclass(frozen=True)
class Field:
    """One piece of information a kind of message may carry, and what its value must be."""

    wants: str
    accepts: Callable[[Any], bool]


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 1 << 53


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= 1e300 and math.isfinite(value)


def _head(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"count", "hash"}
        and _count(value["count"])
        and isinstance(value["hash"], str)
        and (
            _HEX.fullmatch(value["hash"]) is not None
            or (value["count"] == 0 and value["hash"] == "")
        )
    )


def _releases(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 64
        and all(isinstance(name, str) and _RELEASE.fullmatch(name) for name in value)
    )


def _parties(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MOST_PARTIES
        and all(isinstance(name, str) and len(name) <= 64 for name in value)
        and len(set(value)) == len(value)
    )


COUNT: Final = Field("a count", _count)
COUNT_OR_NULL: Final = Field("a count or null", lambda value: value is None or _count(value))
NUMBER: Final = Field("a finite number", _number)
CODE: Final = Field(
    "a word of a-z and _",
    lambda value: isinstance(value, str) and _CODE.fullmatch(value) is not None,
)
HEAD: Final = Field(
    "{count, hash} of a ledger, or null", lambda value: value is None or _head(value)
)
RELEASES: Final = Field("names of releases", _releases)
PARTIES: Final = Field("names of parties, each once", _parties)
OBJECT: Final = Field("an object", lambda value: isinstance(value, dict))


@dataclass(frozen=True)
class Kind:
    """Who may send a kind of message, whether tensors come with it, and which information."""

    from_party: bool
    tensors: bool
    info: Mapping[str, Field]
    # may come again with other content, so a queue must not drop it as a duplicate
    repeatable: bool = False


Kinds = Mapping[str, Kind]

KINDS: Final[Kinds] = MappingProxyType(
    {
        # aggregator -> party
        "plan": Kind(False, False, {"plan": OBJECT}, repeatable=True),
        # what the first rounds of the plan have privately estimated
        "findings": Kind(False, False, {"found": OBJECT}, repeatable=True),
        "weights": Kind(False, True, {"rounds": COUNT, "clip_norm": NUMBER}),
        "finished": Kind(False, True, {"rounds": COUNT, "reason": CODE}),
        "status": Kind(
            False, False, {"rounds": COUNT, "state": CODE, "reason": CODE}, repeatable=True
        ),
        # secure sums (sessions/secure_rounds.py): keys once a run, then for each sum who is in it,
        # signed
        "sum_start": Kind(False, False, {"parties": PARTIES, "asked": COUNT}, repeatable=True),
        "sum_peers": Kind(False, True, {"asked": COUNT}, repeatable=True),
        "sum_secrets": Kind(False, True, {"asked": COUNT}, repeatable=True),
        "sum_shares": Kind(False, True, {"asked": COUNT}, repeatable=True),
        "survivors": Kind(False, True, {"survivors": PARTIES}),
        "signatures": Kind(False, True, {"signers": PARTIES}),
        "sum_keys": Kind(True, True, {"asked": COUNT}, repeatable=True),
        "sum_sealed": Kind(True, True, {"asked": COUNT}, repeatable=True),
        "sum_ready": Kind(True, True, {"asked": COUNT}, repeatable=True),
        "sum_kept": Kind(True, False, {"asked": COUNT}, repeatable=True),
        "signature": Kind(True, True, {}),
        "opening": Kind(True, True, {}),
        # party -> aggregator; `rows` is a value declared public in the party's config, the rest
        # depends on no row
        "join": Kind(True, False, {"rows": COUNT_OR_NULL, "ledger_head": HEAD}, repeatable=True),
        "update": Kind(True, True, {"ledger_head": HEAD, "releases": RELEASES}),
        "refused": Kind(True, False, {"reason": CODE, "ledger_head": HEAD}),
    }
)


def extended(kinds: Kinds, extra: Mapping[str, Mapping[str, Field]]) -> Kinds:
    """A table in which the kinds of `extra` may carry more; nothing that is there already can be
    loosened.

    >>> "bit_noise" in extended(KINDS, {"weights": {"bit_noise": NUMBER}})["weights"].info
    True
    """
    table = dict(kinds)
    for kind, fields in extra.items():
        if kind not in table:
            raise MessageError(f"kind={kind!r} does not exist: extend one of {', '.join(kinds)}")
        if taken := set(fields) & set(table[kind].info):
            raise MessageError(f"kind={kind!r} has {sorted(taken)} already: use another name")
        table[kind] = replace(table[kind], info={**table[kind].info, **fields})
    return MappingProxyType(table)


@dataclass(frozen=True)
class Limits:
    """What a receiver accepts at most; checked before anything is allocated."""

    bytes: int = 1 << 30
    header_bytes: int = 1 << 20
    tensors: int = 4096


@dataclass(frozen=True, eq=False)
class Message:
    """One message; `tensors` are not copied, so do not change them after sending.

    >>> message = Message("demo", 1, AGGREGATOR, "bank_a", "weights", {"w": torch.zeros(2)}, {"clip_norm": 1.0})
    >>> decode(encode(message)).tensors["w"]
    tensor([0., 0.])
    """

    run: str
    round: int
    sender: str
    recipient: str
    kind: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    info: Mapping[str, Json] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, str, str, str]:
        """What makes a message the same message when it arrives twice."""
        return self.run, self.round, self.sender, self.recipient, self.kind


@dataclass(frozen=True)
class Packed:
    """An encoded message in pieces; `digest` names its whole content."""

    parts: list[memoryview]
    size: int
    digest: str


def check(message: Message, kinds: Kinds = KINDS) -> None:
    """Refuse a message whose ids, kind, direction or information are not in the table."""
    for name, value in (
        ("run", message.run),
        ("sender", message.sender),
        ("recipient", message.recipient),
    ):
        check_id(name, value)
    if type(message.round) is not int or not 0 <= message.round <= _MAX_ROUND:
        raise MessageError(f"round={str(message.round)[:40]}, allowed 0 to {_MAX_ROUND}")
    kind = kinds.get(message.kind) if isinstance(message.kind, str) else None
    if kind is None:
        raise MessageError(f"kind={str(message.kind)[:40]!r}, allowed {', '.join(kinds)}")
    other, aggregator = (
        (message.sender, message.recipient)
        if kind.from_party
        else (message.recipient, message.sender)
    )
    # some shared folders do not tell A from a
    if aggregator != AGGREGATOR or other.lower() == AGGREGATOR:
        way = "a party to the aggregator" if kind.from_party else "the aggregator to a party"
        raise MessageError(
            f"kind={message.kind!r} goes from {way}, not from {message.sender!r} to "
            f"{message.recipient!r}"
        )
    if message.tensors and not kind.tensors:
        raise MessageError(
            f"kind={message.kind!r} carries no tensors: found {len(message.tensors)}"
        )
    for key, content in message.info.items():
        allowed = kind.info.get(key)
        if allowed is None:
            raise MessageError(
                f"kind={message.kind!r} may not carry info {str(key)[:40]!r}: allowed "
                f"{', '.join(kind.info)}"
            )
        if not allowed.accepts(content):
            raise MessageError(
                f"kind={message.kind!r}: info {key}={str(content)[:40]!r} is not {allowed.wants}"
            )


def pack(message: Message, kinds: Kinds = KINDS, limits: Limits | None = None) -> Packed:
    """The message as pieces to write one after another; the same message always gives the same
    bytes.
    """
    limits = limits or Limits()
    check(message, kinds)
    body = write_body(message.tensors)
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    header = {
        "schema": SCHEMA,
        "run": message.run,
        "round": message.round,
        "sender": message.sender,
        "recipient": message.recipient,
        "kind": message.kind,
        "digest": digest.hexdigest(),
        "info": dict(message.info),
    }
    try:
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(
            f"kind={message.kind!r}: info cannot be written as JSON: {str(error)[:80]}"
        ) from None
    text += b" " * (-len(text) % 8)
    size = 8 + len(text) + sum(len(part) for part in body)
    if (
        len(text) > limits.header_bytes
        or size > limits.bytes
        or len(message.tensors) > limits.tensors
    ):
        raise MessageError(
            f"message of {size} bytes (header {len(text)}, {len(message.tensors)} tensors) is too "
            f"large: allowed {limits.bytes} (header {limits.header_bytes}, {limits.tensors} "
            "tensors): raise transport.max_message_bytes"
        )
    prefix = _MAGIC + bytes([_FRAMING]) + len(text).to_bytes(4, "little") + text
    return Packed([memoryview(prefix), *body], size, hashlib.sha256(prefix).hexdigest())


def encode(message: Message, kinds: Kinds = KINDS) -> bytes:
    """The message as bytes."""
    return b"".join(pack(message, kinds).parts)


def decode(
    data: bytes | bytearray | memoryview, limits: Limits | None = None, kinds: Kinds = KINDS
) -> Message:
    """The message in `data`, all of it checked but for what only the model knows (`check_tensors`);
    or MessageError.

    Tensors share the memory of a writable `data`; they are copies of a read-only one.
    """
    limits = limits or Limits()
    view = memoryview(data).cast("B")
    if len(view) > limits.bytes:
        raise MessageError(
            f"message of {len(view)} bytes, allowed {limits.bytes}: raise "
            "transport.max_message_bytes"
        )
    if len(view) < 8 or bytes(view[:3]) != _MAGIC:
        raise MessageError("this is not a homo_dp message")
    if view[3] != _FRAMING:
        raise _other_schema(view[3])
    length = int.from_bytes(view[4:8], "little")
    if length > limits.header_bytes or length > len(view) - 8:
        raise MessageError(
            f"header length={length} is outside of the message: the message is damaged"
        )
    header = parse_json(view[8 : 8 + length])
    if header.get("schema") != SCHEMA or type(header["schema"]) is not int:
        raise _other_schema(header.get("schema"))
    if set(header) != _HEADER_KEYS or not isinstance(header["info"], dict):
        raise MessageError(f"header wants exactly {', '.join(sorted(_HEADER_KEYS))}")
    body = view[8 + length :]
    message = Message(
        header["run"],
        header["round"],
        header["sender"],
        header["recipient"],
        header["kind"],
        info=header["info"],
    )
    check(message, kinds)
    if header["digest"] != hashlib.sha256(body).hexdigest():
        raise MessageError(
            f"digest of the body from {message.sender!r} does not match: the message was altered"
        )
    message = replace(message, tensors=read_body(body, limits.tensors))
    check(message, kinds)
    return message


def _other_schema(found: object) -> MessageError:
    return MessageError(
        f"message schema={str(found)[:20]}, this homo_dp reads {SCHEMA}: install the same homo_dp "
        "version on all sides"
    )


Signature = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


def signature(tensors: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Names, shapes and dtypes of `tensors`, as `check_tensors` expects them."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def largest_number(tensor: Tensor) -> float:
    """The largest absolute value of a tensor of floats; 0 for one of integers or without numbers.

    >>> largest_number(torch.tensor([1.0, -3.0])), largest_number(torch.tensor([7]))
    (3.0, 0.0)
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    low, high = tensor.aminmax()
    return max(-float(low), float(high))


def check_tensors(
    tensors: Mapping[str, Tensor],
    expected: Signature,
    max_norm: float | None = None,
    limit: str = "max_update_norm",
) -> None:
    """Refuse tensors that are not the expected ones, not finite, or longer than `max_norm` (L2),
    which `limit` names.

    >>> check_tensors({"w": torch.tensor([float("nan")])}, {"w": ((1,), torch.float32)})
    Traceback (most recent call last):
    ...
    homo_dp.core.errors.MessageError: tensor w: holds NaN or infinity; if training diverged, lower train.learning_rate
    """
    if set(tensors) != set(expected):
        missing, surplus = (
            sorted(set(expected) - set(tensors)),
            sorted(set(tensors) - set(expected)),
        )
        raise MessageError(
            f"tensors are not the model's: missing {missing[:5]}, unknown {surplus[:5]}"
        )
    for name, (shape, dtype) in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
            raise MessageError(
                f"tensor {name}: shape={tuple(tensor.shape)} dtype={tensor.dtype}, expected "
                f"{tuple(shape)} {dtype}"
            )
        if (
            dtype.is_floating_point
            and tensor.numel()
            and not all(end.isfinite() for end in tensor.aminmax())
        ):
            raise MessageError(
                f"tensor {name}: holds NaN or infinity; if training diverged, lower "
                "train.learning_rate"
            )
    if max_norm is not None:
        # Pieces, so that float64 does not cost a copy of the model.
        pieces = (
            piece
            for tensor in tensors.values()
            for piece in torch.split(tensor.reshape(-1), 1 << 20)
        )
        norm = math.sqrt(sum(float(piece.double().square().sum()) for piece in pieces))
        if not norm <= max_norm:
            raise MessageError(
                f"norm={norm:.6g} of the tensors, allowed up to {limit}={max_norm:g}"
            )
