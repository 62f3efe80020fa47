"""A transport of queues between threads, and sessions of a small federation on it."""

import queue
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import Mechanism, Weights
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message, check, decode, encode
from homo_dp.federation.sessions.aggregator_session import AggregatorSession, RunState
from homo_dp.federation.sessions.build import build_aggregator
from homo_dp.federation.sessions.crash_state import PartyFiles, PartyMemory, RunFolder
from homo_dp.federation.sessions.ledger_heads import LedgerHeads
from homo_dp.federation.sessions.members import Members, SessionRules
from homo_dp.federation.sessions.party_session import Party, PartyDuty, PartySession
from homo_dp.federation.sessions.plan import PlanJson, facts_for_aggregator, make_plan
from homo_dp.federation.sessions.secure_rounds import simulated_sums
from homo_dp.privacy.ledger import Ledger
from tests.federation.small import FEATURES, RUN, small_mechanism, small_party, zeros


class Post:
    """The boxes of everybody; messages travel as bytes and are kept until they are done."""

    def __init__(self) -> None:
        self.boxes: dict[str, queue.Queue[bytes]] = {}
        self.sent: list[Message] = []

    def box(self, name: str) -> "queue.Queue[bytes]":
        return self.boxes.setdefault(name, queue.Queue())

    def end(self, name: str) -> "End":
        return End(self, name)


class End:
    """One process's end."""

    def __init__(self, post: Post, name: str) -> None:
        self.post = post
        self.name = name

    def send(self, message: Message) -> None:
        check(message)
        self.post.sent.append(message)
        self.post.box(message.recipient).put(encode(message))

    def receive(self, timeout: float) -> Message | None:
        try:
            return decode(self.post.box(self.name).get(timeout=timeout))
        except queue.Empty:
            return None

    def done(self, message: Message) -> None:
        """Came once, does not come again."""

    def close(self) -> None:
        """Nothing to let go of."""


class SmallRun:
    """An aggregator and its parties, each with its own folder, started one by one in threads."""

    def __init__(self, folder: Path, config: Config, parties: Sequence[str], **rules: Any) -> None:
        self.folder = folder
        self.config = config
        self.post = Post()
        self.members = Members(
            RUN,
            parties,
            self.post.end(AGGREGATOR),
            LedgerHeads(folder / "heads.json"),
            lambda text: None,
        )
        self.rules = SessionRules(**({"min_parties": len(parties), "round_timeout": 30.0} | rules))
        self.sums = simulated_sums(RUN, parties, self._mechanism())
        self.threads: list[Thread] = []
        self.errors: dict[str, Exception] = {}

    def aggregate(self) -> AggregatorSession:
        """Run the aggregator to its end in this thread."""
        state = RunState(self.folder)
        saved = state.load()
        if saved is None:
            self.members.open(self.rules)
        plan = saved.plan if saved else self.plan()
        mechanism = self._mechanism()
        # as a process would
        mechanism.facts = facts_for_aggregator(self.config, plan, FEATURES + 1)
        sums = None if self.sums is None else self.sums[0]
        aggregator = build_aggregator(self.config, RUN, zeros(), mechanism, None, sums)
        session = AggregatorSession(
            aggregator, plan, self.members, self.rules, state, lambda report, row: row
        )
        if saved is None:
            session.begin()
        else:
            session.resume(saved)
        session.run()
        return session

    def plan(self) -> PlanJson:
        return make_plan(
            self.config, dict.fromkeys(self.members.parties, None if self.sums is None else 20), {}
        )

    def _mechanism(self) -> Mechanism:
        return small_mechanism(self.config, dict.fromkeys(self.members.parties, 20))

    def party_session(self, name: str) -> PartySession:
        """A session of a party, from its folder."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        ledger = Ledger(folder / "ledger.sqlite")

        def build(plan: PlanJson, found: object, state: PartyFiles | PartyMemory) -> Party:
            if plan["version"] != 1:
                raise ConfigError("unknown plan")
            if self.sums is None:
                return small_party(
                    self.config, folder, name, outbox=state.outbox, keep=state.keep_fit
                )
            return small_party(
                self.config,
                folder,
                name,
                self._mechanism(),
                state.outbox,
                sums=self.sums[1][name],
                keep=state.keep_fit,
            )

        def measure(number: int, weights: Weights) -> dict[str, Any]:
            return {"norm": float(weights["linear.weight"].norm())}

        duty = PartyDuty(name, RUN, ledger, None, build, measure, lambda text: None, patience=30.0)
        return PartySession(
            duty, self.post.end(name), PartyFiles(RunFolder(folder / "state", RUN).path)
        )

    def start(self, name: str) -> None:
        """Run a party in a thread."""
        session = self.party_session(name)

        def work() -> None:
            try:
                session.run()
            except Exception as error:
                self.errors[name] = error

        thread = Thread(target=work, daemon=True)
        thread.start()
        self.threads.append(thread)

    def start_replying(self, name: str, tensors: Weights, run: str = RUN, since: int = 1) -> None:
        """A party that joins and answers every round (``since`` one) with these tensors,
        whatever is asked.
        """
        end = self.post.end(name)
        end.send(Message(RUN, 0, name, AGGREGATOR, "join", {}, {"rows": None, "ledger_head": None}))

        def work() -> None:
            while (message := end.receive(30)) is not None and message.kind != "finished":
                if message.kind == "weights" and message.round >= since:
                    end.send(
                        Message(
                            run,
                            message.round,
                            name,
                            AGGREGATOR,
                            "update",
                            tensors,
                            {"ledger_head": None},
                        )
                    )

        self.threads.append(Thread(target=work, daemon=True))
        self.threads[-1].start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()

    def of(self, kind: str, sender: str = AGGREGATOR) -> list[Message]:
        return [
            message
            for message in self.post.sent
            if message.kind == kind and message.sender == sender
        ]
