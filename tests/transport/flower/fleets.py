"""A fleet for tests: nodes are sockets of this machine, and a question can be lost on its way
there or back.
"""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from homo_dp.transport.flower.envelopes import Answer, SealedQuestion
from homo_dp.transport.flower.node import NodeTransport
from homo_dp.transport.flower.relay import PartyPlace, carry
from tests.transport.parts import sealer


class SocketFleet:
    """Carries questions to sockets in threads, as nodes do; `lose` is how often one is lost,
    there or back.
    """

    def __init__(self, nodes: dict[int, Path], lose: float = 0.0, seed: int = 0) -> None:
        self.places = dict(nodes)
        self.lose = lose
        self.pushed: list[tuple[int, SealedQuestion]] = []
        self.answers: list[Answer] = []
        self._chance = random.Random(seed)
        self._back: dict[str, Answer | None] = {}
        self._lock = threading.Lock()
        self._count = 0

    def nodes(self) -> list[int]:
        return list(self.places)

    def push(self, questions: Sequence[tuple[int, SealedQuestion]]) -> list[str | None]:
        tickets: list[str | None] = []
        for node, question in questions:
            self._count += 1
            ticket = f"ticket-{self._count}"
            tickets.append(ticket)
            self.pushed.append((node, question))
            there, back = self._chance.random() >= self.lose, self._chance.random() >= self.lose
            threading.Thread(
                target=self._carry, args=(ticket, node, question, there, back), daemon=True
            ).start()
        return tickets

    def pull(self, tickets: Sequence[str]) -> list[tuple[str, Answer | None]]:
        with self._lock:
            return [(ticket, self._back.pop(ticket)) for ticket in tickets if ticket in self._back]

    def _carry(
        self, ticket: str, node: int, question: SealedQuestion, there: bool, back: bool
    ) -> None:
        answer = (
            carry(question, PartyPlace(self.places[node]))
            if there and node in self.places
            else None
        )
        with self._lock:
            if answer is not None:
                self.answers.append(answer)
            self._back[ticket] = answer if back else None


@contextmanager
def party(folder: Path, name: str = "bank_a") -> Iterator[NodeTransport]:
    made = NodeTransport(folder / f"{name}.sock", "demo", sealer(name))
    try:
        yield made
    finally:
        made.close()
