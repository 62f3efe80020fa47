"""An aggregator that lies to real sessions of parties about one masked sum, and what it holds in
the end.

Five parties, one may be missing and one colludes: the aggregator has all that the last of them
knows. Whatever it asks, of no honest party and round does it hold enough shares both of the own
seed and of the round key.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.secure_sums.party import SecureSumParty
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.federation.secure_sums.shares import SHARE_BYTES
from homo_dp.federation.sessions.crash_state import PartyFiles, PartyMemory, SumFiles
from homo_dp.federation.sessions.party_session import Party, PartyDuty, PartySession
from homo_dp.federation.sessions.plan import PlanJson, make_plan
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.federation.sessions.secure_messages import ABSENT, as_matrix, opened_places
from homo_dp.privacy.errors import LedgerError
from homo_dp.privacy.ledger import Ledger
from tests.federation.queues import Post
from tests.federation.small import RUN, small_config, small_mechanism, small_party, weights_message

NAMES = tuple("abcde")
CONFIG = small_config(
    privacy__mechanism="dp_fedsgd",
    train__local_steps=None,
    train__rounds=3,
    privacy__secure_aggregation=True,
    privacy__tolerated_dropouts=1,
)
IDENTITIES = {name: Ed25519PrivateKey.generate() for name in NAMES}
PUBLIC = {name: key.public_key().public_bytes_raw() for name, key in IDENTITIES.items()}
FOUR = {name: [other for other in NAMES if other != name] for name in NAMES}  # the sets without one


class Hostile:
    """Holds every message that parties sent, and asks what it likes."""

    def __init__(self, folder: Path, run: str = RUN) -> None:
        self.folder, self.post = folder, Post()
        self.roster = Roster(run, PUBLIC, 1, 1)
        self.sessions = {name: self.start(name) for name in NAMES}
        self.updates: dict[tuple[str, int], Message] = {}
        # what, round, of whom: shares by holder
        self.opened: dict[tuple[str, int, str], set[tuple[str, bytes]]] = {}

    def start(self, name: str) -> PartySession:
        """A party's session from what is in its folder."""
        folder = self.folder / name
        mechanism = small_mechanism(CONFIG, dict.fromkeys(NAMES, 20))
        found = mechanism.masked_sum
        assert found is not None
        member = SecureSumParty(self.roster, name, IDENTITIES[name].sign, self.files(name))
        sums = PartySums(RUN, member, found, rounds=3)

        def build(plan: PlanJson, found: object, state: PartyFiles | PartyMemory) -> Party:
            return small_party(
                CONFIG, folder, name, mechanism, state.outbox, sums=sums, keep=state.keep_fit
            )

        duty = PartyDuty(
            name, RUN, Ledger(folder / "ledger.sqlite"), None, build, None, lambda text: None
        )
        session = PartySession(duty, self.post.end(name), PartyFiles(folder / "state"))
        plan = make_plan(CONFIG, dict.fromkeys(NAMES, 20), {})
        session.take(Message(RUN, 0, AGGREGATOR, name, "plan", {}, {"plan": plan}))
        return session

    def files(self, name: str) -> SumFiles:
        (self.folder / name / "state").mkdir(parents=True, exist_ok=True)
        return SumFiles(self.folder / name / "state" / "sums")

    def ask(self, name: str, message: Message) -> Message:
        """The answer of a party: every message has one, if only a refusal."""
        before = len(self.post.sent)
        self.sessions[name].take(message)
        (answer,) = self.post.sent[before:]
        return answer

    def meet(self) -> None:
        def all_asked(
            kind: str, tensors: dict[str, dict[str, torch.Tensor]]
        ) -> dict[str, dict[str, torch.Tensor]]:
            answers = {
                name: self.ask(name, self.about(name, 0, kind, tensors[name])) for name in NAMES
            }
            assert all(answer.kind != "refused" for answer in answers.values())
            return {name: dict(answer.tensors) for name, answer in answers.items()}

        keys = all_asked("sum_start", {name: {} for name in NAMES})
        shown = {f"keys.{name}": made["keys"] for name, made in keys.items()}
        sealed = all_asked("sum_peers", dict.fromkeys(NAMES, shown))
        secrets = {
            name: {
                f"from.{peer}": made[f"for.{name}"]
                for peer, made in sealed.items()
                if f"for.{name}" in made
            }
            for name in NAMES
        }
        ready = all_asked("sum_secrets", secrets)
        rows = {
            name: {
                "shares": torch.stack(
                    [ready[peer]["shares"][FOUR[peer].index(name)] for peer in FOUR[name]]
                )
            }
            for name in NAMES
        }
        all_asked("sum_shares", rows)

    def about(
        self,
        name: str,
        number: int,
        kind: str,
        tensors: dict[str, torch.Tensor],
        **info: Sequence[str],
    ) -> Message:
        return Message(
            RUN,
            number,
            AGGREGATOR,
            name,
            kind,
            tensors,
            {key: list(names) for key, names in info.items()},
        )

    def update(self, name: str, number: int = 1) -> Message:
        answer = self.ask(name, weights_message(number, name))
        if answer.kind == "update":
            self.updates[name, number] = answer
        return answer

    def survivors(self, name: str, told: Sequence[str], number: int = 1) -> Message:
        rows = [
            self.updates[peer, number].tensors["shares"][FOUR[peer].index(name)]
            for peer in FOUR[name]
            if peer in told
        ]
        return self.ask(
            name,
            self.about(name, number, "survivors", {"shares": torch.stack(rows)}, survivors=told),
        )

    def signatures(
        self, name: str, shown: dict[str, bytes], told: Sequence[str], number: int = 1
    ) -> Message:
        tensors = {"signatures": as_matrix(list(shown.values()))}
        answer = self.ask(
            name, self.about(name, number, "signatures", tensors, signers=list(shown))
        )
        if answer.kind == "opening":
            text = answer.tensors["opening"].numpy().tobytes()
            for place, peer in enumerate(opened_places(self.roster, name, told)):
                share = text[SHARE_BYTES * place : SHARE_BYTES * (place + 1)]
                if share != ABSENT:
                    what = "own" if peer in told else "key"
                    self.opened.setdefault((what, number, peer), set()).add((name, share))
        return answer

    def signed(
        self, names: Sequence[str], told: Sequence[str], number: int = 1
    ) -> dict[str, bytes]:
        """The signatures that these parties give for a set."""
        answers = {name: self.survivors(name, told, number) for name in names}
        return {
            name: answer.tensors["signature"].numpy().tobytes()
            for name, answer in answers.items()
            if answer.kind == "signature"
        }

    def check(self) -> None:
        """The aggregator with its colluder e never has both secrets of an honest party in one
        round.
        """
        threshold = self.roster.share_threshold
        for number, peer in itertools.product((1, 2, 3), NAMES[:4]):
            held = {
                what: {holder for holder, _ in self.opened.get((what, number, peer), set())} | {"e"}
                for what in ("own", "key")
            }
            assert min(len(holders) for holders in held.values()) < threshold


