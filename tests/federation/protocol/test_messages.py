"""Messages: what goes in comes out, what does not belong is refused, and nothing but
MessageError comes out.
"""

import hashlib
import json
import random
import resource
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.messages import (
    AGGREGATOR,
    KINDS,
    NUMBER,
    Limits,
    Message,
    check,
    check_tensors,
    decode,
    encode,
    extended,
    pack,
    signature,
)
from homo_dp.federation.protocol.tensors import DTYPES, read_body

HEAD = {"count": 3, "hash": "ab" * 32}


def update(**changes: Any) -> Message:
    values: dict[str, Any] = {
        "run": "demo",
        "round": 2,
        "sender": "bank_a",
        "recipient": AGGREGATOR,
        "kind": "update",
        "tensors": {"weight": torch.randn(2, 3), "bias": torch.randn(2)},
        "info": {"ledger_head": HEAD, "releases": ["update"]},
    }
    return Message(**(values | changes))


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return set(left) == set(right) and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name])
        for name in left
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_comes_back_as_it_went(kind: str) -> None:
    values = {
        "plan": {"train": {"rounds": 3}},
        "found": {"rows": {"bank_a": 3}},
        "rounds": 3,
        "clip_norm": 0.5,
        "reason": "budget",
        "state": "waiting",
        "rows": None,
        "ledger_head": HEAD,
        "releases": ["update"],
        "survivors": ["bank_a", "bank_b"],
        "parties": ["bank_a", "bank_b"],
        "asked": 1,
        "signers": ["bank_a"],
    }
    allowed = KINDS[kind]
    ends = {"sender": "bank_a", "recipient": AGGREGATOR}
    if not allowed.from_party:
        ends = {"sender": AGGREGATOR, "recipient": "bank_a"}
    tensors = {"w": torch.randn(4)} if allowed.tensors else {}
    message = update(
        kind=kind, info={key: values[key] for key in allowed.info}, tensors=tensors, **ends
    )
    back = decode(encode(message))
    assert back.key == message.key
    assert back.info == message.info
    assert same(back.tensors, message.tensors)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_dtypes_and_shapes_agree_with_the_safetensors_package(
    dtype: str, shape: tuple[int, ...]
) -> None:
    tensors = {
        "a": (torch.rand(shape) * 100).to(DTYPES[dtype]),
        "b": torch.rand(5),
        "c.d": torch.rand(2).double(),
    }
    data = encode(update(tensors=tensors))
    assert same(decode(data).tensors, tensors)
    body = data[8 + int.from_bytes(data[4:8], "little") :]
    assert same(safetensors.torch.load(body), tensors)


def test_non_contiguous_and_shared_tensors_travel() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"transposed": base.T, "slice": base[:, 1], "same": base}
    assert same(
        decode(encode(update(tensors=tensors))).tensors,
        {name: t.contiguous() for name, t in tensors.items()},
    )


def test_a_writable_buffer_is_shared_and_a_read_only_one_copied() -> None:
    data = bytearray(encode(update()))
    first = decode(data)
    data[-4:] = b"\0\0\0\0"
    assert float(first.tensors["weight"][-1, -1]) == 0 or float(first.tensors["bias"][-1]) == 0
    second = decode(encode(update()))
    second.tensors["bias"].add_(1)  # no warning about read-only memory (warnings are errors below)


@pytest.mark.filterwarnings("error")
def test_decoding_bytes_does_not_warn() -> None:
    decode(encode(update()))


def test_the_same_message_gives_the_same_bytes_and_digest() -> None:
    one = update()
    two = update(
        tensors=dict(reversed(list(one.tensors.items()))),
        info=dict(reversed(list(one.info.items()))),
    )
    assert encode(one) == encode(two)
    assert pack(one).digest == pack(two).digest == pack(decode(encode(one))).digest
    assert pack(one).digest != pack(update(tensors=one.tensors, round=3)).digest


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": "../x"}, "run="),
        ({"run": "a..b"}, "run="),
        ({"run": ""}, "run="),
        ({"run": "-a"}, "run="),
        ({"run": "a" * 65}, "run="),
        ({"run": "ä"}, "run="),
        ({"sender": "Aggregator"}, "goes from a party"),
        ({"run": "a\n"}, "run="),
        ({"run": "a."}, "run="),
        ({"sender": "a/b"}, "sender="),
        ({"recipient": ".hidden"}, "recipient="),
        ({"round": -1}, "round="),
        ({"round": True}, "round="),
        ({"round": 1.0}, "round="),
        ({"kind": "metrics"}, "kind="),
        ({"sender": AGGREGATOR}, "goes from a party"),
        ({"recipient": "bank_b"}, "goes from a party"),
        ({"kind": "weights"}, "goes from the aggregator"),
        ({"kind": "join", "info": {}}, "carries no tensors"),
        ({"info": {"loss": 0.5}}, "may not carry info 'loss'"),
        ({"info": {"releases": ["rows 1234"]}}, "names of releases"),
        ({"info": {"releases": ["rows1234"]}}, "names of releases"),
        ({"info": {"ledger_head": {"count": 1, "hash": "ab" * 32, "rows": 12}}}, "ledger"),
        ({"info": {"ledger_head": {"count": 1.5, "hash": "ab" * 32}}}, "ledger"),
        ({"kind": "refused", "tensors": {}, "info": {"reason": "epsilon 3.2"}}, "a word of a-z"),
        ({"tensors": {"a b": torch.zeros(1)}}, "tensor name="),
        ({"tensors": {"a": torch.zeros(1, dtype=torch.complex64)}}, "cannot travel"),
        ({"tensors": {"a": torch.zeros([1] * 9)}}, "cannot travel"),
    ],
)
def test_what_does_not_belong_in_a_message_cannot_be_sent(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MessageError, match=reason):
        encode(update(**changes))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, True, "1", None, [1]])
