"""Secure normals drawn ahead of need by a background thread, so that a training step does not wait for them."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.gaussian import draw_in_background

if TYPE_CHECKING:
    from homo_dp.privacy.noise.source import NoiseSource


class BackgroundNormals:
    """Blocks of ``size`` standard normals of ``source``, at most ``depth`` of them drawn ahead.

    All users of one process that ask for the same source, size and type share one thread and its blocks: three hundred
    parties with one model hold ``depth`` blocks, not six hundred. A seeded source is drawn in ``take`` itself,
    since a thread would make the order of its draws depend on timing.

    Guarantees:
        - every block is handed out once, to one user, in one process: a forked child drops what its parent had ready;
        - the thread ends with its last user, whether that was closed or garbage collected.

    >>> from homo_dp.privacy.noise.source import secure_noise
    >>> with BackgroundNormals(secure_noise(), size=5) as ahead:
    ...     ahead.take().shape
    torch.Size([5])
    """

    def __init__(
        self, source: NoiseSource, size: int, dtype: torch.dtype = torch.float64, depth: int = 2
    ) -> None:
        if size < 1:
            raise PrivacyError(f"size={size} is below 1; give the number of normals of one step")
        if depth < 1:
            raise PrivacyError(f"depth={depth} is below 1; give the number of blocks to hold ready")
        self.private = source.private
        self.size = size
        self.cpu_seconds = 0.0
        self._source, self._dtype = source, dtype
        self._closed = False
        self._producer = _enter(source, size, dtype, depth) if source.private else None
        self._on_collect = (
            weakref.finalize(self, _Producer.leave, self._producer) if self._producer else None
        )

    def __repr__(self) -> str:
        return f"BackgroundNormals(size={self.size}, {self._source!r})"

    def take(self, more: int | None = None) -> Tensor:
        """The next block; waits only if none is ready. ``cpu_seconds`` grows by what drawing it cost the producer.

        ``more`` is how many will be taken after it, where that is known: no others are drawn, unless for other users.
        """
        if self._closed:
            raise PrivacyError(
                "closed=True leaves no normals to take; make a new BackgroundNormals"
            )
        if self._producer is None:
            block, cost = _draw(self._source, self.size, self._dtype)
        else:
            block, cost = self._producer.take(more)
        self.cpu_seconds += cost
        return block

    def close(self) -> None:
        """Stop drawing; if nobody else uses the thread, it has ended when this returns."""
        self._closed = True
        if (
            self._producer is not None
            and self._on_collect is not None
            and self._on_collect.detach()
        ):
            self._producer.leave().wait()
            self._producer.join_if_ended()

    def __enter__(self) -> BackgroundNormals:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_DRAW = object()
_STOP = object()
_THREAD_NAME = "homo_dp secure normals"
_PATIENCE_SECONDS = 1.0  # how long ``take`` waits before it checks that the thread is alive


class _Producer:
    """A thread that draws a block for each order, and counts its users without references to them.

    Users leave in finalisers, which may run at any point of the program, also while the lock is held. So leaving takes
    no lock: it is one more order in the queue, and SimpleQueue.put is safe in finalisers.
    """

    def __init__(self, source: NoiseSource, size: int, dtype: torch.dtype) -> None:
        self.source, self.size, self.dtype = source, size, dtype
        self.key = (id(source), size, dtype)
        self.users = 0
        self.depth = 0
        self.forget()

    def forget(self) -> None:
        """Reset blocks, orders and thread: a forked child must not use those of its parent."""
        self.orders: SimpleQueue[object] = SimpleQueue()
        self.blocks: SimpleQueue[tuple[Tensor, float] | Exception] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self.ordered = 0  # blocks that are drawn or will be, and not taken

    def enter(self, depth: int) -> None:
        """One more user; the caller holds the lock."""
        self.users += 1
        self.depth = max(self.depth, depth)
        if self.thread is not None:
            self.order(self.depth - self.ordered)
        self.start()

    def start(self) -> None:
        """Start the thread unless it was; the caller holds the lock."""
        if self.thread is None:
            self.order(self.depth)
            self.thread = threading.Thread(target=self.run, name=_THREAD_NAME, daemon=True)
            self.thread.start()

    def order(self, count: int) -> None:
        """Let so many blocks be drawn; the caller holds the lock."""
        for _ in range(count):
            self.orders.put(_DRAW)
            self.ordered += 1

    def take(self, more: int | None) -> tuple[Tensor, float]:
        with _lock:
            self.start()  # after a fork
            if more is None or self.users > 1 or self.ordered <= more or not self.ordered:
                self.order(1)
            self.ordered -= 1
        while True:
            try:
                block = self.blocks.get(timeout=_PATIENCE_SECONDS)
            except Empty:
                if self.thread is None or not self.thread.is_alive():
                    raise PrivacyError(
                        "closed=True leaves no normals to take; do not close what is in use"
                    ) from None
                continue
            if isinstance(block, Exception):
                raise block
            return block

    def leave(self) -> threading.Event:
        """Remove one user; the event is set once the thread has counted it."""
        left = threading.Event()
        self.orders.put(left)
        if (
            self.thread is None
        ):  # after a fork there is no thread to read this order until the next take
            left.set()
        return left

    def run(self) -> None:
        draw_in_background()
        orders, blocks = self.orders, self.blocks
        while (order := orders.get()) is not _STOP:
            if isinstance(order, threading.Event):
                if self.last_left(order):
                    return
                continue
            try:
                blocks.put(_draw(self.source, self.size, self.dtype))
            except Exception as error:  # raised again in the thread that takes the block
                blocks.put(error)

    def last_left(self, left: threading.Event) -> bool:
        with _lock:
            self.users -= 1
            if self.users == 0:
                _producers.pop(self.key, None)
        left.set()
        return self.users == 0

    def join_if_ended(self) -> None:
        if self.users == 0 and self.thread is not None:
            self.thread.join()


# All producers that have users, by source, size and type. The lock guards this and the counts of users.
_producers: dict[tuple[int, int, torch.dtype], _Producer] = {}
_lock = threading.Lock()


def _enter(source: NoiseSource, size: int, dtype: torch.dtype, depth: int) -> _Producer:
    with _lock:
        producer = _producers.get((id(source), size, dtype)) or _Producer(source, size, dtype)
        _producers[producer.key] = producer
        producer.enter(depth)
        return producer


def _draw(source: NoiseSource, size: int, dtype: torch.dtype) -> tuple[Tensor, float]:
    started = time.thread_time()
    block = source.normal([size], 1.0, dtype)
    return block, time.thread_time() - started


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for producer in list(_producers.values()):
        producer.forget()


def _at_exit() -> None:
    for producer in list(_producers.values()):
        producer.orders.put(_STOP)
    for thread in threading.enumerate():
        if thread.name == _THREAD_NAME:
            thread.join()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