@pytest.fixture
def hostile(tmp_path: Path) -> Hostile:
    made = Hostile(tmp_path)
    made.meet()
    return made


def refused(answer: Message, reason: str = "sums") -> bool:
    return answer.kind == "refused" and answer.info["reason"] == reason


def test_two_sets_told_to_two_halves_open_nothing(hostile: Hostile) -> None:
    for name in NAMES:
        assert hostile.update(name).kind == "update"
    first, second = FOUR["d"], FOUR["a"]
    one = hostile.signed(["a", "b"], first)
    other = hostile.signed(["c", "d"], second)
    # e signs whatever it is asked to
    for colluder, told, found in (("e", first, one), ("e", second, other)):
        made = SecureSumParty(
            hostile.roster, colluder, IDENTITIES[colluder].sign, hostile.files(f"{colluder}{told}")
        )
        found[colluder] = made.agree("1/update", told, {})
    assert len(one) == len(other) == 3 < hostile.roster.quorum
    for name, told, found in (
        ("a", first, one),
        ("b", first, one),
        ("c", second, other),
        ("d", second, other),
    ):
        assert refused(hostile.signatures(name, found, told))
        assert refused(hostile.signatures(name, {**one, **other}, told))
    for name, told in (("a", second), ("b", second), ("c", first), ("d", first)):
        assert refused(hostile.survivors(name, told))
        hostile.sessions[name] = hostile.start(name)  # killed and started again
        assert refused(hostile.survivors(name, told))
    assert hostile.opened == {}