def test_numbers_are_finite_numbers(value: Any) -> None:
    with pytest.raises(MessageError, match="finite number"):
        check(
            update(kind="weights", sender=AGGREGATOR, recipient="bank_a", info={"clip_norm": value})
        )


def test_a_mechanism_can_declare_one_more_number_but_not_loosen_the_table() -> None:
    more = extended(KINDS, {"weights": {"bit_noise": NUMBER}})
    message = update(kind="weights", sender=AGGREGATOR, recipient="bank_a", info={"bit_noise": 2.0})
    assert decode(encode(message, more), kinds=more).info == {"bit_noise": 2.0}
    with pytest.raises(MessageError, match="bit_noise"):
        encode(message)
    with pytest.raises(MessageError, match="already"):
        extended(KINDS, {"join": {"rows": NUMBER}})
    with pytest.raises(MessageError, match="does not exist"):
        extended(KINDS, {"metrics": {}})


def reheaded(data: bytes, **changes: Any) -> bytes:
    """The same message with another header, as somebody else's program might write it."""
    length = int.from_bytes(data[4:8], "little")
    header = json.loads(data[8 : 8 + length]) | changes
    text = json.dumps({key: value for key, value in header.items() if value != "REMOVE"}).encode()
    return data[:4] + len(text).to_bytes(4, "little") + text + data[8 + length :]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema": 2}, "schema=2, this homo_dp reads 1: install the same homo_dp version"),
        ({"schema": True}, "schema=True"),
        ({"schema": "REMOVE"}, "schema=None"),
        ({"extra": 1}, "header wants exactly"),
        ({"digest": "00"}, "altered"),
        ({"info": {"loss": 1}}, "may not carry"),
        ({"info": [1]}, "header wants exactly"),
        ({"kind": ["update"]}, "kind="),
        ({"run": {"a": 1}}, "run="),
        ({"round": 10**10}, "round="),
        ({"sender": "bank_b\u0000"}, "sender="),
    ],
)
def test_another_header_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        decode(reheaded(encode(update()), **changes))


def test_another_framing_is_a_clear_refusal() -> None:
    with pytest.raises(MessageError, match="schema=9"):
        decode(b"HDP\x09" + encode(update())[4:])


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"schema":NaN}',
        b'{"schema":1e999}',
        b'{"schema":' + b"9" * 5000 + b"}",
        b'{"schema":1,"schema":1}',
        b'{"schema":"\\ud800"}',
        b"\xff",
        b"[1]",
    ],
)
def test_hostile_json_is_refused(text: bytes) -> None:
    with pytest.raises(MessageError):
        decode(b"HDP\x01" + len(text).to_bytes(4, "little") + text)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1] * 9, "data_offsets": [0, 4]},
        {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": 1},
        {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},
        5,
    ],
)
def test_hostile_tensor_headers_are_refused(entry: object) -> None:
    text = json.dumps({"a": entry}).encode()
    body = len(text).to_bytes(8, "little") + text + b"\0\0\0\0"
    data = encode(update(tensors={}))
    data = data[: 8 + int.from_bytes(data[4:8], "little")] + body
    with pytest.raises(MessageError):
        decode(reheaded(data, digest=hashlib.sha256(body).hexdigest()))


@pytest.mark.parametrize(
    "shape",
    [
        [0, 1 << 47, 1 << 47],
        [1 << 47, 0, 1 << 47],
        [0] + [1 << 47] * 7,
        [0, (1 << 48) - 1],
        [0, 1 << 41],
    ],
)
def test_a_tensor_without_numbers_has_dimensions_that_torch_can_take(shape: list[int]) -> None:
    """torch: `Stride calculation overflowed`, which ended the aggregator at every start."""
    with pytest.raises(MessageError, match="larger than any tensor"):
        read_body(
            memoryview(one_tensor({"dtype": "F32", "shape": shape, "data_offsets": [0, 0]})), 10
        )
    entry = {"dtype": "F32", "shape": [0, 1 << 20, 1 << 20], "data_offsets": [0, 0]}
    assert read_body(memoryview(one_tensor(entry)), 10)["w"].numel() == 0


