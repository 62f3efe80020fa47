"""Bytes that no two draws, threads or processes share."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator

import numpy as np
import torch

from homo_dp.privacy.noise.keystream import (
    SEED_BYTES,
    SLACK_BYTES,
    Keystream,
    RepeatableKeystream,
    forks,
)
from tests.privacy.noise_checks import in_forked_child


def _stream() -> Keystream:
    return Keystream(lambda: os.urandom(SEED_BYTES))


def test_no_byte_is_handed_out_twice() -> None:
    """Twenty blocks of 16 bytes, equal by chance once in 1e36."""
    stream = _stream()
    drawn = [stream.read(16) for _ in range(10)] + [stream.words(2).tobytes() for _ in range(10)]
    assert len(set(drawn)) == 20


def test_the_same_seed_gives_the_same_bytes_however_they_are_read() -> None:
    one, other = (RepeatableKeystream(lambda: b"s" * SEED_BYTES) for _ in range(2))
    out = np.zeros(100 + SLACK_BYTES, np.uint8)
    one.fill(out, 100)
    assert out[:100].tobytes() == other.read(40) + other.read(60)


def test_threads_share_no_bytes() -> None:
    stream, found = _stream(), list[bytes]()

    def work() -> None:
        found.extend(stream.read(16) for _ in range(200))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 800


def test_every_draw_has_a_key_of_its_own() -> None:
    seeds = [bytes([number]) * SEED_BYTES for number in range(3)]
    asked = iter(seeds)
    stream = Keystream(lambda: next(asked))
    drawn = [stream.read(32), stream.words(4).tobytes(), stream.read(32)]
    assert drawn == [Keystream(lambda seed=seed: seed).read(32) for seed in seeds]  # type: ignore[misc]


def test_a_forked_child_asks_for_a_seed_of_its_own() -> None:
    seeds: Iterator[bytes] = iter([b"a" * SEED_BYTES, b"b" * SEED_BYTES])
    stream, before = RepeatableKeystream(lambda: next(seeds)), forks()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, stream.read(32) + bytes([forks() - before]))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        theirs = pipe.read()
    assert theirs[:32] == Keystream(lambda: b"b" * SEED_BYTES).read(32)
    assert theirs[32] == 1
    assert stream.read(32) != theirs[:32]


def test_a_fork_outside_python_is_counted() -> None:
    before = forks()
    found = in_forked_child(lambda: torch.tensor([forks()]), ctypes.PyDLL(None).fork)
    assert found.tolist() == [before + 1]
    assert forks() == before


def test_keystream_is_aes_ctr() -> None:
    """NIST SP 800-38A, F.5.1 (CTR-AES128): the output blocks of the first two counters."""
    seed = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c" + "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    expected = bytes.fromhex(
        "ec8cdf7398607cb0f2d21675ea9ea1e4" + "362b7c3c6773516318a077d7fc5073ae"
    )
    assert Keystream(lambda: seed).read(32) == expected
    assert Keystream(lambda: seed).words(4).tobytes() == expected


def test_a_long_fill_continues_one_stream() -> None:
    seed = os.urandom(SEED_BYTES)
    long = Keystream(lambda: seed).words(300_000)
    parts = RepeatableKeystream(lambda: seed)
    assert (np.concatenate([parts.words(size) for size in (1, 131_072, 168_927)]) == long).all()
