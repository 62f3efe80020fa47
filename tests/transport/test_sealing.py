"""Sealed messages: only the listed sender's, only for the recipient, unchanged; nothing but
MessageError comes out.
"""

import io
import random
import resource
import tracemalloc
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.messages import AGGREGATOR, Limits, Message, encode
from homo_dp.transport.keys import KeyPair, PublicKey, new_key_pair
from homo_dp.transport.sealing import _SUITE, _WRAP, CHUNK, Sealer, open_sealed, seal

A, B, AGG, STRANGER = (new_key_pair(name) for name in ("bank_a", "bank_b", AGGREGATOR, "bank_a"))
ALLOWED = {"bank_a": A.public, "bank_b": B.public}


def update(sender: str = "bank_a", size: int = 3) -> Message:
    tensors = {"w": torch.randn(size)}
    return Message("demo", 1, sender, AGGREGATOR, "update", tensors, {"releases": ["update"]})


def sealed_by(pair: KeyPair, message: Message) -> bytes:
    return b"".join(Sealer(pair, {AGGREGATOR: AGG.public}).seal(message).pieces)


AGGREGATOR_END = Sealer(AGG, ALLOWED)


@pytest.mark.parametrize("size", [0, 1, 100, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 7])
def test_what_is_sealed_opens(size: int) -> None:
    data = random.Random(size).randbytes(size)
    sealed = seal(data, "demo", A, AGG.public)
    assert open_sealed(sealed, AGG, ALLOWED) == (data, "bank_a")
    assert size < 100 or data[:50] not in sealed


def test_a_message_passes_between_sealers() -> None:
    message = update(size=CHUNK)
    end = Sealer(A, {AGGREGATOR: AGG.public})
    sealed = end.seal(message)
    data = b"".join(sealed.pieces)
    assert len(data) == sealed.size
    back = AGGREGATOR_END.open_bytes(data)
    assert back.key == message.key
    assert torch.equal(back.tensors["w"], message.tensors["w"])
    again = end.seal(message)
    assert again.tag == sealed.tag  # the same message has the same name,
    assert b"".join(again.pieces) != data  # though no two seals are alike


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: sealed_by(STRANGER, update()), "signature is not that of 'bank_a'"),
        (lambda: sealed_by(new_key_pair("bank_c"), update("bank_c")), "not on the allow-list"),
        (lambda: seal(encode(update("bank_b")), "demo", A, AGG.public), "came sealed by 'bank_a'"),
        (lambda: seal(encode(update()), "other", A, AGG.public), "in run 'other'"),
        (lambda: seal(encode(update()), "demo", A, B.public), "is for 'bank_b'"),
        (
            lambda: seal(encode(update()), "demo", A, PublicKey(AGGREGATOR, B.public.raw)),
            "not encrypted to",
        ),
        (lambda: sealed_by(A, update()).replace(b"demo", b"demi"), "altered"),
        (lambda: sealed_by(A, update()).replace(b"bank_a", b"bank_b"), "altered"),
        (lambda: sealed_by(A, update())[:-1], "cut"),
        (lambda: sealed_by(A, update()) + b"\0", "cut or too long"),
        (lambda: b"HDS\x02" + sealed_by(A, update())[4:], "version=2"),
        (lambda: b"", "not a sealed"),
        (lambda: encode(update()), "not a sealed"),
        (lambda: seal(b"garbage", "demo", A, AGG.public), "not a homo_dp message"),
    ],
)
def test_others_and_altered_messages_are_refused(make: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        AGGREGATOR_END.open_bytes(make())


def test_a_recipient_cannot_pass_a_message_on() -> None:
    """Surreptitious forwarding: B opens what A signed for B, and wraps key, digest and signature
    for the aggregator.
    """
    sealed = seal(encode(update()), "demo", A, B.public)
    length = 6 + int.from_bytes(sealed[4:6], "little")
    prefix, wrap, chunks = (
        sealed[:length],
        sealed[length : length + _WRAP],
        sealed[length + _WRAP :],
    )
    secret = _SUITE.decrypt(wrap, B.opener, info=prefix)
    text = prefix[6:].replace(b'"bank_b"', b'"aggregator"')
    prefix = prefix[:4] + len(text).to_bytes(2, "little") + text
    forwarded = prefix + _SUITE.encrypt(secret, AGG.public.receiver, info=prefix) + chunks
    with pytest.raises(MessageError, match="signature is not that of 'bank_a'"):
        AGGREGATOR_END.open_bytes(forwarded)


def test_chunks_cannot_be_reordered_repeated_or_cut() -> None:
    data = bytes(3 * CHUNK)
    sealed = seal(data, "demo", A, AGG.public)
    piece = CHUNK + 16
    start = len(sealed) - 3 * piece
    head, one, two, three = (
        sealed[:start],
        *(sealed[start + n * piece : start + (n + 1) * piece] for n in range(3)),
    )
    for chunks in (
        (two, one, three),
        (one, one, three),
        (one, three, two),
        (one, two, two),
        (one, two, b""),
    ):
        with pytest.raises(MessageError):
            open_sealed(head + b"".join(chunks), AGG, ALLOWED)


def test_own_name_and_known_recipients_only() -> None:
    with pytest.raises(MessageError, match="whose key this is"):
        sealed_by(A, update("bank_b"))
    with pytest.raises(MessageError, match="no public key here"):
        Sealer(A, {}).seal(update())
    with pytest.raises(MessageError, match="unusable"):
        Sealer(A, {AGGREGATOR: PublicKey(AGGREGATOR, bytes(64))}).seal(update())


def test_strangers_and_too_large_messages_cost_no_memory() -> None:
    large = seal(bytes(16 << 20), "demo", A, AGG.public)
    stranger = seal(bytes(16 << 20), "demo", STRANGER, AGG.public)
    for data, limits in ((large, Limits(bytes=1 << 20)), (stranger, Limits())):
        tracemalloc.start()
        with pytest.raises(MessageError):
            Sealer(AGG, ALLOWED, limits=limits).open(io.BytesIO(data).read, len(data))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


def test_sealing_and_opening_a_large_model_need_few_copies() -> None:
    message = update(size=8 << 20)  # 32 MB
    model = 32 << 20
    tracemalloc.start()
    size = sum(len(piece) for piece in Sealer(A, {AGGREGATOR: AGG.public}).seal(message).pieces)
    assert tracemalloc.get_traced_memory()[1] < model / 4
    tracemalloc.stop()
    data = io.BytesIO(sealed_by(A, message))
    tracemalloc.start()
    opened = AGGREGATOR_END.open(data.read, size)
    assert tracemalloc.get_traced_memory()[1] < 1.25 * model
    tracemalloc.stop()
    assert torch.equal(opened.tensors["w"], message.tensors["w"])


def test_mutated_seals_only_raise_our_error() -> None:
    """Seed 11; every single-byte change must be refused, for each byte is authenticated."""
    source = random.Random(11)
    good = sealed_by(A, update())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(10_000):
        data = bytearray(good)
        for _ in range(source.choice((1, 1, 2, 8))):
            data[source.randrange(len(data)) if number % 2 else source.randrange(100)] ^= (
                source.randrange(1, 256)
            )
        if number % 7 == 0:
            del data[source.randrange(len(data)) :]
        if bytes(data) != good:
            with pytest.raises(MessageError):
                AGGREGATOR_END.open_bytes(bytes(data))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_refused(data: bytes, marked: bool) -> None:
    with pytest.raises(MessageError):
        AGGREGATOR_END.open_bytes(b"HDS\x01" + data if marked else data)
