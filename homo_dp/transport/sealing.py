"""Messages signed by their sender and encrypted to their recipient, in pieces, so that large models
need no copies.

A sealed message is

    "HDS" version | header length (2) | header JSON | wrap (176) | chunk | chunk | ...

- header: sender, recipient, run and the size of what is inside; readable, bound to everything
  below;
- wrap: HPKE (RFC 9180, base mode, X25519, HKDF-SHA256, ChaCha20-Poly1305; info = header) to the
  recipient, of a fresh content key, the SHA-256 of what is inside, and an Ed25519 signature over
  the header, the recipient's public key and that digest. The signature is checked before anything
  is allocated for the chunks;
- chunks: ChaCha20-Poly1305 under the content key in the STREAM construction (Hoang, Reyhanitabar,
  Rogaway, Vizar 2015): the nonce is a counter and a flag on the last chunk, so chunks cannot be
  reordered, repeated or cut off.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from homo_dp.core.errors import MessageError, Undeliverable, UnreadableMessage, one_line
from homo_dp.federation.protocol.messages import (
    KINDS,
    Kinds,
    Limits,
    Message,
    check_id,
    decode,
    pack,
)
from homo_dp.federation.protocol.tensors import parse_json
from homo_dp.transport.keys import KeyPair, PublicKey
from homo_dp.transport.poison_messages import ReadingNote
from homo_dp.transport.revocation import RevokedKeys

_MAGIC: Final = b"HDS"
_VERSION: Final = 1
_SUITE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_KEY, _DIGEST, _SIGNATURE, _TAG = 32, 32, 64, 16
_WRAP: Final = 32 + _KEY + _DIGEST + _SIGNATURE + _TAG
_MAX_HEADER: Final = 1024
CHUNK: Final = 1 << 20
# bytes that identify a sealed message: they hold the ephemeral key of its HPKE wrap
_NAMED: Final = 1024

Read = Callable[[int], bytes]  # like file.read: at most so many bytes, fewer only at the end


@dataclass(frozen=True)
class Sealed:
    """A sealed message in pieces to write one after another; `tag` is the same whenever the same
    message is sealed.
    """

    pieces: Iterator[bytes]
    size: int
    tag: str


class Sealer:
    """One process's keys and the public keys it trusts: seals what it sends, opens what it
    receives.

    Guarantees:
        - a message that comes out of `open` was signed for this recipient by the listed key whose
          name it bears;
        - nobody but the recipient can read it, change it or pass it on as meant for somebody else;
        - no more memory is taken than `limits` allows, and none for the content of strangers'
          messages;
        - a key that has expired or was revoked is neither believed nor written to, also if that
          happens during a run;
        - whatever reading a message raises comes out as MessageError.
    """

    def __init__(
        self,
        own: KeyPair,
        allowed: Mapping[str, PublicKey],
        kinds: Kinds = KINDS,
        limits: Limits | None = None,
    ) -> None:
        self.own = own
        self.allowed = allowed
        self.kinds = kinds
        self.limits = limits or Limits()
        self.note: ReadingNote | None = None  # where a process that keeps state notes what it reads
        self.revoked: RevokedKeys | None = None

    @property
    def name(self) -> str:
        """The id of this process."""
        return self.own.name

    def seal(self, message: Message) -> Sealed:
        """Encode, sign and encrypt `message` to its recipient."""
        if message.sender != self.own.name:
            raise MessageError(
                f"sender={message.sender!r} is not {self.own.name!r}, whose key this is"
            )
        recipient = self.allowed.get(message.recipient)
        if recipient is None:
            raise MessageError(
                f"recipient={message.recipient!r} has no public key here: add its line to the "
                "allow-list"
            )
        try:
            self.check_key(recipient)
        except MessageError as refusal:
            raise Undeliverable(f"{message.kind} to {message.recipient}: {refusal}") from None
        packed = pack(message, self.kinds, self.limits)
        pieces, size = seal_parts(packed.parts, message.run, self.own, recipient)
        return Sealed(pieces, size, self.own.tag(packed.digest))

    def open(self, read: Read, size: int) -> Message:
        """The message in `size` sealed bytes, or MessageError; `read` is called for pieces of
        them.
        """
        start = read(min(size, _NAMED))
        noted = (
            self.note.reading(hashlib.sha256(start).hexdigest()[:32])
            if self.note
            else contextlib.nullcontext()
        )
        with noted:
            try:
                data, header = open_stream(
                    _after(start, read), size, self.own, self.allowed, self.limits, self.check_key
                )
            except (MessageError, OSError):
                raise
            except Exception as error:
                raise _unreadable(error) from error
            try:
                return self._decoded(data, header)
            except MessageError as refusal:
                refusal.signed_by = header.sender
                raise
            except Exception as error:
                unreadable = _unreadable(error)
                unreadable.signed_by = header.sender
                raise unreadable from error

    def _decoded(self, data: bytearray, header: "SealHeader") -> Message:
        message = decode(data, self.limits, self.kinds)
        if (message.sender, message.recipient, message.run) != (
            header.sender,
            header.recipient,
            header.run,
        ):
            raise MessageError(
                f"message of {message.sender!r} in run {message.run!r} came sealed by "
                f"{header.sender!r} for {header.recipient!r} in run {header.run!r}: refused"
            )
        return message

    def check_key(self, key: PublicKey) -> None:
        """Refuse a key that has expired or was revoked."""
        key.check_date()
        if self.revoked is not None:
            self.revoked.check(key)

    def open_bytes(self, data: bytes) -> Message:
        """The message in `data`, or MessageError."""
        return self.open(io.BytesIO(data).read, len(data))


@dataclass(frozen=True)
class SealHeader:
    """The readable part of a sealed message; to be believed only after the signature was
    checked.
    """

    sender: str
    recipient: str
    run: str
    size: int


def seal(data: bytes, run: str, sender: KeyPair, recipient: PublicKey) -> bytes:
    """`data` signed by `sender` and encrypted to `recipient`.

    >>> from homo_dp.transport.keys import new_key_pair
    >>> a, b = new_key_pair("a"), new_key_pair("b")
    >>> open_sealed(seal(b"hello", "demo", a, b.public), b, {"a": a.public})
    (b'hello', 'a')
    """
    return b"".join(seal_parts([memoryview(data)], run, sender, recipient)[0])


def open_sealed(
    data: bytes, own: KeyPair, allowed: Mapping[str, PublicKey], limits: Limits | None = None
) -> tuple[bytes, str]:
    """What is inside `data`, and the listed sender who signed it; or MessageError."""
    inside, header = open_stream(io.BytesIO(data).read, len(data), own, allowed, limits or Limits())
    return bytes(inside), header.sender


def seal_parts(
    parts: Iterable[memoryview], run: str, sender: KeyPair, recipient: PublicKey
) -> tuple[Iterator[bytes], int]:
    """The pieces of a sealed message, made one at a time, and their total size."""
    parts = list(parts)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    size = sum(len(part) for part in parts)
    fields = {
        "sender": sender.name,
        "recipient": recipient.name,
        "run": check_id("run", run),
        "size": size,
    }
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    prefix = _MAGIC + bytes([_VERSION]) + len(text).to_bytes(2, "little") + text
    signature = sender.signer.sign(_signed(prefix, recipient, digest.digest()))
    key = os.urandom(_KEY)
    try:
        wrap = _SUITE.encrypt(key + digest.digest() + signature, recipient.receiver, info=prefix)
    except ValueError:
        raise MessageError(
            f"public key of {recipient.name!r} is unusable: ask for its line again"
        ) from None
    return _sealed_pieces(prefix + wrap, parts, ChaCha20Poly1305(key), size), _sealed_size(
        len(prefix), size
    )


def open_stream(
    read: Read,
    size: int,
    own: KeyPair,
    allowed: Mapping[str, PublicKey],
    limits: Limits,
    check_key: Callable[[PublicKey], None] = PublicKey.check_date,
) -> tuple[bytearray, SealHeader]:
    """What is inside `size` sealed bytes, writable, and its checked header; or MessageError.

    `check_key` refuses, by MessageError, a listed key that is trusted no more.
    """
    prefix, header = _read_header(read, size, own.name, limits)
    sender = allowed.get(header.sender)
    if sender is None:
        raise MessageError(
            f"sender={header.sender!r} is not on the allow-list of {own.name!r}: refused"
        )
    check_key(sender)
    try:
        secret = _SUITE.decrypt(read(_WRAP), own.opener, info=prefix)
    except (InvalidTag, ValueError):
        raise MessageError(
            f"message of {header.sender!r} was altered or is not encrypted to the key of "
            f"{own.name!r}: compare fingerprints with {header.sender!r}"
        ) from None
    key, digest, signature = secret[:_KEY], secret[_KEY : _KEY + _DIGEST], secret[_KEY + _DIGEST :]
    try:
        sender.verifier.verify(signature, _signed(prefix, own.public, digest))
    except (InvalidSignature, ValueError):
        raise MessageError(
            f"signature is not that of {header.sender!r}: refused; compare fingerprints with it"
        ) from None
    inside = bytearray(header.size)
    _open_chunks(read, memoryview(inside), ChaCha20Poly1305(key), header.sender)
    if hashlib.sha256(inside).digest() != digest:
        raise MessageError(f"message of {header.sender!r} is not what it signed: refused")
    return inside, header


def _unreadable(error: Exception) -> UnreadableMessage:
    return UnreadableMessage(
        f"reading it raised {type(error).__name__} ({one_line(error, 100)}): it is not read again"
    )


def _after(start: bytes, read: Read) -> Read:
    """Reads `start` first, then what `read` gives."""
    left = memoryview(start)

    def joined(size: int) -> bytes:
        nonlocal left
        taken, left = bytes(left[:size]), left[size:]
        return taken if len(taken) == size else taken + read(size - len(taken))

    return joined


def _read_header(read: Read, size: int, own: str, limits: Limits) -> tuple[bytes, SealHeader]:
    start = read(6)
    if len(start) < 6 or start[:3] != _MAGIC:
        raise MessageError("this is not a sealed homo_dp message")
    if start[3] != _VERSION:
        raise MessageError(
            f"seal version={start[3]}, this homo_dp reads {_VERSION}: install the same on all sides"
        )
    length = int.from_bytes(start[4:], "little")
    text = read(length) if length <= _MAX_HEADER else b""
    if len(text) != length:
        raise MessageError(
            f"seal header length={length} is outside of the message: the message is damaged"
        )
    fields = parse_json(memoryview(text))
    if set(fields) != {"sender", "recipient", "run", "size"} or type(fields["size"]) is not int:
        raise MessageError("seal header wants exactly recipient, run, sender and size")
    sender, recipient, run = (
        check_id(name, fields[name]) for name in ("sender", "recipient", "run")
    )
    header = SealHeader(sender, recipient, run, fields["size"])
    if header.recipient != own:
        raise MessageError(
            f"message of {header.sender!r} is for {header.recipient!r}, not for {own!r}"
        )
    if not 0 <= header.size <= limits.bytes:
        raise MessageError(
            f"message of {header.sender!r} holds {header.size} bytes, allowed {limits.bytes}: "
            "raise transport.max_message_bytes"
        )
    if size != _sealed_size(6 + length, header.size):
        raise MessageError(f"message of {header.sender!r} is cut or too long: {size} bytes")
    return start + text, header


def _signed(prefix: bytes, recipient: PublicKey, digest: bytes) -> bytes:
    return b"homo_dp signature v1\0" + prefix + recipient.raw + digest


def _sealed_size(prefix: int, size: int) -> int:
    chunks = max(1, -(-size // CHUNK))
    return prefix + _WRAP + size + chunks * _TAG


def largest_sealed(limits: Limits) -> int:
    """The most bytes that a sealed message within `limits` can have."""
    return _sealed_size(6 + _MAX_HEADER, limits.bytes)


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _sealed_pieces(
    start: bytes, parts: list[memoryview], cipher: ChaCha20Poly1305, size: int
) -> Iterator[bytes]:
    yield start
    last = max(1, -(-size // CHUNK)) - 1
    number, buffer = 0, bytearray()
    for part in parts:
        for begin in range(0, len(part), CHUNK):
            buffer += part[begin : begin + CHUNK]
            if len(buffer) >= CHUNK and number < last:
                yield cipher.encrypt(_nonce(number, False), memoryview(buffer)[:CHUNK], None)
                number, buffer = number + 1, buffer[CHUNK:]
    yield cipher.encrypt(_nonce(number, True), buffer, None)


def _open_chunks(read: Read, inside: memoryview, cipher: ChaCha20Poly1305, sender: str) -> None:
    last = max(1, -(-len(inside) // CHUNK)) - 1
    for number in range(last + 1):
        place = inside[number * CHUNK : (number + 1) * CHUNK]
        try:
            place[:] = cipher.decrypt(_nonce(number, number == last), read(len(place) + _TAG), None)
        except (InvalidTag, ValueError):
            raise MessageError(
                f"message of {sender!r} was altered in piece {number}: refused"
            ) from None
