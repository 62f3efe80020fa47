"""Secure normals drawn ahead of need by one background thread, so that a training step does not wait for them."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError

if TYPE_CHECKING:
    from homo_dp.privacy.noise import NoiseSource


class AheadNormals:
    """Blocks of ``size`` standard normals of ``source``, at most ``depth`` of them drawn ahead.

    All users of one process that ask for the same source, size and type share one thread and its blocks: three hundred
    parties with one model hold ``depth`` blocks, not six hundred. A seeded source is drawn in ``take`` itself,
    since a thread would make the order of its draws depend on timing.

    Guarantees:
        - every block is handed out once, to one user, and in one process: a fork drops the blocks of the child;
        - the thread ends with its last user, whether that was closed or garbage collected.

    >>> from homo_dp.privacy.noise import secure_noise
    >>> with AheadNormals(secure_noise(), size=5) as ahead:
    ...     ahead.take().shape
    torch.Size([5])
    """

    def __init__(self, source: NoiseSource, size: int, dtype: torch.dtype = torch.float32, depth: int = 2) -> None:
        if size < 1:
            raise PrivacyError(f"size={size} is below 1; give the number of normals of one step")
        if depth < 1:
            raise PrivacyError(f"depth={depth} is below 1; give the number of blocks to hold ready")
        self.private = source.private
        self.size = size
        self.cpu_seconds = 0.0
        self._source, self._dtype = source, dtype
        self._closed = False
        self._producer = _join(source, size, dtype, depth) if source.private else None
        self._leave = weakref.finalize(self, _leave, self._producer) if self._producer else None

    def __repr__(self) -> str:
        return f"AheadNormals(size={self.size}, {self._source!r})"

    def take(self) -> Tensor:
        """The next block; waits only if none is ready. ``cpu_seconds`` grows by what drawing it cost the producer."""
        if self._closed:
            raise PrivacyError("closed=True has no more normals; make a new AheadNormals")
        if self._producer is None:
            block, cost = _draw(self._source, self.size, self._dtype)
        else:
            block, cost = self._producer.take()
        self.cpu_seconds += cost
        return block

    def close(self) -> None:
        """Stop drawing; if nobody else uses the thread, it has ended when this returns."""
        self._closed = True
        if self._producer is not None and self._leave is not None and self._leave.detach():
            _leave(self._producer)
            self._producer.join()

    def __enter__(self) -> AheadNormals:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Producer:
    """One thread and its blocks. It knows how many users it has, not who they are, so it keeps none of them alive."""

    def __init__(self, source: NoiseSource, size: int, dtype: torch.dtype) -> None:
        self.source, self.size, self.dtype = source, size, dtype
        self.depth = 0
        self.users = 0
        self.reset()

    @property
    def key(self) -> tuple[int, int, torch.dtype]:
        return id(self.source), self.size, self.dtype

    def reset(self) -> None:
        """Forget blocks, lock and thread: all that a forked child must not go on with."""
        # Re-entrant, since a garbage collection inside may finalise a user, which takes this lock again.
        self.changed = threading.Condition(threading.RLock())
        self.blocks: deque[tuple[Tensor, float]] = deque()
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None

    def start(self) -> None:
        """Start the thread unless it runs; the caller holds ``changed``."""
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="homo_dp secure normals", daemon=True)
            self.thread.start()

    def take(self) -> tuple[Tensor, float]:
        with self.changed:
            self.start()
            while not self.blocks:
                if self.error is not None:
                    raise self.error
                self.changed.wait()
            taken = self.blocks.popleft()
            self.changed.notify_all()
            return taken

    def run(self) -> None:
        try:
            while True:
                with self.changed:
                    while self.users and len(self.blocks) >= self.depth:
                        self.changed.wait()
                    if not self.users:
                        return
                block = _draw(self.source, self.size, self.dtype)
                with self.changed:
                    self.blocks.append(block)
                    self.changed.notify_all()
        except Exception as error:
            with self.changed:
                self.error = error
                self.changed.notify_all()

    def join(self) -> None:
        thread = self.thread
        if not self.users and thread is not None and thread is not threading.current_thread():
            thread.join()


# Written under the lock; users leave from finalisers, hence re-entrant.
_producers: dict[tuple[int, int, torch.dtype], _Producer] = {}
_lock = threading.RLock()


def _join(source: NoiseSource, size: int, dtype: torch.dtype, depth: int) -> _Producer:
    with _lock:
        producer = _producers.get((id(source), size, dtype)) or _Producer(source, size, dtype)
        _producers[producer.key] = producer
        with producer.changed:
            producer.users += 1
            producer.depth = max(producer.depth, depth)
            producer.start()
        return producer


def _leave(producer: _Producer) -> None:
    with _lock, producer.changed:
        producer.users -= 1
        if not producer.users:
            producer.blocks.clear()
            _producers.pop(producer.key, None)
        producer.changed.notify_all()


def _draw(source: NoiseSource, size: int, dtype: torch.dtype) -> tuple[Tensor, float]:
    started = time.thread_time()
    block = source.normal([size], 1.0, dtype)
    return block, time.thread_time() - started


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for producer in list(_producers.values()):
        producer.reset()


def _at_exit() -> None:
    for producer in list(_producers.values()):
        with producer.changed:
            producer.users = 0
            producer.changed.notify_all()
        producer.join()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
