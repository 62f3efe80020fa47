"""Messages that were refused: counted by sender, and logged so that no sender can fill the log."""

import logging
from collections import Counter
from collections.abc import Container
from typing import Final

from homo_dp.core.errors import one_line

log = logging.getLogger(__name__)

_EACH: Final = 10  # so many of a sender get a line of their own; then one line at 100, 1000, ...
STRANGERS: Final = "strangers"


class Refusals:
    """What one process has refused since it was started.

    Guarantees:
        - a sender causes at most ten lines and one more for each power of ten, whatever it sends;
        - names and reasons reach the log as one printable line;
        - senders that are on no list, and messages whose signature was not checked, share one
          counter, so that made-up names take no memory and no party is named for what others sent.
    """

    def __init__(self, known: Container[str]) -> None:
        self._known = known
        self.counts: Counter[str] = Counter()

    def note(self, sender: str | None, what: object, why: object, count: int = 1) -> None:
        """Count refused messages, and log the first of them unless there were many.

        Args:
            sender: who signed them; None where no signature was checked.
            what: the first of them.
            why: the reason.
            count: how many there are.
        """
        key = sender if sender is not None and sender in self._known else STRANGERS
        before = self.counts[key]
        self.counts[key] = now = before + count
        if before < _EACH:
            log.warning(
                "refused %s%s: %s",
                one_line(what),
                f" and {count - 1} more" if count > 1 else "",
                one_line(why),
            )
        elif len(str(now)) > len(str(before)):  # another power of ten
            log.warning(
                "refused %d messages of %s so far, the last: %s", now, one_line(key), one_line(why)
            )
