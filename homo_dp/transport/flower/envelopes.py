"""What a ServerApp asks of a SuperNode and what comes back: sealed messages, and which of them were
dealt with.

The same two values travel in Flower's records and, on the node, over the socket between ClientApp
and party. Nothing in them is believed: who sent a message, and to whom, is under its seal.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.ids import check_id

VERSION: Final = 1
MOST_MESSAGES: Final = 256  # in one letter; sessions of ours send a handful
_MOST_HEADER: Final = 1 << 16  # bytes of a letter's header on a socket
_STATES: Final = ("running", "starting", "over", "ended", "other_run", "failed")


def tag_of(sealed: bytes) -> str:
    """The name of a sealed message."""
    return hashlib.sha256(sealed).hexdigest()[:32]


@dataclass(frozen=True)
class SealedQuestion:
    """Sealed messages for a party; without any, it only asks whether the party has something to
    say.
    """

    run: str
    sealed: tuple[bytes, ...] = ()
    # Flower's own number of the run, which is new each time it is started; the ClientApp knows it
    job: str = ""

    def fields(self) -> dict[str, Any]:
        """As a record of Flower takes it."""
        return {"version": VERSION, "run": self.run, "job": self.job, "sealed": list(self.sealed)}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """The question in a record, or MessageError."""
        _check_version(fields)
        run, job = fields.get("run"), fields.get("job")
        if not isinstance(run, str) or not isinstance(job, str):
            raise MessageError("run: is missing in the record; the ServerApp is not homo_dp's")
        return cls(check_id("run", run), _pieces(fields), job[:40])


@dataclass(frozen=True)
class Answer:
    """Sealed messages of a party; which messages it dealt with since the last answer, and which
    it has in hand.
    """

    state: str
    sealed: tuple[bytes, ...] = ()
    done: tuple[str, ...] = ()
    held: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """As a record of Flower takes it."""
        found = {"version": VERSION, "state": self.state, "sealed": list(self.sealed)}
        return found | {"done": list(self.done), "held": list(self.held)}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """The answer in a record, or MessageError."""
        _check_version(fields)
        state = fields.get("state")
        if state not in _STATES:
            raise MessageError(
                f"state: must be one of {', '.join(_STATES)}; the ClientApp is not homo_dp's"
            )
        return cls(str(state), _pieces(fields), _tags(fields, "done"), _tags(fields, "held"))


def send_letter(connection: socket.socket, letter: SealedQuestion | Answer) -> None:
    """Write a letter to a socket: the length of a JSON header, the header, the messages."""
    fields = letter.fields()
    pieces = fields.pop("sealed")
    header = json.dumps({**fields, "sizes": [len(piece) for piece in pieces]}).encode()
    connection.sendall(struct.pack(">I", len(header)) + header)
    for piece in pieces:
        connection.sendall(piece)


def receive_letter(connection: socket.socket, most_bytes: int) -> dict[str, Any]:
    """The fields of a letter from a socket, of at most `most_bytes` of messages; MessageError if
    it is none.
    """
    (length,) = struct.unpack(">I", _exactly(connection, 4))
    if length > _MOST_HEADER:
        raise MessageError(
            f"header of {length} bytes, allowed {_MOST_HEADER}: not a letter of homo_dp"
        )
    try:
        fields = json.loads(_exactly(connection, length))
    except (ValueError, RecursionError):
        raise MessageError("the header is not JSON, so this is not a letter of homo_dp") from None
    sizes = fields.pop("sizes", None) if isinstance(fields, dict) else None
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise MessageError("sizes: must be a list of sizes; not a letter of homo_dp")
    if len(sizes) > MOST_MESSAGES or sum(sizes) > most_bytes:
        raise MessageError(
            f"{len(sizes)} messages of {sum(sizes)} bytes, allowed {MOST_MESSAGES} of {most_bytes}"
        )
    return {**fields, "sealed": [_exactly(connection, size) for size in sizes]}


def _exactly(connection: socket.socket, size: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        piece = connection.recv(min(size - len(pieces), 1 << 20))
        if not piece:
            raise ConnectionError("the other side closed the socket in the middle of a letter")
        pieces += piece
    return bytes(pieces)


def _check_version(fields: Mapping[str, Any]) -> None:
    if fields.get("version") != VERSION:
        raise MessageError(
            f"version={fields.get('version')}: this homo_dp reads {VERSION}; install the same on "
            "all sides"
        )


def _pieces(fields: Mapping[str, Any]) -> tuple[bytes, ...]:
    found = fields.get("sealed")
    if not isinstance(found, list) or not all(isinstance(piece, bytes) for piece in found):
        raise MessageError("sealed: must be a list of sealed messages")
    if len(found) > MOST_MESSAGES:
        raise MessageError(f"sealed: {len(found)} messages, allowed {MOST_MESSAGES}")
    return tuple(found)


def _tags(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = fields.get(name)
    if not isinstance(found, list) or not all(
        isinstance(tag, str) and len(tag) == 32 for tag in found
    ):
        raise MessageError(f"{name}: must be a list of names of messages")
    return tuple(found[:MOST_MESSAGES])
