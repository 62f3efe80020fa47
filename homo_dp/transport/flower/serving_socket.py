"""The socket of a party that serves on Flower: ClientApps of all runs call it, and each run has a
process behind it.

Where the SuperNode runs as another user than the party, its ClientApp can start nothing: it knows
this socket alone.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from homo_dp.core.errors import MessageError
from homo_dp.transport.flower.envelopes import Answer, SealedQuestion, receive_letter, send_letter
from homo_dp.transport.flower.relay import READS_WITHIN, exchange
from homo_dp.transport.flower.unix_sockets import connect, listen

log = logging.getLogger(__name__)

_CALLERS: Final = 16  # connections at once
_STARTS_WITHIN: Final = 10.0  # seconds until the answer says that the process is still starting
_PAUSE: Final = 0.1


class ServingSocket:
    """Passes each question to the process of its run, and the answer back.

    Guarantees:
        - no seal is opened and nothing is kept: what a ClientApp brought goes to the process, whose
          answer goes back;
        - of a run without a process the answer is the word of `without_process`, which alone
          decides about starts.
    """

    def __init__(
        self,
        path: Path,
        group: str | None,
        most_bytes: int,
        place: Callable[[str], Path],
        without_process: Callable[[str], str],
    ) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._place = place
        self._without_process = without_process
        self._callers = threading.BoundedSemaphore(_CALLERS)
        self._listener = listen(path, group)
        threading.Thread(target=self._accept, daemon=True, name="homo_dp-serving").start()

    def close(self) -> None:
        """Take the socket away."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _accept(self) -> None:
        while True:
            self._callers.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(READS_WITHIN)
                send_letter(
                    connection,
                    self._answer(SealedQuestion.of(receive_letter(connection, self._most_bytes))),
                )
        except (OSError, MessageError) as error:
            log.warning("a ClientApp at %s: %s", self._path, error)
        finally:
            self._callers.release()

    def _answer(self, question: SealedQuestion) -> Answer:
        deadline = time.monotonic() + _STARTS_WITHIN
        while True:
            place = self._place(question.run)
            with (
                contextlib.suppress(OSError, MessageError),
                connect(place, READS_WITHIN) as process,
            ):
                return exchange(process, question)
            word = self._without_process(question.run)
            if word != "starting" or time.monotonic() > deadline:
                return Answer(word)
            time.sleep(_PAUSE)
