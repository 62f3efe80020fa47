"""A whole federation in one process: the sessions of the aggregator and of all parties, over
queues in memory.
"""

from __future__ import annotations

import functools
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from homo_dp.config.schema import Config
from homo_dp.console.screen import Screen
from homo_dp.core.errors import ConfigError
from homo_dp.data.parties import Federation, Table, encoding_of, load_federation
from homo_dp.data.table_notes import shown_notes
from homo_dp.federation.mechanisms.base import FederationFacts, Mechanism, PartyPlan, Weights
from homo_dp.federation.mechanisms.estimation import ROWS
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.mechanisms.train_hooks import HookContext, active_hooks
from homo_dp.federation.protocol.round_sums import UPDATE
from homo_dp.federation.protocol.transport import Waiting
from homo_dp.federation.sessions.aggregator import Aggregator, RoundReport
from homo_dp.federation.sessions.aggregator_session import AggregatorSession, RunMemory
from homo_dp.federation.sessions.best_round import best_round_of
from homo_dp.federation.sessions.build import (
    build_aggregator,
    build_fit,
    federation_facts,
    noise_source,
    run_budget,
    trained_model,
)
from homo_dp.federation.sessions.crash_state import PartyFiles, PartyMemory, Row
from homo_dp.federation.sessions.ledger_heads import HeadsInMemory
from homo_dp.federation.sessions.members import Members, SessionRules
from homo_dp.federation.sessions.party import PartyLimits, PartySettings
from homo_dp.federation.sessions.party_session import Party, PartyDuty, PartySession
from homo_dp.federation.sessions.plan import PlanJson, agree, difference, hides_count, make_plan
from homo_dp.federation.sessions.secure_rounds import next_sums, simulated_sums
from homo_dp.federation.sessions.stages import (
    Found,
    Stage,
    asked_by,
    check_same_events,
    estimates,
    found_by,
    read_found,
    stage_of,
    with_all_columns,
    with_fixed_sampler,
    with_settings,
)
from homo_dp.federation.sessions.statement import (
    federation_epsilon,
    privacy_statement,
    quoted_observer,
)
from homo_dp.models.device import torch_device
from homo_dp.models.fixed_features import front_end
from homo_dp.models.registry import BuiltModel
from homo_dp.models.scoring import load_into, round_metrics, with_features
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.ledger.outbox import MemoryOutbox
from homo_dp.runs.auto import set_again, settled, with_model
from homo_dp.runs.continuation import continued_statement, earlier_model
from homo_dp.runs.round_metrics import GradientNorms, party_numbers, summed_up
from homo_dp.runs.run_facts import run_line
from homo_dp.runs.setup_facts import SIMULATION
from homo_dp.tracking.predictions import prediction_columns
from homo_dp.transport.memory import MemoryEnd, MemoryHub

log = logging.getLogger(__name__)

_FOREVER = 1e9  # seconds; within one process no message is late
_NO_CAP = 1e9  # epsilon
_CAPS = ("rounds", "steps", "total_steps", "epochs", "parameters", "columns", "releases")

RoundRow = dict[str, Any]
PUBLIC_COUNTS = "public: of a bundled set, or said to be (data.counts or data.public)"
USERS = "users"  # all users of a run stand under one name: no output says who was in which cohort


@dataclass
class RunOutcome:
    """What a simulation ends with, complete or interrupted."""

    run: str
    config: Config
    federation: Federation
    model: BuiltModel
    weights: Weights
    statement: dict[str, Any]
    rounds: list[RoundRow] = field(default_factory=list)
    interrupted: bool = False
    setup: Mapping[str, Any] = field(default_factory=lambda: SIMULATION)
    own: Config | None = None  # of a party, before the plan

    def load_weights(self) -> None:
        """Put the final weights into the module, for scoring."""
        load_into(self.model.module, self.weights)


def with_fixed_features(federation: Federation, module: nn.Module) -> Federation:
    """The tables as the trained part of a model reads them."""
    if front_end(module) is None:
        return federation
    return _changed(federation, lambda table: with_features(module, table))


def with_curves(federation: Federation) -> Federation:
    """The tables as they would have been read with ``data.curves: true``."""
    encoding = replace(federation.encoding, curves=True)
    found = _changed(
        federation, lambda table: replace(table, features=encoding.append_curves(table.features))
    )
    return replace(found, encoding=encoding, input_shape=encoding.input_shape)


