"""Work on rows that was not charged leaves no trace and no word, whatever is sent and whenever a
process ends.

``Carrying`` makes traces visible: what a fit leaves in its optimiser or in the mechanism moves
every later release.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import opacus  # noqa: F401  (takes seconds that no round of these tests should wait for)
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from homo_dp.config.schema import Config
from homo_dp.core import crash_points
from homo_dp.federation.mechanisms.base import FederationFacts, Release, Weights
from homo_dp.federation.mechanisms.dp_sgd import DpSgd
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message, encode
from homo_dp.federation.sessions import party as party_module
from homo_dp.federation.sessions.build import federation_facts, noise_source
from homo_dp.federation.sessions.crash_state import PartyFiles, PartyMemory, RunFolder, read_state
from homo_dp.federation.sessions.party_session import Party, PartyDuty, PartySession
from homo_dp.federation.sessions.plan import PlanJson, make_plan
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.noise.source import NoiseSource, SeededNoise
from tests.federation.queues import Post
from tests.federation.small import FEATURES, RUN, small_config, small_party, small_table, zeros

DEAD = 3.3e38  # a finite float32; a step of strong weight decay takes it over the largest
RAISES, DIVERGES = 0.5, 0.25  # a bias that an aggregator sends to a mechanism with these faults
ROUNDS = 3


class Carrying(DpSgd):
    """Has noise that only the round decides, remembers its releases, and fails for two values of
    a weight.
    """

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        super().__init__(config, facts, noise)
        self.carried = torch.zeros(1, FEATURES)
        self.fits = 0

    def before_fit(self, fit: LocalFit) -> None:
        self.noise, self._training = SeededNoise(fit.round_number), None
        super().before_fit(fit)

    def after_fit(self, fit: LocalFit) -> Release:
        release = super().after_fit(fit)
        self.fits += 1
        self.carried += release.tensors["linear.weight"]
        bias = float(fit.start["linear.bias"])
        if bias == RAISES:
            raise RuntimeError("a row of ward D did this")
        weight = (
            torch.full_like(self.carried, float("nan"))
            if bias == DIVERGES
            else self.carried.clone()
        )
        return replace(release, tensors={**release.tensors, "linear.weight": weight})

    def state(self) -> Weights:
        return {"carried": self.carried}

    def restore(self, state: Weights) -> None:
        self.carried = state.get("carried", self.carried).clone()


def carrying(**overrides: Any) -> tuple[Config, Carrying]:
    base = {"train__rounds": ROUNDS, "train__momentum": 0.9, "train__weight_decay": 0.01}
    config = small_config(**(base | overrides))
    return config, Carrying(
        config, federation_facts(config, {"a": 20}, FEATURES + 1), noise_source(config)
    )


class Life:
    """A party over all its processes: each has the folder of the one before and nothing else."""

    def __init__(self, folder: Path, **overrides: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.post = Post()
        self.overrides = overrides
        self.ends: list[BaseException] = []  # what a process ended with
        self._open()
        self.give(
            Message(
                RUN,
                0,
                AGGREGATOR,
                "a",
                "plan",
                {},
                {"plan": make_plan(carrying()[0], {"a": None}, {})},
            )
        )

    def _open(self) -> None:
        self.lock = RunFolder(self.folder / "state", RUN)
        config, mechanism = carrying(**self.overrides)

        def build(plan: PlanJson, found: object, state: PartyFiles | PartyMemory) -> Party:
            return small_party(
                config, self.folder, mechanism=mechanism, outbox=state.outbox, keep=state.keep_fit
            )

        def measure(number: int, weights: Weights) -> dict[str, Any]:
            return {}

        self.ledger = Ledger(self.folder / "ledger.sqlite")
        duty = PartyDuty(
            "a", RUN, self.ledger, None, build, measure, lambda text: None, max_refusals=50
        )
        self.session = PartySession(duty, self.post.end("a"), PartyFiles(self.lock.path))
        kept = read_state(self.folder / "state" / RUN / "plan.safetensors")
        if kept is not None:
            self.session._agree(kept[1]["plan"])

    def close(self) -> None:
        self.lock.close()
        self.ledger.close()
        if self.session.party is not None and self.session.party.ledger is not None:
            self.session.party.ledger.close()

    def give(self, message: Message, crash_at: str | None = None) -> None:
        """Let the process of now take a message; if that ends it, start the next one."""
        try:
            with crashing(crash_at):
                self.session.take(message)
        except (Killed, Exception) as end:
            self.ends.append(end)
            self.close()
            self._open()

    @property
    def charged(self) -> list[int]:
        return [row.round for row in self.ledger.rows()]

    def said(self) -> list[tuple[int, str, bytes]]:
        """What left, in order, without the head of the ledger, which is no function of rows but
        holds the time.
        """
        sent = [
            replace(message, info={**message.info, "ledger_head": None})
            for message in self.post.sent
        ]
        return [
            (message.round, message.kind, encode(message))
            for message in sent
            if message.kind != "join"
        ]

    def answers(self) -> dict[int, set[bytes]]:
        """All different messages by round that charged fits may have a part in."""
        found: dict[int, set[bytes]] = {}
        for number, kind, content in self.said():
            if kind == "update" or b"skipped" in content:
                found.setdefault(number, set()).add(content)
        return found


class Killed(BaseException):
    """The process ended here."""


@contextlib.contextmanager
def crashing(point: str | None) -> Iterator[None]:
    def kill(name: str, planned: tuple[str, int]) -> None:
        if name == planned[0]:
            raise Killed(name)

    with pytest.MonkeyPatch.context() as patch:
        if point is not None:
            patch.setattr(crash_points, "_planned", (point, 1))
            patch.setattr(crash_points, "_count", kill)
        yield


def asked(
    number: int, bias: float = 0.0, weight: float = 0.0, info: Mapping[str, Any] | None = None
) -> Message:
    tensors = {
        "linear.weight": torch.full((1, FEATURES), weight),
        "linear.bias": torch.tensor([bias]),
    }
    return Message(RUN, number, AGGREGATOR, "a", "weights", tensors, info or {})


def constant(number: int) -> bytes:
    """The one answer to a fit that fails."""
    return encode(
        Message(
            RUN, number, "a", AGGREGATOR, "refused", info={"reason": "skipped", "ledger_head": None}
        )
    )


POINTS = (
    *("party.received", "party.before_handle", "party.before_fit_state", "fit_state.before_rename"),
    *("fit_state.after_rename", "outbox.before_write", "outbox.after_rename", "outbox.after_put"),
    *(
        "ledger.before_commit",
        "ledger.after_commit",
        "ledger.charged",
        "outbox.after_charge",
        "party.after_handle",
    ),
    *("party.after_send", "party.after_done", "party_refusals.before_rename"),
)
GOOD = (0.0, 0.0, 0.0, 0.1)
steps = st.tuples(
    st.builds(
        asked,
        st.sampled_from([1, 1, 1, 2, 2, 3, 0, ROUNDS + 1]),
        st.sampled_from([*GOOD, RAISES, DIVERGES, DEAD, float("nan"), -2e6]),
        st.sampled_from([0.0, 1.0]),
    ),
    st.none() | st.sampled_from(POINTS),
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=3, max_size=10))
@example([(asked(1), "outbox.after_put"), (asked(1), None)])
@example([(asked(1, 0.1), "fit_state.after_rename"), (asked(2), None)])
@example([(asked(1), "ledger.after_commit"), (asked(1, 0.1), None), (asked(2), None)])
@example([(asked(1, DIVERGES), None), (asked(2), None)])
@example([(asked(1), None), (asked(2, RAISES), None), (asked(3), None)])
def test_what_leaves_is_a_function_of_charged_fits_only(
    sequence: Sequence[tuple[Message, str | None]],
) -> None:
    """Any messages and crashes, against a fresh party that saw only what was charged and
    released, with equal noise.
    """
    with tempfile.TemporaryDirectory() as folder:
        life, charged = Life(Path(folder) / "attacked"), list[Message]()
        for message, crash_at in sequence:
            before = len(life.charged)
            life.give(message, crash_at)
            charged += [message] * (len(life.charged) - before)
        for message in charged[-1:]:
            life.give(message)  # what was charged just before a crash leaves now
        fresh, failed = Life(Path(folder) / "fresh"), set[int]()
        for message in charged:
            if float(message.tensors["linear.bias"]) in (RAISES, DIVERGES):
                failed.add(message.round)
            else:
                fresh.give(message)
        assert life.charged == [message.round for message in charged]
        assert fresh.charged == [number for number in life.charged if number not in failed]
        for number, contents in life.answers().items():
            assert contents == ({constant(number)} if number in failed else fresh.answers()[number])
        life.close()
        fresh.close()


def test_the_property_can_fail() -> None:
    """Without the way back, a fit that failed moves the next release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Party, "_begin", lambda party: None)
        with pytest.raises(AssertionError):
            assert _after_a_failure() == _without_it()
    assert _after_a_failure() == _without_it()