def test_a_late_vector_finds_its_own_seed_closed(hostile: Hostile) -> None:
    """d is told to be missing, its round key is opened, and then its vector comes."""
    for name in FOUR["d"]:
        hostile.update(name)
    told = FOUR["d"]
    found = hostile.signed(told, told)
    for name in told:
        assert hostile.signatures(name, found, told).kind == "opening"
    assert len(hostile.opened["key", 1, "d"]) == 4
    assert hostile.update("d").kind == "update"
    everybody = list(NAMES)
    # its first set; nobody else signs it
    assert hostile.survivors("d", everybody).kind == "signature"
    for name in FOUR["d"]:
        assert refused(hostile.survivors(name, everybody))
    assert refused(hostile.signatures("d", found, everybody))
    assert ("own", 1, "d") not in hostile.opened
    hostile.check()


def test_signatures_of_one_round_open_no_other(hostile: Hostile) -> None:
    told = FOUR["d"]
    for number in (1, 2):
        for name in NAMES:
            hostile.update(name, number)
        found = hostile.signed(told, told, number)
        if number == 1:
            first = found
            for name in told:
                assert hostile.signatures(name, first, told).kind == "opening"
        else:
            for name in told:
                assert refused(hostile.signatures(name, first, told, 2))
    assert not any(number == 2 for _, number, _ in hostile.opened)
    hostile.check()


def test_what_comes_before_its_time_is_refused(hostile: Hostile) -> None:
    empty = {"signatures": as_matrix([])}
    assert refused(hostile.ask("a", hostile.about("a", 1, "signatures", empty, signers=[])))
    shares = {"shares": torch.zeros((4, 49), dtype=torch.uint8)}
    # nothing was paid
    assert refused(hostile.ask("a", hostile.about("a", 1, "survivors", shares, survivors=NAMES)))
    hostile.update("a")
    assert refused(hostile.ask("a", hostile.about("a", 1, "signatures", empty, signers=[])))
    assert refused(hostile.ask("a", hostile.about("a", 2, "survivors", shares, survivors=NAMES)))
    assert refused(
        hostile.ask(
            "a",
            hostile.about(
                "a", 0, "sum_shares", {"shares": torch.zeros((4, 115), dtype=torch.uint8)}
            ),
        )
    )


def test_other_weights_get_no_second_vector_under_the_same_masks(hostile: Hostile) -> None:
    first = hostile.update("a")
    again = hostile.update("a")
    assert all(torch.equal(tensor, again.tensors[name]) for name, tensor in first.tensors.items())
    other = {"linear.weight": torch.ones(1, 3), "linear.bias": torch.ones(1)}
    for _ in range(2):
        assert refused(hostile.ask("a", weights_message(1, "a", other)), "weights")
        hostile.sessions["a"] = hostile.start("a")


def test_a_folder_that_was_put_back_signs_no_second_set_of_a_round_that_is_over(
    hostile: Hostile,
) -> None:
    """The ledger, which no copy is put back of, shows that a later round was paid for."""
    for name in NAMES:
        hostile.update(name)
    sums = hostile.folder / "a" / "state" / "sums"
    shutil.copytree(sums, hostile.folder / "copy")
    told = FOUR["d"]
    found = hostile.signed(told, told)
    assert hostile.signatures("a", found, told).kind == "opening"
    hostile.update("a", 2)
    shutil.rmtree(sums)
    shutil.copytree(hostile.folder / "copy", sums)
    hostile.sessions["a"] = hostile.start("a")
    assert refused(hostile.survivors("a", FOUR["b"]))
    assert refused(hostile.survivors("a", told))


def test_a_folder_that_was_put_back_signs_no_second_set_of_the_newest_round(
    hostile: Hostile,
) -> None:
    """What it signed is on the ledger too: the same set again is signed, another one is not."""
    for name in NAMES:
        hostile.update(name)
    sums = hostile.folder / "a" / "state" / "sums"
    shutil.copytree(sums, hostile.folder / "copy")
    told = FOUR["d"]
    assert hostile.survivors("a", told).kind == "signature"
    shutil.rmtree(sums)
    shutil.copytree(hostile.folder / "copy", sums)
    hostile.sessions["a"] = hostile.start("a")
    assert refused(hostile.survivors("a", FOUR["b"]))
    found = hostile.signed(told, told)
    assert hostile.signatures("a", found, told).kind == "opening"


def test_a_lost_outbox_makes_no_second_vector(hostile: Hostile) -> None:
    hostile.update("a")
    shutil.rmtree(hostile.folder / "a" / "state" / "outbox")
    hostile.sessions["a"] = hostile.start("a")
    with pytest.raises(LedgerError, match="is not in the outbox"):
        hostile.update("a")
