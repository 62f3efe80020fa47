"""Noise drawn ahead is still noise drawn once: bounded, shared, gone with its users, and not carried over a fork."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.background_normals import _THREAD_NAME
from homo_dp.privacy.noise.source import BackgroundNormals, SecureNoise, SeededNoise, secure_noise
from tests.privacy.broken_noise import BufferThatSurvivesFork, FailingNoise, HalfNoise
from tests.privacy.noise_checks import (
    CheckFailed,
    check_independent,
    check_normality,
    check_variance,
    in_forked_child,
)

PATIENCE = 60.0  # seconds that a thread may take to end before a test calls it stuck


class CountingNoise(SecureNoise):
    """Secure noise that counts the blocks drawn from it."""

    blocks = 0

    def normal(
        self, shape: Sequence[int], std: float, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        self.blocks += 1
        return super().normal(shape, std, dtype)


def producers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == _THREAD_NAME}


def take_many(ahead: BackgroundNormals | BufferThatSurvivesFork, count: int = 2) -> Tensor:
    return torch.cat([ahead.take() for _ in range(count)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_are_standard_normals(dtype: torch.dtype) -> None:
    with BackgroundNormals(secure_noise(), 10_007, dtype) as ahead:
        values = take_many(ahead, 10)
    assert values.dtype == dtype
    assert len(values) == 100_070
    check_variance(values, 1.0)
    check_normality(values, 1.0)


def test_the_check_sees_half_noise_drawn_ahead() -> None:
    with (
        BackgroundNormals(HalfNoise(), 1000) as ahead,
        pytest.raises(CheckFailed, match="variance"),
    ):
        check_variance(ahead.take(), 1.0)


def test_no_block_is_handed_out_twice() -> None:
    with (
        BackgroundNormals(secure_noise(), 1000, torch.float64) as one,
        BackgroundNormals(secure_noise(), 1000, torch.float64) as other,
        ThreadPoolExecutor(4) as pool,
    ):
        taken = list(pool.map(lambda i: (one if i % 2 else other).take(), range(40)))
    check_independent(*taken)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_than_depth_blocks_are_drawn_ahead(depth: int) -> None:
    source = CountingNoise()
    with BackgroundNormals(source, 100, depth=depth) as ahead:
        take_many(ahead, 7)
    assert 7 <= source.blocks <= 7 + depth


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_more_blocks_are_drawn_than_will_be_taken(depth: int) -> None:
    source = CountingNoise()
    with BackgroundNormals(source, 100, depth=depth) as ahead:
        drawn = [ahead.take(more) for more in (4, 3, 2, 1, 0)]
    assert source.blocks == 5
    assert len({float(block[0]) for block in drawn}) == 5


def test_a_block_after_the_last_one_is_drawn() -> None:
    with BackgroundNormals(CountingNoise(), 100, depth=2) as ahead:
        drawn = [ahead.take(0) for _ in range(5)]
    assert len({float(block[0]) for block in drawn}) == 5


def test_the_last_block_of_one_user_leaves_others_their_depth() -> None:
    source = CountingNoise()
    with (
        BackgroundNormals(source, 100, depth=2) as one,
        BackgroundNormals(source, 100, depth=2) as other,
    ):
        one.take(0)
        one.take(0)
        other.take()
        assert other._producer is not None
        assert other._producer.ordered == 2
    assert 3 <= source.blocks <= 5


def test_many_users_share_one_thread_and_its_blocks() -> None:
    source = CountingNoise()
    before = producers()
    users = [BackgroundNormals(source, 100) for _ in range(300)]
    assert len(producers() - before) == 1
    for user in users[:10]:
        user.take()
    for user in users[:-1]:
        user.close()
    assert len(producers() - before) == 1
    users[-1].take()
    users[-1].close()
    assert producers() <= before
    assert source.blocks <= 11 + 2


def test_a_deeper_user_deepens_what_is_shared() -> None:
    source = CountingNoise()
    with (
        BackgroundNormals(source, 100, depth=1) as shallow,
        BackgroundNormals(source, 100, depth=4) as deep,
    ):
        shallow.take()
        deep.take()
    assert 2 <= source.blocks <= 2 + 4


def test_closing_ends_the_thread_and_is_final() -> None:
    before = producers()
    ahead = BackgroundNormals(SecureNoise(), 100)
    (thread,) = producers() - before
    ahead.close()
    ahead.close()
    assert not thread.is_alive()
    with pytest.raises(PrivacyError, match="closed=True"):
        ahead.take()


def test_an_error_in_the_user_closes_too() -> None:
    before = producers()
    with (
        pytest.raises(RuntimeError, match="training failed"),
        BackgroundNormals(SecureNoise(), 100),
    ):
        raise RuntimeError("training failed")
    assert producers() <= before


def test_the_thread_ends_when_its_user_is_garbage_collected() -> None:
    before = producers()
    ahead = BackgroundNormals(SecureNoise(), 100)
    (thread,) = producers() - before
    del ahead
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_forked_child_takes_nothing_that_its_parent_had_ready() -> None:
    with BackgroundNormals(secure_noise(), 1000, torch.float64) as ahead:
        ahead.take()
        children = [in_forked_child(lambda: take_many(ahead, 3)) for _ in range(2)]
        check_independent(take_many(ahead, 3), *children)


def test_a_forked_child_has_no_thread_until_it_takes() -> None:
    with BackgroundNormals(secure_noise(), 100) as ahead:
        assert in_forked_child(lambda: torch.tensor([len(producers())])).tolist() == [0]

        def take_and_close() -> Tensor:
            ahead.take()
            running = len(producers())
            ahead.close()
            return torch.tensor([running, len(producers())])

        assert in_forked_child(take_and_close).tolist() == [1, 0]
        ahead.take()


def test_the_fork_check_sees_a_buffer_that_survives() -> None:
    ahead = BufferThatSurvivesFork(secure_noise(), 1000)
    with pytest.raises(CheckFailed, match="two streams"):
        check_independent(in_forked_child(lambda: take_many(ahead)), take_many(ahead))


def test_a_source_that_fails_is_heard_by_the_one_who_takes() -> None:
    with BackgroundNormals(FailingNoise(), 100) as ahead:
        for _ in range(4):
            with pytest.raises(PrivacyError, match="entropy=0"):
                ahead.take()


def test_the_cost_of_drawing_is_reported() -> None:
    with BackgroundNormals(secure_noise(), 200_000) as ahead:
        assert ahead.cpu_seconds == 0
        ahead.take()
        first = ahead.cpu_seconds
        ahead.take()
        assert 0 < first < ahead.cpu_seconds


def test_a_seeded_source_stays_repeatable_next_to_other_draws() -> None:
    before = producers()

    def run() -> list[Tensor]:
        source = SeededNoise(9)
        with BackgroundNormals(source, 50) as ahead:
            assert producers() <= before
            return [draw for _ in range(5) for draw in (ahead.take(), source.choice(100, 5))]

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("size", "depth", "name"), [(0, 2, "size=0"), (10, 0, "depth=0")])
def test_empty_blocks_and_empty_buffers_are_refused(size: int, depth: int, name: str) -> None:
    with pytest.raises(PrivacyError, match=name):
        BackgroundNormals(secure_noise(), size, depth=depth)


def test_a_process_that_forgets_to_close_still_ends_quietly() -> None:
    code = (
        "import torch; from homo_dp.privacy.noise.source import BackgroundNormals, secure_noise;"
        "a = BackgroundNormals(secure_noise(), 100_000, torch.float64); a.take();"
        "b = BackgroundNormals(secure_noise(), 10); del b"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
