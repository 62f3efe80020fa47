"""Senders are served in turn."""

from __future__ import annotations

import threading

from homo_dp.transport.fair_queue import FairQueue


def test_a_flood_of_one_does_not_delay_another() -> None:
    queue = FairQueue[int]()
    for number in range(10_000):
        queue.put("loud", number)
    queue.put("quiet", -1)
    assert -1 in [queue.get(0), queue.get(0)]
    assert queue.get(0) == 1  # the loud one's own order is kept


def test_who_waits_is_woken() -> None:
    queue, found = FairQueue[str](), list[str | None]()
    waiting = threading.Thread(target=lambda: found.append(queue.get(20)))
    waiting.start()
    queue.put("a", "news")
    waiting.join(20)
    assert found == ["news"]


def test_an_empty_queue_gives_none_in_time() -> None:
    assert FairQueue[str]().get(0.01) is None
