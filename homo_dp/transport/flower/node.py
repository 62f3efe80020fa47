"""A party's end of Flower: a socket on its own machine, to which the node's ClientApp brings sealed
messages.

A ClientApp is a fresh process for every message, and runs code that came over the network. So the
party is a process of its own, which stays: it has torch, its rows and its state loaded, and only
sealed bytes pass the socket. Whoever may connect can do what an operator of the SuperLink can:
delay, drop, and send what the seal refuses.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.protocol.refusals import Refusals
from homo_dp.federation.protocol.transport import superseded_by
from homo_dp.transport.flower.envelopes import (
    MOST_MESSAGES,
    Answer,
    SealedQuestion,
    receive_letter,
    send_letter,
    tag_of,
)
from homo_dp.transport.flower.unix_sockets import listen, note_end
from homo_dp.transport.sealing import Sealer, largest_sealed

log = logging.getLogger(__name__)

# seconds that a question waits for work to end; after that the answer says: in hand
ANSWERS_WITHIN: Final = 20.0
_CALLERS: Final = 4  # connections at once
_LAST_WORDS: Final = 5.0  # seconds that a party which ends waits for somebody to fetch what it said


class NodeTransport:
    """The messages of one party in one run, by way of a socket that ClientApps call.

    Guarantees:
        - the socket belongs to this user, or to one group that the config names;
        - an answer holds all that the session said to what came in the question, unless it takes
          longer than `ANSWERS_WITHIN`: then what is still in hand is named, and the rest comes with
          a later answer;
        - what was said is kept until somebody fetched it; what is lost on the way is asked for
          again, and the session says the same once more;
        - a party that ended with an error is started by nobody but its operator while the same
          Flower run goes on.
    """

    def __init__(self, path: Path, run: str, sealer: Sealer, group: str | None = None) -> None:
        self._path = path
        self._run = run
        self._sealer = sealer
        self._news = threading.Condition()
        self._inbox: deque[tuple[str, bytes]] = deque()
        self._in_hand: dict[str, None] = {}  # tags that the session took and has not finished
        self._tags: WeakKeyDictionary[Message, str] = WeakKeyDictionary()
        self._done: dict[str, None] = {}  # tags that nobody was told of yet
        self._said: list[tuple[Message, bytes]] = []
        self._waiting = False  # whether the session waits for a message
        self._wake = False  # whether somebody asks what this party has to say
        self._closed = False
        self._finished = False  # whether the final weights are here
        self._job = ""  # Flower's run from which the last question came
        self._callers = threading.BoundedSemaphore(_CALLERS)
        self._talking = 0
        self.refusals = Refusals(sealer.allowed)
        self._listener = listen(path, group)
        threading.Thread(target=self._accept, daemon=True, name="homo_dp-node").start()

    def send(self, message: Message) -> None:
        """Seal `message` and keep it until a ClientApp fetches it."""
        if message.run != self._run:
            raise MessageError(
                f"run={message.run!r} is not {self._run!r}, which this transport serves"
            )
        sealed = b"".join(self._sealer.seal(message).pieces)
        kinds = superseded_by(message.kind)
        if (
            message.kind != "refused"
        ):  # an answer says that this party is there; a join beside it would be answered with
            # the same question again, which costs the party a turn in every round
            kinds = (*kinds, "join")
        with self._news:
            self._said = [
                (said, data)
                for said, data in self._said
                if said.kind not in kinds or said.round > message.round
            ]
            self._said.append((message, sealed))
            self._news.notify_all()

    def receive(self, timeout: float) -> Message | None:
        """The next message that came; None after `timeout` seconds, or when a ClientApp asks
        whether this party is there.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._news:
                self._waiting = True
                self._news.notify_all()
                self._news.wait_for(
                    lambda: self._wake or bool(self._inbox), max(0.0, deadline - time.monotonic())
                )
                self._waiting = self._wake = False
                if not self._inbox:
                    return None
                tag, sealed = self._inbox.popleft()
                self._in_hand[tag] = None
            try:
                message = self._sealer.open_bytes(sealed)
                if message.run != self._run:
                    raise MessageError(f"it is of run {message.run!r}, not of {self._run!r}")
            except MessageError as refusal:
                self.refusals.note("aggregator", f"message {tag}", refusal)
                self._finish(tag)
                continue
            self._tags[message] = tag
            return message

    def done(self, message: Message) -> None:
        """Say that a message was dealt with: the next answer tells."""
        self._finished |= message.kind == "finished"
        tag = self._tags.pop(message, None)
        if tag is not None:
            self._finish(tag)

    def close(self) -> None:
        """Let the last words be fetched, then take the socket away."""
        with self._news:
            self._closed = True
            self._news.notify_all()
            self._news.wait_for(lambda: not self._said and not self._talking, _LAST_WORDS)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
        failure = sys.exc_info()[1]  # of the session: it is closed while that one is on its way
        if failure is not None and not isinstance(failure, KeyboardInterrupt):
            note_end(self._path, self._job)

    def _finish(self, tag: str) -> None:
        with self._news:
            self._in_hand.pop(tag, None)
            self._done[tag] = None
            while len(self._done) > MOST_MESSAGES:
                self._done.pop(next(iter(self._done)))
            self._news.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._callers.acquire()
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with self._news:
            self._talking += 1
        try:
            with connection:
                connection.settimeout(60)
                most = 4 * largest_sealed(self._sealer.limits)
                self._reply(connection, SealedQuestion.of(receive_letter(connection, most)))
        except (OSError, MessageError) as error:
            log.warning("a ClientApp at %s: %s", self._path, error)
        finally:
            self._callers.release()
            with self._news:
                self._talking -= 1
                self._news.notify_all()

    def _reply(self, connection: socket.socket, question: SealedQuestion) -> None:
        if question.run != self._run:
            send_letter(connection, Answer("other_run"))
            return
        self._job = question.job
        self._put(question)
        with self._news:
            self._news.wait_for(self._is_quiet, ANSWERS_WITHIN)
            said, done = self._said[:MOST_MESSAGES], tuple(self._done)
            held = (*(tag for tag, _ in self._inbox), *self._in_hand)
        state = "running" if not self._closed else "over" if self._finished else "ended"
        send_letter(connection, Answer(state, tuple(data for _, data in said), done, held))
        with self._news:  # written whole; what a caller loses after that is asked for again
            self._said = [item for item in self._said if item not in said]
            self._done = {tag: None for tag in self._done if tag not in done}

    def _put(self, question: SealedQuestion) -> None:
        with self._news:
            known = {tag for tag, _ in self._inbox} | set(self._in_hand)
            for sealed in question.sealed:
                tag = tag_of(sealed)
                if tag not in known and len(self._inbox) < MOST_MESSAGES:
                    self._inbox.append((tag, sealed))
                    self._done.pop(tag, None)
            # A session that is told nothing says that it is there: so the ServerApp learns which
            # node is whose.
            self._wake = not question.sealed and self._waiting and not self._said
            self._news.notify_all()

    def _is_quiet(self) -> bool:
        """Whether nothing more comes of what is here: all is done, or the session waits for
        something else.
        """
        if self._closed:
            return True
        if self._inbox or self._wake:
            return False
        return self._waiting or (not self._in_hand and bool(self._done))
