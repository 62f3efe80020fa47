"""A party as a process of its own: its config and the aggregator's plan become a Party; its
files stay with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from homo_dp.config.schema import Config
from homo_dp.console.options import Interrupted, Screen
from homo_dp.console.screen import Progress
from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import ConfigError, DataError, MessageError, TableChanged
from homo_dp.core.event_log import about, kept_events, told_errors
from homo_dp.data.databases import is_database
from homo_dp.data.encoding import Encoding
from homo_dp.data.image_folders import is_image_folder
from homo_dp.data.in_memory import table_in_memory
from homo_dp.data.parties import Federation, PartyData, load_federation, party_encoding
from homo_dp.data.party_row_checks import check_own_rows
from homo_dp.data.readers import checked
from homo_dp.data.table_notes import shown_notes
from homo_dp.federation.mechanisms.base import (
    FederationFacts,
    Mechanism,
    PartyFacts,
    PartyPlan,
    Weights,
)
from homo_dp.federation.mechanisms.cohort_mechanism import CohortMechanism
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.sessions.build import (
    build_fit,
    capabilities,
    noise_source,
    number_limits,
    trained_model,
)
from homo_dp.federation.sessions.crash_state import PartyFiles, PartyMemory, RunFolder
from homo_dp.federation.sessions.party import Mistrusted, PartySettings
from homo_dp.federation.sessions.party_session import Party, PartyDuty, PartySession
from homo_dp.federation.sessions.plan import (
    PlanJson,
    PlanRefused,
    agree,
    check_count,
    check_encoding,
    check_price,
    check_releases_cap,
    check_work,
    facts_for_party,
    noisy_count,
    release_names,
    with_count,
)
from homo_dp.federation.sessions.plan_schema import read_plan
from homo_dp.federation.sessions.stages import (
    REFUSED,
    Stage,
    check_same_events,
    read_found,
    stage_of,
)
from homo_dp.federation.sessions.statement import (
    epsilon_after,
    privacy_statement,
    quoted_observer,
    statement_lines,
)
from homo_dp.federation.users.client_fit import ClientFit, load_client, with_client_rows
from homo_dp.federation.users.users_fit import users_fit
from homo_dp.models.registry import BuiltModel, size_of
from homo_dp.models.scoring import load_into, round_metrics
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.approval import check_rules, must_ask, wait_for_word
from homo_dp.runs.lifecycle import Ending, Life
from homo_dp.runs.masked_sums import party_sums
from homo_dp.runs.outputs import metrics_table, replaced, write_outputs
from homo_dp.runs.plan_cost import given_away, party_budget
from homo_dp.runs.processes import (
    GO_ON,
    check_bounds_source,
    fingerprints,
    open_transport,
    party_sealer,
    run_name,
    start_tracker,
    tells_who_was_drawn,
)
from homo_dp.runs.round_metrics import GradientNorms, payload_bytes, promised_numbers
from homo_dp.runs.setup_facts import party_setup
from homo_dp.runs.simulation import RunOutcome
from homo_dp.runs.statistics_outputs import ending_of_party, write_statement
from homo_dp.tracking.indicators import no_better_than_majority, numbers_of


@dataclass(frozen=True)
class AgreedJob:
    """What a plan is at this party once it was agreed to: the settings, the rows, the model and
    the party itself.
    """

    config: Config
    federation: Federation
    model: BuiltModel
    party: Party
    parties: int  # that the plan names


class PartyProcess:
    """Builds the parts, runs the session, writes predictions, indicators, model and ledger
    extract locally.
    """

    def __init__(self, config: Config, screen: Screen) -> None:
        check_bounds_source(config)
        self.screen = screen
        self.run_id = run_name(config)
        self.sealer = party_sealer(config)
        self.name = self.sealer.name
        self.own = config = with_client_rows(config, self.name)
        _check_files(config, self.name)
        self.rows_at_start, self.image_shape = check_own_rows(config, self.name)
        _check_delta(config, self.name, self.rows_at_start)
        self.noise = noise_source(config)
        self.ledger = Ledger(config.privacy.ledger)
        self.life = Life(config, screen)
        self._agreed: AgreedJob | None = None  # until a plan came
        self.gradient_norms = GradientNorms()
        self._progress: Progress | None = None
        self._shown = 0  # the last round on the screen
        # the next round to look up in the ledger, and how many before it were charged
        self._looked, self._paid = 1, 0
        self._asked = time.perf_counter()

    def run(self) -> int:
        """The whole life of the process; the exit code."""
        folder = RunFolder(self.own.party.folder, self.run_id)
        with kept_events(folder.path), told_errors(BudgetExceeded):
            about(run=self.run_id, party=self.name)
            return self._run(folder)

    def _run(self, folder: RunFolder) -> int:
        transport = open_transport(self.own, self.sealer, folder.path)
        duty = PartyDuty(
            name=self.name,
            run=self.run_id,
            ledger=self.ledger,
            declared_rows=self.own.data.rows.get(self.name),
            build=partial(self._build, folder),
            measure=self._measure,
            say=self.screen.line,
            patience=self.own.party.patience,
            max_refusals=self.own.party.caps.max_refusals,
            keys=fingerprints(self.sealer),
        )
        session = PartySession(duty, transport, PartyFiles(folder.path))
        with closing(folder), closing(transport), self.life:
            try:
                if (note := replaced(self.own.output, self.run_id)) is not None:
                    self.screen.warn(f"run {self.run_id}: {note}")
                with self.screen.progress(None) as self._progress:
                    weights = session.run()
                self._finish(session, weights)
                return 0
            except KeyboardInterrupt as interrupt:
                done = session.rounds_answered
                text = str(interrupt) or "Ctrl-C"
                raise Interrupted(f"{text}, after {done} rounds answered; {GO_ON}") from None

    def _client_fit(
        self, config: Config, model: BuiltModel, mechanism: Mechanism, own: PartyFacts
    ) -> ClientFit:
        """Local training by the party's own client, where the mechanism bounds whatever comes of
        it.
        """
        if mechanism.capabilities.works_on == "rows" or mechanism.masked_sum is not None:
            raise ConfigError(
                f"party.client={self.own.party.client}: privacy.mechanism={mechanism.name} works "
                "on rows, which a client keeps to itself; use dp_fedavg without masks"
            )
        client = load_client(str(self.own.party.client), self.name)
        return ClientFit(model.module, own, client, config.train)

    def _build(
        self, folder: RunFolder, plan: PlanJson, found: object, state: PartyFiles | PartyMemory
    ) -> Party:
        """Check plan and config, then read the rows. A row that does not fit is left out: no
        answer depends on it.

        Args:
            folder: of the run.
            plan: as the aggregator describes the job.
            found: what the first rounds have privately estimated; None in their stage.
            state: where answers and fits are kept.

        Returns:
            The party of the stage that the run is in.
        """
        told, plan = plan, read_plan(plan)
        agreed = agree(self.own, plan)
        stage = self._stage(agreed, plan, found)
        config, plan = stage.config, plan | {"rows": dict(stage.rows)}
        check_rules(self.own, config)
        own = with_count(self.own, noisy_count(self.own, plan))
        with _refusing():
            check_work(own, config, self.name)
            check_count(own, config, self.name)
            with self._readable():
                encoding = party_encoding(config, self.name, self.image_shape)
            if found is None:
                check_encoding(plan, encoding.to_json())
            self._check_size(config, encoding)
        with self._readable():
            federation = load_federation(
                stage.reading,
                self.own.train.seed,
                only=self.name,
                leave_out=True,
                image_shape=self.image_shape,
            )
        held = federation.parties[self.name]
        rows = self._rows(own, config, held)
        for note in shown_notes(federation.notes):
            self.screen.warn(f"run {self.run_id}: {note}; the aggregator is not told")
        with _refusing():
            model = trained = _model(stage.reading, federation)
            if stage.estimating:
                trained = trained_model(config, encoding.input_shape, encoding.classes)
            facts = stage.with_estimates(self._facts(config, plan, rows, trained))

            def renew() -> tuple[LocalFit, Mechanism]:
                mechanism, own = stage.mechanism(facts, self.noise), facts.parties[self.name]
                fresh = _model(stage.reading, federation)
                if self.own.party.client is not None:
                    return self._client_fit(config, fresh, mechanism, own), mechanism
                if isinstance(mechanism, CohortMechanism) and mechanism.masked_sum is not None:
                    names = federation.user_names
                    return (
                        users_fit(config, fresh, held.train, self.name, own, names, apart=True),
                        mechanism,
                    )
                return build_fit(config, fresh, held.train, own, held.test), mechanism

            fit, mechanism = renew()
            sums = party_sums(self.own, told, self.sealer, mechanism, folder.path, found)
            try:
                party = Party(
                    self._settings(config),
                    fit,
                    mechanism,
                    self.ledger,
                    state.outbox,
                    renew,
                    sums,
                    state.keep_fit,
                )
            except PrivacyError as error:
                raise PlanRefused(
                    "trust" if isinstance(error, Mistrusted) else "privacy", str(error)
                ) from error
            check_releases_cap(self.own, mechanism, party.plan)
            check_price(self.own, party.plan)
            if found is not None:
                check_same_events(self._planned(agreed, plan, told, rows), party.plan)
        if party.charges_itself:
            planned = party.planned_charges()
            refusal = self.ledger.would_exceed(planned, party.settings.budget)
            if refusal:
                raise PlanRefused("budget", refusal)
            for charge, rounds in planned:
                self.ledger.prepare(charge, rounds)
        if must_ask(self.own):
            values = given_away(self.own, config, self.name, mechanism, party.plan)
            wait_for_word(folder.path, told, values, self.run_id, self.screen)
        self.sealer.kinds = mechanism.kinds
        known = self._agreed is not None
        self._agreed = AgreedJob(config, federation, model, party, len(plan["rows"]))
        if known:
            self.screen.line(f"run {self.run_id}: goes on with what was privately estimated")
            return party
        self._say_agreed(party)
        if tells_who_was_drawn(config, party.mechanism):
            self.life.stop_tracking()
        who = f"party {self.name}"
        start_tracker(
            self.life.tracker, config, who, folder, party.mechanism, private=self._is_private(party)
        )
        return party

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Raise TableChanged where the table, not the plan, is why something cannot be read."""
        try:
            yield
        except DataError as error:
            try:
                check_own_rows(self.own, self.name)
            except DataError as changed:
                raise TableChanged(
                    f"{changed} (it was readable when the run was joined; nobody else is told)"
                ) from error
            raise

    def _stage(self, agreed: Config, plan: PlanJson, found: object) -> Stage:
        """The stage of the run after what an aggregator says was ``found``."""
        read = None if found is None else read_found(agreed, plan["rows"], found)
        target = (plan["privacy"]["target_epsilon"] or 1.0, plan["privacy"]["delta"])
        try:
            return stage_of(agreed, plan["rows"], read, self.run_id, target)
        except (ConfigError, DataError) as error:
            raise PlanRefused(
                "plan" if found is None else REFUSED, f"the plan cannot be used: {error}"
            ) from error

    def _facts(
        self, config: Config, plan: PlanJson, rows: int, model: BuiltModel
    ) -> FederationFacts:
        """The public facts of the training, without the rounds before it."""
        parameters = sum(parameter.numel() for parameter in model.module.parameters())
        return facts_for_party(config, plan, self.name, rows, parameters, model.task.outputs)

    def _planned(self, agreed: Config, plan: PlanJson, told: PlanJson, rows: int) -> PartyPlan:
        """The plan of the run as it was agreed to, before anything was estimated."""
        told = read_plan(told)
        stage = self._stage(agreed, told, None)
        config, first = stage.config, told | {"rows": dict(stage.rows)}
        own = with_count(self.own, noisy_count(self.own, first))
        declared = own.data.rows.get(self.name)
        encoding = party_encoding(config, self.name, self.image_shape)
        model = trained_model(config, encoding.input_shape, encoding.classes)
        facts = self._facts(config, first, rows if declared is None else declared, model)
        facts = stage.with_estimates(facts)
        return stage.mechanism(facts, self.noise).run.planned(facts.parties[self.name])

    def _rows(self, own: Config, config: Config, held: PartyData) -> int:
        """The declared row count, else that of the training rows and of all that are left out;
        tells the operator how many those are.
        """
        kept = len(held.train)
        if held.misfit is not None:
            self.screen.line(
                f"run {self.run_id}: {held.left_out} rows do not fit the plan's columns, classes "
                f"or label and are left out; {kept} are trained on; the aggregator is not told. "
                f"The first: {held.misfit}"
            )
        elif kept == 0:
            self.screen.line(
                f"run {self.run_id}: there are no rows to train on; updates are noise alone, at "
                "the same price; the aggregator is not told"
            )
        declared = own.data.rows.get(self.name)
        if declared is not None:
            return declared
        found = capabilities(config)
        hidden = found.private and found.unit == "record" and not own.privacy.not_private
        # of its own config where it sets one: a plan can only lower it
        delta = config.delta if own.privacy.delta is None else own.privacy.delta
        if hidden and not delta * self.rows_at_start < 1:
            raise DataError(
                f"privacy.delta={delta:g}: must be below 1 / rows = {1 / self.rows_at_start:g}; "
                f"set a smaller one here, or declare data.rows.{self.name}"
            )
        return max(kept + held.left_out, 1)  # facts are of at least one row

    def _check_size(self, config: Config, encoding: Encoding) -> None:
        caps, allowed = self.own.party.caps, self.own.transport.max_message_bytes
        if caps.columns is not None and encoding.columns and encoding.width > caps.columns:
            raise PlanRefused(
                "columns_cap",
                f"party.caps.columns={caps.columns}: a row would become {encoding.width} numbers",
            )
        weights = size_of(config.model, encoding.input_shape, encoding.classes)
        if caps.parameters is not None and weights > caps.parameters:
            raise PlanRefused(
                "model",
                f"party.caps.parameters={caps.parameters}: the plan's model has {weights} weights; "
                "refused",
            )
        if 4 * weights > allowed:
            raise PlanRefused(
                "model",
                f"transport.max_message_bytes={allowed}: the plan's model has {4 * weights} bytes; "
                "raise it if you mean to train one as large",
            )

    def _settings(self, config: Config) -> PartySettings:
        privacy = self.own.privacy
        return PartySettings(
            name=self.name,
            run=self.run_id,
            dataset=self.own.data.dataset,
            budget=party_budget(self.own, config),
            trust_aggregator=privacy.trust_aggregator,
            not_private=privacy.not_private,
            limits=number_limits(self.own.party.caps, config),
        )

    def _say_agreed(self, party: Party) -> None:
        observer = quoted_observer({self.name: party.plan})
        spent = epsilon_after(party.plan, observer, party.plan.all_rounds)
        price = (
            "NOT PRIVATE"
            if spent is None
            else f"epsilon {spent.quoted:.4g} at delta {party.plan.delta:g}"
        )
        what = ", ".join(release_names(party.mechanism))
        what += "".join(
            f"; round {number}: {asked.name}" for number, asked in party.plan.sums.items()
        )
        self.screen.line(
            f"run {self.run_id}: agreed to {party.plan.all_rounds} rounds, {price}; each releases: "
            f"{what}"
        )

    def _measure(self, number: int, weights: Weights) -> dict[str, Any]:
        """Local figures of the global model after a round; they never leave."""
        job = self.job
        party, plan, model = job.party, job.party.plan, job.model
        if not party.mechanism.capabilities.trains:
            return {"asked": plan.kind_of(number)}
        estimated = number <= len(party.mechanism.facts.estimates)
        if not estimated:
            load_into(model.module, weights)
        test = job.federation.parties[self.name].test
        evaluates = job.config.train.evaluates(party.mechanism.run.training_round(number))
        tables = [test] if test is not None and evaluates and not estimated else []
        found = round_metrics(model.module, model.task, tables)
        numbers = (
            promised_numbers({self.name: plan}, self._spent_rounds(number))
            if self._is_private(party)
            else {}
        )
        spent = numbers.get("epsilon")
        now = time.perf_counter()
        seconds, self._asked = now - self._asked, now
        charged = self.ledger.charged(self.run_id, self.name, number, plan.kind_of(number))
        row: dict[str, Any] = {"epsilon": spent, **found, "seconds": seconds, **numbers}
        row |= {"asked": plan.kind_of(number)} if estimated else {}
        row |= {"applied_sigma": charged.sigma} if charged is not None else {}
        row |= (
            {"clip_norm": plan.clip_norm}
            if plan.clip_norm and not job.config.privacy.clips_adaptively
            else {}
        )
        if not party.mechanism.hides_cohort:
            row["bytes"] = payload_bytes(weights) * (
                1 if party.charges_itself and charged is None else 2
            )
        self.gradient_norms.look({self.name: party})
        if self._progress is not None:
            # a party that was away does not start from one
            steps, self._shown = number - self._shown, number
            self._progress.advance(
                steps, loss=found["test_loss"], accuracy=found["test_acc"], epsilon=spent
            )
        self.life.tracker.log_round(
            number,
            {key: value for key, value in row.items() if isinstance(value, int | float)},
            {},
        )
        return row

    def _spent_rounds(self, number: int) -> int:
        """After how many rounds of the plan a party has spent what this one has by now: it may
        have missed some.
        """
        party = self.job.party
        if not party.charges_itself:
            return number  # readers of the model see every round
        plan = party.plan
        found = (
            self.ledger.charged(self.run_id, self.name, each, plan.kind_of(each))
            for each in range(self._looked, number + 1)
            if not plan.is_noise_alone(each)
        )
        self._paid += sum(row is not None for row in found)
        self._looked = number + 1
        return plan.round_of(self._paid)

    @property
    def job(self) -> AgreedJob:
        """What was agreed to; before that there is nothing to measure or to write."""
        if self._agreed is None:
            raise MessageError("the plan has not come yet")
        return self._agreed

    def _is_private(self, party: Party) -> bool:
        return (
            party.mechanism.capabilities.private
            and self.noise.private
            and not self.own.privacy.not_private
        )

    def _finish(self, session: PartySession, weights: Weights) -> None:
        job, rows = self.job, self.ledger.rows(self.run_id, self.name)
        statement = privacy_statement(
            job.party.mechanism,
            {self.name: job.party.plan},
            job.party.plan.round_of(session.rounds_answered),
            {self.name: rows[-1].sigma if rows else job.party.applied_sigma},
            private=self._is_private(job.party),
            secure_mode=self.noise.secure,
            declared_rows=self.name in job.config.data.rows,
        )
        if not job.party.mechanism.capabilities.trains:
            files = write_statement(job.config, self.run_id, statement, self.ledger)
            crash_point("party.written")
            self.life.finish(ending_of_party(self.run_id, statement, files))
            return
        outcome = RunOutcome(
            run=self.run_id,
            config=job.config,
            federation=job.federation,
            model=job.model,
            weights=weights,
            statement=statement,
            rounds=session.duty.rows,
            setup=party_setup(self.own, self.sealer, job.parties),
            own=self.own,
        )
        ledger = self.ledger if job.party.mechanism.capabilities.private else None
        written = write_outputs(outcome, ledger, self.gradient_norms, self.life.tracker.draw)
        crash_point("party.written")
        ending = Ending(
            statement=statement,
            files=written.files,
            guarantee=(*statement_lines(statement), *statement["notes"]),
            summary={"run": self.run_id, "privacy": statement},
            numbers=numbers_of(written.indicators),
            tables=[metrics_table("metrics (local)", written.indicators)],
            warnings=[no_better_than_majority(written.indicators)],
        )
        self.life.finish(ending)