def _after_a_failure() -> dict[str, list[float]]:
    config, mechanism = carrying()
    with tempfile.TemporaryDirectory() as folder:
        party = small_party(config, Path(folder), mechanism=mechanism)
        for bias in (RAISES, 0.0):
            with contextlib.suppress(RuntimeError):
                answer = party.handle(asked(1 if bias else 2, bias))
        assert answer is not None
        return {name: tensor.flatten().tolist() for name, tensor in answer.tensors.items()}


def _without_it() -> dict[str, list[float]]:
    config, mechanism = carrying()
    with tempfile.TemporaryDirectory() as folder:
        answer = small_party(config, Path(folder), mechanism=mechanism).handle(asked(2))
        assert answer is not None
        return {name: tensor.flatten().tolist() for name, tensor in answer.tensors.items()}


def test_weights_that_overflow_buy_no_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: a dead weight makes each update overflow, so that 1,000 fits end in one
    momentum under one charge.
    """
    # a plan with such a weight decay is refused, too
    monkeypatch.setattr(party_module, "_STABLE", 100.0)
    fits: list[int] = []
    fit = LocalFit.fit

    def counted(self: LocalFit, *arguments: Any) -> Release:
        fits.append(1)
        return fit(self, *arguments)

    monkeypatch.setattr(LocalFit, "fit", counted)
    life = Life(tmp_path / "a", train__weight_decay=20.0)
    for _ in range(20):
        life.give(asked(1, DEAD))
    assert fits == []
    life.give(asked(1))
    assert len(fits) == len(life.charged) == 1
    life.close()


def test_a_plan_that_makes_weights_grow_whatever_the_rows_are_is_refused(tmp_path: Path) -> None:
    for keys in (
        {"train__learning_rate": 6e37},
        {"train__weight_decay": 20.0},
        {"privacy__max_grad_norm": 1e30},
        {"train__learning_rate": 1e-3, "train__weight_decay": 1e6},
    ):
        config, mechanism = carrying(**keys)
        with pytest.raises(PrivacyError, match="refused"):
            small_party(config, tmp_path, mechanism=mechanism)


@pytest.mark.parametrize("bias", [RAISES, DIVERGES])
def test_a_fit_that_fails_is_charged_and_answered_with_a_constant(
    tmp_path: Path, bias: float
) -> None:
    life = Life(tmp_path / "a")
    for _ in range(3):
        life.give(asked(1, bias))
    assert life.charged == [1]
    # the operator's to see
    assert [type(end) for end in life.ends] == ([RuntimeError] if bias == RAISES else [])
    assert {kind for _, kind, _ in life.said()} == {"refused"}
    assert len(set(life.said())) == 1
    assert b"ward" not in life.said()[0][2]
    life.close()


def test_a_fit_that_fails_answers_the_same_for_neighbouring_tables(tmp_path: Path) -> None:
    said = []
    for rows in (20, 19):
        config, mechanism = carrying()
        party = small_party(
            config, tmp_path / str(rows), mechanism=mechanism, table=small_table(rows)
        )
        with pytest.raises(RuntimeError):
            party.handle(asked(1, RAISES))
        answer = party.handle(asked(1, RAISES))
        assert answer is not None
        said.append(encode(answer))
    assert said[0] == said[1]


@pytest.mark.parametrize("size", [1e6, 3.4e38])
def test_neighbouring_tables_get_the_same_kinds_of_messages_for_any_weights(
    tmp_path: Path, size: float
) -> None:
    """Finite weights near the end of float32 once gave updates for one table and refusals for
    its neighbour.
    """
    config = small_config(train__rounds=15, train__learning_rate=1e3, train__sample_rate=1.0)
    told: list[list[str]] = []
    for rows in (20, 19):
        party = small_party(config, tmp_path / str(rows), table=small_table(rows))
        generator, kinds = torch.Generator().manual_seed(1), []
        for number in range(1, 16):
            drawn = {
                name: (torch.rand(t.shape, generator=generator) * 2 - 1) * size
                for name, t in zeros().items()
            }
            try:
                answer = party.handle(Message(RUN, number, AGGREGATOR, "a", "weights", drawn))
                kinds.append("nothing" if answer is None else answer.kind)
            except ValueError as refusal:
                kinds.append(str(refusal))
        told.append(kinds)
    assert told[0] == told[1]
    assert set(told[0]) == {"update"} or all("max_weight" in text for text in told[0])


def test_a_second_message_for_a_round_is_refused_without_work_and_the_first_is_answered_again(
    tmp_path: Path,
) -> None:
    life = Life(tmp_path / "a")
    for message in (asked(1), asked(1, 0.1), asked(1, info={"clip_norm": 1.0}), asked(1)):
        life.give(message)
    life.close()
    life._open()
    life.give(asked(1, 0.1))
    life.give(asked(1))
    assert [kind for _, kind, _ in life.said()] == [
        "update",
        "refused",
        "refused",
        "update",
        "refused",
        "update",
    ]
    assert len(life.answers()[1]) == 1
    assert life.charged == [1]
    life.close()


def test_in_memory_too_a_second_message_for_a_round_is_refused(tmp_path: Path) -> None:
    config, mechanism = carrying()
    party = small_party(config, tmp_path, mechanism=mechanism)
    first = party.handle(asked(1))
    with pytest.raises(ValueError, match="another message was answered"):
        party.handle(asked(1, 0.1))
    assert party.handle(asked(1)) is first
    assert mechanism.fits == 1


def test_round_0_is_refused(tmp_path: Path) -> None:
    life = Life(tmp_path / "a")
    life.give(asked(0))
    for number in range(1, ROUNDS + 1):
        life.give(asked(number))
    assert life.charged == [1, 2, 3]
    assert [kind for _, kind, _ in life.said()] == ["refused", "update", "update", "update"]
    assert life.ends == []
    life.close()


def test_refusals_of_a_run_are_bounded_over_restarts(tmp_path: Path) -> None:
    life = Life(tmp_path / "a")
    for number in range(60):
        if number == 30:
            life.close()
            life._open()
        life.give(asked(1, DEAD))
    assert len(life.said()) == 50
    assert "party.caps.max_refusals=50" in str(life.ends[0])
    life.close()


def test_a_party_that_cannot_be_made_anew_answers_nothing_after_a_failure(tmp_path: Path) -> None:
    config, mechanism = carrying()
    party = small_party(config, tmp_path, mechanism=mechanism)
    party.renew = None
    with pytest.raises(RuntimeError):
        party.handle(asked(1, RAISES))
    with pytest.raises(PrivacyError, match="make a new Party"):
        party.handle(asked(2))
    assert mechanism.fits == 1


def test_what_an_interrupt_or_a_full_disk_left_uncharged_moves_no_later_release(
    tmp_path: Path,
) -> None:
    """The charge fails after the fit: the next fit starts from before it, though the process
    lives on.
    """
    config, mechanism = carrying()
    party = small_party(config, tmp_path, mechanism=mechanism)
    for error in (KeyboardInterrupt, PrivacyError):
        with pytest.MonkeyPatch.context() as patch:

            def fail(*arguments: object, error: type[BaseException] = error) -> None:
                raise error

            patch.setattr(Ledger, "charge", fail)
            with pytest.raises(error):
                party.handle(asked(1))
        assert party.rounds_done == 0
        assert party.applied_sigma is None
    answer = party.handle(asked(2))
    assert answer is not None
    assert {
        name: tensor.flatten().tolist() for name, tensor in answer.tensors.items()
    } == _without_it()
    assert party.mechanism is not mechanism


def test_hidden_numbers_of_the_aggregator_are_checked_before_rows_are_touched(
    tmp_path: Path,
) -> None:
    users = {"privacy__mechanism": "dp_fedavg", "privacy__population": 3, "privacy__delta": 0.1}
    keys = {
        "privacy__noise_at": "parties",
        "privacy__sampling": "everyone",
        "privacy__clipping": "adaptive",
    }
    party = small_party(small_config(**users, **keys, privacy__adaptive__bit_noise=3.0), tmp_path)
    party.fit.features = torch.empty(0)  # any use of the rows would fail in another way
    for info in ({}, {"clip_norm": -1.0}, {"clip_norm": 1e200}):
        with pytest.raises(ValueError, match="clip_norm"):
            party.handle(Message(RUN, 1, AGGREGATOR, "a", "weights", zeros(), info))
    assert party.ledger is not None
    assert party.ledger.rows() == []