def _changed(federation: Federation, change: Callable[[Table], Table]) -> Federation:
    parties = {
        name: replace(
            data, train=change(data.train), test=None if data.test is None else change(data.test)
        )
        for name, data in federation.parties.items()
    }
    public = federation.public_test
    return replace(
        federation, parties=parties, public_test=None if public is None else change(public)
    )


class Simulation:
    """One in-process run: build, ``run()``, read the outcome.

    Guarantees:
        - the same sessions of aggregator and parties as between machines, so what holds here holds
          there;
        - the whole plan is checked against the budgets before the first round.
    """

    def __init__(
        self,
        config: Config,
        on_round: Callable[[RoundRow, Mapping[str, Mapping[str, float]]], None],
        begin: Callable[[Simulation], None] | None = None,
    ) -> None:
        """Read the tables and make the plan.

        Args:
            config: the configuration; the rules fill in what it leaves open.
            on_round: called after each round, with its figures and those of each party.
            begin: called once tables and model are known, before anything else is said.
        """
        self.on_round = on_round
        self.run_id = f"run-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        config = with_all_columns(with_model(config))
        self.federation = load_federation(stage_of(config, {}).reading)
        config = self._with_delta(config)
        self.noise = noise_source(config)
        self._given = config  # before the rules
        self.job = self._settled(config)
        self._enter(stage_of(self.job, self.counts))
        if begin is not None:
            begin(self)
        self._make()
        config = self.config
        self._check_counts()
        self.private = (
            self.mechanism.capabilities.private
            and self.noise.private
            and not config.privacy.not_private
        )
        self.earlier = earlier_model(
            config,
            self.model.architecture,
            self.encoding.to_json(),
            private=self.private,
            same_split=True,
        )
        self.ledger = Ledger(config.privacy.ledger) if self.mechanism.capabilities.private else None
        self.sums = simulated_sums(self.run_id, list(self.federation.parties), self.mechanism)
        self.outboxes: dict[str, MemoryOutbox] = defaultdict(MemoryOutbox)
        self.parties = self._parties()
        self._agreed_to: PlanJson | None = None
        self.best_round = best_round_of(config)
        self.rounds: list[RoundRow] = []
        self.gradient_norms = GradientNorms()

    def _settled(self, config: Config) -> Config:
        """The config with what the rules choose; of what is still to be estimated they take what
        stands for it.
        """
        stage = stage_of(config, self._public_counts(config))
        encoding = encoding_of(stage.config) if stage.estimating else self.federation.encoding
        found = settled(stage.config, encoding, stage.rows)
        if found.config.data.curves != config.data.curves and not stage.estimating:
            self.federation = with_curves(self.federation)
        self.auto_notes = found.notes
        self.counts = self._public_counts(config)
        if not stage.estimating:
            return found.config
        return with_fixed_sampler(asked_by(config, found.config), self.counts)

    def _enter(self, stage: Stage) -> None:
        """Go by the config of a stage, and make its model."""
        self.stage, self.config = stage, stage.config
        self.encoding = encoding_of(stage.config) if stage.estimating else self.federation.encoding
        self.model = self._build()

    def _make(self) -> None:
        """Make what the parties of a stage need."""
        self.federation = with_fixed_features(self.federation, self.model.module)
        self.model.module.to(torch_device(self.config.train.device))
        self._check_prediction_columns()
        self.facts = self.stage.with_estimates(
            self._facts(sum(p.numel() for p in self.model.module.parameters()))
        )
        self.mechanism = self._mechanism()

    def introduce(self, screen: Screen, source: str | None) -> None:
        """Show the first line of the run."""
        rows = {name: len(held.train) for name, held in self.federation.parties.items()}
        screen.line(run_line(self.config, rows, source))
        for note in shown_notes(self.federation.notes):
            screen.warn(note)

    @property
    def plans(self) -> dict[str, PartyPlan]:
        return {name: party.plan for name, party in self.parties.items()}

    def run(self) -> RunOutcome:
        """Train, from ``train.init_from`` if it is given; Ctrl-C ends early with the rounds that
        were finished.

        Whenever the aggregator's session waits, the parties take what was sent to them; their
        charges become one commit before the aggregator sees an answer.
        """
        weights = self._first_weights() if self.earlier is None else self.earlier.weights
        sums = None if self.sums is None else self.sums[0]
        aggregator = build_aggregator(
            self.config, self.run_id, weights, self.mechanism, self.ledger, sums
        )
        self._check_budget(aggregator)
        self._aggregator = aggregator
        together = nullcontext if self.ledger is None else self.ledger.together
        hub = MemoryHub(self.mechanism.kinds)
        sessions = {name: self._session(name, hub.end(name)) for name in self.parties}
        interrupted = False
        try:
            for session in sessions.values():
                session.join()
            for _ in self._aggregate(aggregator, hub.aggregator()):
                if hub.to_aggregator:
                    continue
                with together():
                    while hub.to_parties:
                        message = hub.to_parties.popleft()
                        sessions[message.recipient].take(message)
                        if (failure := self.parties[message.recipient].failure) is not None:
                            raise failure
            for message in hub.to_parties:  # the final weights
                sessions[message.recipient].take(message)
        except KeyboardInterrupt:
            interrupted = True
        return RunOutcome(
            run=self.run_id,
            config=self.config,
            federation=self.federation,
            model=self.model,
            weights=self._aggregator.final_weights,
            statement=continued_statement(
                self.statement(self._rounds_spent(), self._aggregator.applied_sigma),
                self.earlier,
                self.config.data.dataset,
            ),
            rounds=[] if self.stage.estimating else self.rounds,
            interrupted=interrupted,
        )

    def _first_weights(self) -> Weights:
        """Where a stage starts: the weights of its model, or numbers that stand for them."""
        model = self._read_model() if self.stage.estimating else self.model
        return {name: tensor.cpu().clone() for name, tensor in model.module.state_dict().items()}

    def _next_stage(self, aggregator: Aggregator) -> Aggregator:
        """Go on from the estimates to the training that follows from them."""
        found = found_by(self.stage, self.mechanism, aggregator.weights)
        after = self.stage_after(found)
        again = set_again(self._given, after.config, encoding_of(after.config), after.rows)
        found = read_found(self.job, self.counts, with_settings(found, again).to_json())
        planned, stage = self.plans, self.stage_after(found)
        self.federation = load_federation(stage.reading)
        self._enter(stage)
        self._make()
        self.sums = next_sums(self.sums, self.mechanism, found.to_json())
        self.parties = self._parties()
        for name, party in self.parties.items():
            check_same_events(planned[name], party.plan)
        sums = None if self.sums is None else self.sums[0]
        weights, ledger = self._first_weights(), self.ledger
        self._aggregator = build_aggregator(
            self.config,
            self.run_id,
            weights,
            self.mechanism,
            ledger,
            sums,
            found=found.to_json(),
        )
        self._aggregator.round = aggregator.round
        return self._aggregator

    def stage_after(self, found: Found) -> Stage:
        """The stage of this run after its estimates."""
        return stage_of(self.job, self.counts, found, self.run_id)

    def _aggregate(self, aggregator: Aggregator, transport: MemoryEnd) -> Waiting[None]:
        """The aggregator's side, from the first party that joins to the final weights."""
        rules = SessionRules(
            min_parties=len(self.parties), round_timeout=_FOREVER, stop_on_missing=True
        )
        members = Members(self.run_id, list(self.parties), transport, HeadsInMemory(), log.debug)
        yield from members.opening(rules)
        session = AggregatorSession(
            aggregator,
            self._plan,
            members,
            rules,
            RunMemory(),
            self._report,
            self.best_round,
            self._next_stage,
        )
        session.begin()
        yield from session.rounds()

    def _session(self, name: str, transport: MemoryEnd) -> PartySession:
        """The party's side; the party was built at the start, so that what its config cannot do
        is said then.
        """

        def build(plan: PlanJson, found: object, state: PartyFiles | PartyMemory) -> Party:
            self._check_plan(plan)
            return self.parties[name]

        duty = PartyDuty(
            name,
            self.run_id,
            self.ledger,
            self._told_rows()[name],
            build,
            measure=None,
            say=log.debug,
        )
        return PartySession(duty, transport, PartyMemory(self.outboxes[name]))

    @functools.cached_property
    def _plan(self) -> PlanJson:
        """The job as an aggregator would describe it to these parties."""
        return make_plan(self.job, self._told_rows(), self.encoding.to_json())

    def _told_rows(self) -> dict[str, int | None]:
        """The row counts of the plan; None of one that is to be estimated."""
        return {
            name: self.counts.get(name, known.rows) for name, known in self.facts.parties.items()
        }

    def _check_plan(self, plan: PlanJson) -> None:
        """Agree to the plan as a party between machines does; once, since all parties have one
        config here.

        Caps are a party's defence against a config that is not its own, so here they are off.
        """
        if self._agreed_to is plan:
            return
        caps = self.config.party.caps.model_copy(update=dict.fromkeys(_CAPS) | {"epsilon": _NO_CAP})
        own = self.job.model_copy(
            update={"party": self.config.party.model_copy(update={"caps": caps, "name": None})}
        )
        agreed = agree(own, plan)
        changed = difference(plan, make_plan(agreed, plan["rows"], self.encoding.to_json()))
        if changed is not None:
            raise PrivacyError(
                f"the plan of this run does not give its own config back: {changed}; report it"
            )
        self._agreed_to = plan

    def _rounds_spent(self) -> int:
        """Rounds that count for epsilon: an interrupted one too, as soon as one party has
        answered it.
        """
        return max(len(self.rounds), *(party.rounds_done for party in self.parties.values()))

    @property
    def test_tables(self) -> list[Table]:
        """The test rows of all parties that have some."""
        return [
            data.test
            for data in self.federation.parties.values()
            if data.test is not None and len(data.test)
        ]

    def statement(self, rounds_done: int, aggregator_sigma: float | None = None) -> dict[str, Any]:
        """The privacy statement after some rounds."""
        sigmas = {
            name: party.applied_sigma or aggregator_sigma for name, party in self.parties.items()
        }
        data = self.config.data
        made = self._statement(
            rounds_done, sigmas, declared_rows=set(data.rows) >= set(self.parties)
        )
        public = not set(data.rows) & set(self.parties) and all(
            map(data.count_is_public, self.parties)
        )
        return {**made, "rows": PUBLIC_COUNTS} if public else made

    def _statement(
        self, rounds_done: int, sigmas: Mapping[str, float | None], *, declared_rows: bool
    ) -> dict[str, Any]:
        return privacy_statement(
            self.mechanism,
            self.plans,
            rounds_done,
            sigmas,
            private=self.private,
            secure_mode=self.noise.secure,
            declared_rows=declared_rows,
        )

    def _check_prediction_columns(self) -> None:
        for table in self.test_tables:
            if table.frame is not None:
                prediction_columns(
                    [str(name) for name in table.frame.columns], self.model.task, with_party=True
                )

    def _build(self) -> BuiltModel:
        return trained_model(self.config, self.encoding.input_shape, self.encoding.classes)

    def _read_model(self) -> BuiltModel:
        """What parties fit to the rows as the stage reads them."""
        if not self.stage.estimating:
            return self._build()
        shape, classes = self.federation.input_shape, self.federation.classes
        return trained_model(self.stage.reading, shape, classes)

    def _facts(self, parameters: int) -> FederationFacts:
        levels = self.encoding.levels_of_columns
        rows = {name: count or 1 for name, count in self.stage.rows.items()}
        return federation_facts(self.config, rows, parameters, self.model.task.outputs, levels)

    def _with_delta(self, config: Config) -> Config:
        """The config with the delta that follows from public row counts."""
        closed = config.data.counts == "declared"
        rows = self._public_counts(config)
        return config.with_delta(
            rows[name] for name in rows if not closed or name in config.data.rows
        )

    def _public_counts(self, config: Config) -> dict[str, int | None]:
        """Rows by party: declared, else as they are, which the statement then says; None where
        they are estimated.
        """
        declared, hidden = config.data.rows, ROWS in estimates(config)
        return {
            name: declared.get(name, None if hidden else len(data.train))
            for name, data in self.federation.parties.items()
        }

    def _check_counts(self) -> None:
        """Say, or refuse where the config wants that, that the run makes row counts public which
        nobody declared.
        """
        data = self.config.data
        told = [name for name in self.federation.parties if not data.count_is_public(name)]
        if not told or not self.config.private or not hides_count(self.config):
            return
        names = ", ".join(told[:3]) + (
            f" and {len(told) - 3} more parties" if len(told) > 3 else ""
        )
        why = (
            f"data.rows of {names}: not declared, and sample rate, steps and noise of this run "
            "tell the row count"
        )
        if data.counts in ("declared", "private"):
            raise ConfigError(
                f"{why}; declare a figure that is known without the table, or write data.counts: "
                "public"
            )
        log.warning(
            "%s: it is public from now on; declare data.rows, or write data.counts: public", why
        )

    def _mechanism(self) -> Mechanism:
        return self.stage.mechanism(self.facts, self.noise)

    def _parties(self) -> dict[str, Party]:
        return {name: self._party(name) for name in self.federation.parties}

    def _party(self, name: str) -> Party:
        config = self.config

        def renew() -> tuple[LocalFit, Mechanism]:
            return self._fit(name), self._mechanism()

        settings = PartySettings(
            name=name,
            run=self.run_id,
            dataset=config.data.dataset,
            budget=run_budget(config),
            trust_aggregator=config.privacy.trust_aggregator,
            not_private=config.privacy.not_private,
            limits=PartyLimits(config.party.caps.max_weight, config.party.caps.max_rate),
        )
        sums = None if self.sums is None else self.sums[1][name]
        return Party(settings, *renew(), self.ledger, self.outboxes[name], renew, sums)

    def _fit(self, name: str) -> LocalFit:
        """The local training of a party."""
        held = self.federation.parties[name]
        return build_fit(
            self.config, self._read_model(), held.train, self.facts.parties[name], held.test
        )

    def _check_budget(self, aggregator: Aggregator) -> None:
        if self.ledger is None:
            return
        paying = [party for party in self.parties.values() if party.charges_itself]
        planned = [charge for party in paying for charge in party.planned_charges()]
        for charge, rounds in planned:
            self.ledger.prepare(charge, rounds)
        refusal = self.ledger.would_exceed(planned, run_budget(self.config))
        if refusal:
            raise BudgetExceeded(refusal)
        aggregator.check_budget(self.mechanism.run.count)

    def _sigmas(self) -> dict[str, float | None]:
        """The noise that each party has added itself."""
        return {name: party.applied_sigma for name, party in self.parties.items()}

    def _scored(self, round_number: int, tables: list[Table]) -> dict[str, Any]:
        """Metrics of the test rows, with the hooks of the run around them; hooks get a copy of
        the model.
        """
        hooks = active_hooks()
        if hooks is None or not tables:
            return round_metrics(self.model.module, self.model.task, tables)
        context = HookContext(
            "test", "all", round_number, True, self.model.module, num_train_batch=len(tables)
        )
        for trigger in ("on_fit_start", "on_epoch_start"):
            hooks.call(trigger, context)
        for number in range(len(tables)):
            context.cur_batch_i = number
            for trigger in (
                "on_batch_start",
                "on_batch_forward",
                "on_batch_backward",
                "on_batch_end",
            ):
                hooks.call(trigger, context)
        metrics = round_metrics(self.model.module, self.model.task, tables)
        context.eval_metrics = dict(metrics)
        for trigger in ("on_epoch_end", "on_fit_end"):
            hooks.call(trigger, context)
        return metrics

    def _report(self, report: RoundReport, kept: Row) -> Row:
        estimating = self.stage.estimating
        if not estimating:
            load_into(self.model.module, report.weights)
        numbers = party_numbers(self.plans, self._sigmas(), report, self.private)
        trained = self.mechanism.run.training_round(report.round)
        scored = not estimating and self.config.train.evaluates(trained)
        tables = self.test_tables if scored else []
        row: RoundRow = {
            "round": report.round,
            **({} if report.asked == UPDATE else {"asked": report.asked}),
            "epsilon": (
                federation_epsilon(self.plans, quoted_observer(self.plans), report.round)
                if self.private
                else None
            ),
            **self._scored(report.round, tables),
            "seconds": report.seconds,
            **summed_up(numbers),
            **report.metrics,
            **report.released,
        }
        self.gradient_norms.look(self.parties)
        self.rounds.append(row)
        self.on_round(
            row,
            {name: {**each, **report.by_party.get(name, {})} for name, each in numbers.items()},
        )
        # what decides when to stop must be public or released
        public = self.config.data.public_test
        return {
            **kept,
            **{name: value for name, value in row.items() if public and name.startswith("test_")},
        }