def one_tensor(entry: object) -> bytes:
    text = json.dumps({"w": entry}).encode()
    return len(text).to_bytes(8, "little") + text


def test_limits_hold_before_anything_is_allocated() -> None:
    data = encode(update(tensors={"w": torch.zeros(1 << 18)}))
    for limits in (Limits(bytes=1000), Limits(header_bytes=10)):
        tracemalloc.start()
        with pytest.raises(MessageError):
            decode(data, limits)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 50_000
    with pytest.raises(MessageError, match="tensors=2, allowed 1"):
        decode(encode(update()), Limits(tensors=1))
    with pytest.raises(MessageError, match="too large"):
        pack(update(), limits=Limits(bytes=100))


def test_check_tensors_wants_the_models_names_shapes_types_and_finite_numbers() -> None:
    good = {"w": torch.ones(2, 2), "b": torch.zeros(2)}
    expected = signature(good)
    check_tensors(good, expected, max_norm=2.0)
    bad: list[tuple[dict[str, torch.Tensor], str]] = [
        ({"w": good["w"]}, "missing"),
        (good | {"c": torch.zeros(1)}, "unknown"),
        (good | {"w": torch.ones(4)}, "shape"),
        (good | {"w": torch.ones(2, 2).double()}, "dtype"),
        (good | {"w": torch.tensor([[1.0, float("nan")], [0, 0]])}, "NaN"),
        (good | {"b": torch.tensor([float("inf"), 0])}, "NaN or infinity"),
        (good | {"b": torch.tensor([1e30, 0])}, "norm=1e"),
        (good | {"b": torch.tensor([0.1, 0])}, "norm="),
    ]
    for tensors, reason in bad:
        with pytest.raises(MessageError, match=reason):
            check_tensors(tensors, expected, max_norm=2.0)
    check_tensors({"e": torch.zeros(0)}, {"e": ((0,), torch.float32)}, max_norm=0.0)


def only_message_errors(data: bytes) -> bool:
    """True if `data` decodes; anything but a MessageError would fail the test."""
    try:
        decode(data)
    except MessageError:
        return False
    return True


def mutated(data: bytes, source: random.Random) -> bytes:
    """Flips, cuts, insertions and splices."""
    changed = bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 4, 16))):
        place = source.randrange(len(changed))
        match source.randrange(5):
            case 0:
                changed[place] ^= 1 << source.randrange(8)
            case 1:
                changed[place] = source.randrange(256)
            case 2:
                del changed[place + 1 :]
            case 3:
                changed[place:place] = source.randbytes(source.randrange(1, 9))
            case 4:
                changed[place : place + 8] = source.choice(
                    (b"\xff" * 8, b"\0" * 8, b"-1e999,[", b'"NaN":{}')
                )
    return bytes(changed)


def kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_hundred_thousand_mutated_messages_only_raise_our_error() -> None:
    """Seed 20240607."""
    source = random.Random(20240607)
    plan: dict[str, Any] = {
        "sender": AGGREGATOR,
        "recipient": "b",
        "info": {"plan": {"a": [1, {"b": 2.5}]}},
    }
    seeds = [
        encode(update()),
        encode(update(kind="join", tensors={}, info={"rows": 10, "ledger_head": HEAD})),
        encode(update(kind="plan", tensors={}, **plan)),
    ]
    before = kilobytes()
    for number in range(100_000):
        only_message_errors(mutated(seeds[number % len(seeds)], source))
    assert kilobytes() - before < 64 * 1024


def test_mutated_bodies_under_a_matching_digest_only_raise_our_error() -> None:
    """Seed 7; the digest is made right again, so that the tensors' own checks are what is met."""
    source = random.Random(7)
    data = encode(update())
    length = 8 + int.from_bytes(data[4:8], "little")
    head, body = data[:length].decode("latin1"), data[length:]
    digest = hashlib.sha256(body).hexdigest()
    before, understood = kilobytes(), 0
    for _ in range(30_000):
        changed = mutated(body, source)
        fitting = (
            head.replace(digest, hashlib.sha256(changed).hexdigest()).encode("latin1") + changed
        )
        understood += only_message_errors(fitting)
    # numbers changed in place are a proper message: the loop does get as far as the tensors
    assert understood > 300
    assert kilobytes() - before < 64 * 1024


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert not only_message_errors(data)
    assert not only_message_errors(b"HDP\x01" + data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["schema", "run", "round", "sender", "recipient", "kind", "digest", "info"]),
    json_values,
)
def test_any_json_in_any_header_field_is_refused_or_understood(key: str, value: Any) -> None:
    only_message_errors(reheaded(encode(update()), **{key: value}))


@settings(max_examples=200, deadline=None)
@given(json_values)
def test_any_plan_comes_back_or_is_refused_when_sent(value: Any) -> None:
    message = update(
        kind="plan", sender=AGGREGATOR, recipient="b", tensors={}, info={"plan": {"value": value}}
    )
    try:
        data = encode(message)
    except MessageError:
        return
    if only_message_errors(data):
        assert decode(data).info == message.info