def _model(config: Config, federation: Federation) -> BuiltModel:
    return trained_model(config, federation.input_shape, federation.classes)


@contextmanager
def _refusing() -> Iterator[None]:
    """Refuse a plan whose numbers make arithmetic fail, instead of ending this process with a
    traceback.
    """
    try:
        yield
    except (ArithmeticError, MemoryError, RecursionError, RuntimeError) as error:
        raise PlanRefused(
            "plan", f"the plan cannot be used: {type(error).__name__}: {error}"
        ) from error


def _check_delta(config: Config, name: str, rows: int) -> None:
    """Refuse a delta that is too large for the rows, before anybody is told that there are any.

    A plan can only lower delta. Where the count is declared, the true one is used for nothing.
    """
    privacy = config.privacy
    found = capabilities(config)
    counted = name not in config.data.rows and config.data.counts != "private"
    by_record = found.private and found.unit == "record" and not privacy.not_private
    if privacy.delta is not None and counted and by_record and not privacy.delta * rows < 1:
        raise DataError(
            f"privacy.delta={privacy.delta:g}: must be below 1 / rows = {1 / rows:g} of "
            f"data.files.{name}; lower it, or declare data.rows.{name}; if plans hide users, write "
            "their privacy.mechanism and its keys in this party's own config"
        )


def _check_files(config: Config, name: str) -> None:
    """Find out at the start, not when the plan comes, that a table is not there or cannot be
    read.
    """
    data = config.data
    if data.files and data.one_table is None and name not in data.files:
        raise ConfigError(
            f"data.files: has no table of party.name={name}; it has {', '.join(data.files)}"
        )
    paths = (
        list(data.files.values()) if data.one_table else [data.files[name]] if data.files else []
    )
    tests = data.test_file if isinstance(data.test_file, dict) else {name: data.test_file}
    for path in (*paths, tests.get(name)):
        if (
            path is not None
            and table_in_memory(path) is None
            and not (is_database(path) or is_image_folder(path))
        ):
            checked(path)
