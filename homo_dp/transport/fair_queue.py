"""A queue between threads that takes senders in turn, one item each, so that a sender of many
delays only itself.
"""

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items by sender.

    >>> queue = FairQueue[str]()
    >>> for sender, item in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")):
    ...     queue.put(sender, item)
    >>> [queue.get(0) for _ in range(5)]
    ['a1', 'b1', 'a2', 'a3', None]
    """

    def __init__(self) -> None:
        # in the order of their turns; no deque in it is empty
        self._waiting: dict[str, deque[Item]] = {}
        self._news = threading.Condition()

    def put(self, sender: str, item: Item) -> None:
        """Add an item behind those of its sender."""
        with self._news:
            self._waiting.setdefault(sender, deque()).append(item)
            self._news.notify()

    def get(self, timeout: float) -> Item | None:
        """The next item; None after `timeout` seconds."""
        with self._news:
            if not self._news.wait_for(lambda: bool(self._waiting), timeout):
                return None
            sender = next(iter(self._waiting))
            items = self._waiting.pop(sender)
            item = items.popleft()
            if items:
                self._waiting[sender] = items  # at the end of the turns
            return item
