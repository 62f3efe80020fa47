"""A party as a process of its own: its config and the aggregator's plan become a Party; its files stay with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from homo_dp.config.addresses import masked
from homo_dp.config.schema import Config
from homo_dp.console.options import Interrupted, Screen
from homo_dp.console.screen import Progress
from homo_dp.core.crash import crash_point
from homo_dp.core.errors import ConfigError, DataError
from homo_dp.data.columns import Encoding
from homo_dp.data.own_rows import check_own_rows
from homo_dp.data.parties import Federation, load_federation, party_encoding
from homo_dp.data.readers import checked
from homo_dp.federation.mechanisms.base import Mechanism, Weights
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.sessions.build import build_fit, build_mechanism, mechanism_class, noise_source
from homo_dp.federation.sessions.crash_state import PartyFiles, RunFolder
from homo_dp.federation.sessions.party import Mistrusted, PartyLimits, PartySettings
from homo_dp.federation.sessions.party_session import Party, PartyDuty, PartySession
from homo_dp.federation.sessions.plan import (
    Plan,
    PlanRefused,
    agree,
    check_count,
    check_encoding,
    check_price,
    check_work,
    epsilon_cap,
    facts_for_party,
    release_names,
)
from homo_dp.federation.sessions.plan_schema import read_plan
from homo_dp.federation.sessions.statement import epsilon_after, privacy_statement, quoted_observer
from homo_dp.models.registry import BuiltModel, build_model, size_of
from homo_dp.models.scoring import load_into, round_metrics
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.ledger import Budget, Ledger
from homo_dp.privacy.ledger.outbox import MemoryOutbox, Outbox
from homo_dp.runs.masked_sums import party_sums
from homo_dp.runs.outputs import Written, write_outputs
from homo_dp.runs.processes import GO_ON, discreet, open_transport, party_sealer, run_name, start_tracker
from homo_dp.runs.round_numbers import GradientNorms, payload_bytes, promised_numbers
from homo_dp.runs.simulation import Outcome
from homo_dp.tracking.indicators import numbers_of
from homo_dp.tracking.tracker import open_tracker


class PartyProcess:
    """Builds the parts, runs the session, writes predictions, indicators, model and ledger extract locally."""

    def __init__(self, config: Config, screen: Screen) -> None:
        self.own = config
        self.screen = screen
        self.run_id = run_name(config)
        self.sealer = party_sealer(config)
        self.name = self.sealer.name
        _check_files(config, self.name)
        check_own_rows(config, self.name)
        self.noise = noise_source(config)
        self.ledger = Ledger(config.privacy.ledger)
        self.tracker = open_tracker(config)
        self.agreed = config
        self.federation: Federation
        self.model: BuiltModel
        self.party: Party
        self.gradient_norms = GradientNorms()
        self._folder: RunFolder
        self._progress: Progress | None = None
        self._shown = 0  # the last round on the screen
        self._looked, self._paid = 1, 0  # the next round to look up in the ledger, and how many before it were charged
        self._asked = time.perf_counter()

    def run(self) -> int:
        """The whole life of the process; the exit code."""
        folder = self._folder = RunFolder(state_dir(self.own, self.name), self.run_id)
        transport = open_transport(self.own, self.sealer, folder.path)
        duty = PartyDuty(
            name=self.name,
            run=self.run_id,
            ledger=self.ledger,
            declared_rows=self.own.data.rows.get(self.name),
            build=self._build,
            measure=self._measure,
            say=self.screen.line,
            patience=self.own.party.patience,
            max_refusals=self.own.party.caps.max_refusals,
        )
        session = PartySession(duty, transport, PartyFiles(folder.path))
        try:
            with self.screen.progress(None) as self._progress:
                weights = session.run()
            self._finish(session, weights)
            return 0
        except KeyboardInterrupt as interrupt:
            self.tracker.finish("KILLED", {}, {})
            done = session.rounds_answered
            text = str(interrupt) or "Ctrl-C"
            raise Interrupted(f"{text}, after {done} rounds answered; {GO_ON}") from None
        except BaseException:
            self.tracker.finish("FAILED", {}, {})
            raise
        finally:
            transport.close()
            folder.close()

    def _build(self, plan: Plan, outbox: Outbox | MemoryOutbox) -> Party:
        """First all that plan and config decide, then the rows, which can only be left out: no answer tells of one."""
        told, plan = plan, read_plan(plan)
        config = self.agreed = agree(self.own, plan)
        with _refusing():
            check_work(self.own, config, self.name)
            check_count(self.own, config, self.name)
            encoding = party_encoding(config, self.name)
            check_encoding(plan, encoding.to_json())
            self._check_size(encoding)
        self.federation = load_federation(config, self.own.train.seed, only=self.name, leave_out=True)
        rows = self._rows()
        table = self.federation.parties[self.name].train
        with _refusing():
            self.model = self._model()
            parameters = sum(parameter.numel() for parameter in self.model.module.parameters())
            facts = facts_for_party(config, plan, self.name, rows, parameters)

            def renew() -> tuple[LocalFit, Mechanism]:
                fit = build_fit(config, self._model(), table, facts.parties[self.name])
                return fit, build_mechanism(config, facts, self.noise)

            fit, mechanism = renew()
            sums = party_sums(self.own, told, self.sealer, mechanism, self._folder.path)
            try:
                party = Party(self._settings(), fit, mechanism, self.ledger, outbox, renew, sums)
            except PrivacyError as error:
                raise PlanRefused("trust" if isinstance(error, Mistrusted) else "privacy", str(error)) from error
            check_price(self.own, party.plan)
        if party.charges_itself:
            planned = [(party.planned_charge(1), party.plan.releases_by(party.plan.rounds))]
            refusal = self.ledger.would_exceed(planned, party.settings.budget)
            if refusal:
                raise PlanRefused("budget", refusal)
            self.ledger.prepare(*planned[0])
        self.sealer.kinds = mechanism.kinds
        self.party = party
        self._say_agreed(party)
        self.tracker = discreet(self.tracker, config, party.mechanism)
        who = f"party {self.name}"
        start_tracker(self.tracker, config, who, self._folder, party.mechanism, private=self._private)
        return party

    def _rows(self) -> int:
        """The declared row count, else that of the table, with the rows that are left out; says which those are."""
        own, held = self.own, self.federation.parties[self.name]
        count = len(held.train) + held.left_out
        if held.misfit is not None:
            self.screen.line(
                f"run {self.run_id}: {held.left_out} of {count} training rows do not fit the plan's columns, classes "
                f"or label and are left out, as test rows are; the aggregator is not told. The first: {held.misfit}"
            )
        declared = own.data.rows.get(self.name)
        if declared is not None:
            return declared
        found = mechanism_class(self.agreed.privacy.mechanism)
        hidden = found.private and found.unit == "record" and not own.privacy.not_private
        if hidden and not own.privacy.delta < 1 / count:  # of its own config: a plan can only lower it
            raise DataError(
                f"privacy.delta={own.privacy.delta:g}: must be below 1 / rows = {1 / count:g}; lower it here"
            )
        return count

    def _check_size(self, encoding: Encoding) -> None:
        caps, allowed = self.own.party.caps, self.own.transport.max_message_bytes
        if caps.columns is not None and encoding.columns and encoding.width > caps.columns:
            raise PlanRefused(
                "columns_cap", f"party.caps.columns={caps.columns}: a row would become {encoding.width} numbers"
            )
        weights = size_of(self.agreed.model, encoding.input_shape, encoding.classes)
        if caps.parameters is not None and weights > caps.parameters:
            raise PlanRefused(
                "model", f"party.caps.parameters={caps.parameters}: the plan's model has {weights} weights; refused"
            )
        if 4 * weights > allowed:
            raise PlanRefused(
                "model",
                f"transport.max_message_bytes={allowed}: the plan's model has {4 * weights} bytes; raise it if "
                "you mean to train one as large",
            )

    def _model(self) -> BuiltModel:
        config, federation = self.agreed, self.federation
        bounds = config.data.target_bounds
        public = config.privacy.public_tensors
        return build_model(config.model, federation.input_shape, federation.classes, config.train.seed, bounds, public)

    def _settings(self) -> PartySettings:
        privacy = self.own.privacy
        return PartySettings(
            name=self.name,
            run=self.run_id,
            dataset=self.own.data.dataset,
            budget=party_budget(self.own, self.agreed),
            trust_aggregator=privacy.trust_aggregator,
            not_private=privacy.not_private,
            limits=PartyLimits(self.own.party.caps.max_weight, self.own.party.caps.max_rate),
        )

    def _say_agreed(self, party: Party) -> None:
        observer = quoted_observer({self.name: party.plan})
        spent = epsilon_after(party.plan, observer, party.plan.rounds)
        price = "NOT PRIVATE" if spent is None else f"epsilon {spent.quoted:.4g} at delta {party.plan.delta:g}"
        what = ", ".join(release_names(party.mechanism))
        self.screen.line(f"run {self.run_id}: agreed to {party.plan.rounds} rounds, {price}; each releases: {what}")

    def _measure(self, number: int, weights: Weights) -> dict[str, Any]:
        """Local figures of the global model after a round; they never leave."""
        load_into(self.model.module, weights)
        test = self.federation.parties[self.name].test
        tables = [test] if test is not None and self.agreed.train.evaluates(number) else []
        found = round_metrics(self.model.module, self.model.task, tables)
        plan = self.party.plan
        numbers = promised_numbers({self.name: plan}, self._spent_rounds(number)) if self._private else {}
        spent = numbers.get("epsilon")
        now = time.perf_counter()
        seconds, self._asked = now - self._asked, now
        charged = self.ledger.charged(self.run_id, self.name, number, "update")
        row = {"epsilon": spent, **found, "seconds": seconds, **numbers}
        row |= {"applied_sigma": charged.sigma} if charged is not None else {}
        row |= {"clip_norm": plan.clip_norm} if plan.clip_norm and not self.agreed.privacy.clips_adaptively else {}
        if not self.party.mechanism.hides_cohort:
            row["bytes"] = payload_bytes(weights) * (1 if self.party.charges_itself and charged is None else 2)
        self.gradient_norms.look({self.name: self.party})
        if self._progress is not None:
            steps, self._shown = number - self._shown, number  # a party that was away does not start from one
            self._progress.advance(steps, loss=found["test_loss"], accuracy=found["test_acc"], epsilon=spent)
        self.tracker.log_round(number, {key: value for key, value in row.items() if value is not None}, {})
        return row

    def _spent_rounds(self, number: int) -> int:
        """After how many rounds of the plan a party has spent what this one has by now: it may have missed some."""
        if not self.party.charges_itself:
            return number  # readers of the model see every round
        found = (
            self.ledger.charged(self.run_id, self.name, each, "update") for each in range(self._looked, number + 1)
        )
        self._paid += sum(row is not None for row in found)
        self._looked = number + 1
        return self.party.plan.round_of(self._paid)

    @property
    def _private(self) -> bool:
        return self.party.mechanism.private and self.noise.private and not self.own.privacy.not_private

    def _finish(self, session: PartySession, weights: Weights) -> None:
        rows = self.ledger.rows(self.run_id, self.name)
        statement = privacy_statement(
            self.party.mechanism,
            {self.name: self.party.plan},
            self.party.plan.round_of(session.rounds_answered),
            {self.name: rows[-1].sigma if rows else self.party.applied_sigma},
            private=self._private,
            secure_mode=self.noise.secure,
            declared_rows=self.name in self.own.data.rows,
        )
        outcome = Outcome(
            run=self.run_id,
            config=self.agreed,
            federation=self.federation,
            model=self.model,
            weights=weights,
            statement=statement,
            rounds=session.duty.rows,
        )
        ledger = self.ledger if self.party.mechanism.private else None
        written = write_outputs(outcome, ledger, self.gradient_norms, self.tracker.draw)
        crash_point("party.written")
        last = numbers_of(written.indicators)
        tracked = self.tracker.finish("FINISHED", written.files, {"statement": statement["statement"]}, last)
        self._show(outcome, written, tracked)

    def _show(self, outcome: Outcome, written: Written, tracked: str | None) -> None:
        names = [name for name in ("loss", "acc", "auc", "r2", "mse") if f"test_{name}" in written.indicators]
        cells = [[part, *(written.indicators.get(f"{part}_{name}") for name in names)] for part in ("train", "test")]
        self.screen.table("metrics (local)", ["rows of", *names], cells)
        for text in (outcome.statement["statement"], *outcome.statement["notes"]):
            self.screen.line(str(text))
        for name, path in written.files.items():
            self.screen.line(f"{name}: {path}")
        if tracked is not None:
            self.screen.line(f"MLflow run: {tracked} in {masked(self.own.tracking.uri)}")
        files = {name: str(path) for name, path in written.files.items()}
        shown = {"run": self.run_id, "privacy": outcome.statement, "files": files}
        self.screen.summary({**shown, "mlflow_run": tracked})


@contextmanager
def _refusing() -> Iterator[None]:
    """Numbers of a plan that no arithmetic can use are a bad plan, not an end of this process without a word."""
    try:
        yield
    except (ArithmeticError, MemoryError, RecursionError, RuntimeError) as error:
        raise PlanRefused("plan", f"the plan cannot be used: {type(error).__name__}: {error}") from error


def state_dir(config: Config, name: str) -> Path:
    """Where a party keeps outbox and state."""
    return Path(config.party.state_dir or Path("state") / name)


def party_budget(own: Config, agreed: Config) -> Budget:
    """What the ledger enforces: the party's own cap, or the smaller target it agreed to; its own lifetime budget."""
    privacy = own.privacy
    lifetime_delta = None if privacy.lifetime_epsilon is None else (privacy.lifetime_delta or privacy.delta)
    limits = [value for value in (agreed.privacy.target_epsilon, epsilon_cap(own)) if value is not None]
    return Budget(min(limits) if limits else None, privacy.lifetime_epsilon, lifetime_delta)


def _check_files(config: Config, name: str) -> None:
    """Find out at the start, not when the plan comes, that a table is not there or cannot be read."""
    data = config.data
    if data.files and data.one_table is None and name not in data.files:
        raise ConfigError(f"data.files: has no table of party.name={name}; it has {', '.join(data.files)}")
    paths = list(data.files.values()) if data.one_table else [data.files[name]] if data.files else []
    tests = data.test_file if isinstance(data.test_file, dict) else {name: data.test_file}
    for path in (*paths, tests.get(name)):
        if path is not None:
            checked(path)
