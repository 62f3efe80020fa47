"""An aggregator as a process of its own: from its config to rounds over a transport, and to its
files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from homo_dp import __version__
from homo_dp.config.load import dump_yaml
from homo_dp.config.privacy import SharedNoiseKeys
from homo_dp.config.schema import Config
from homo_dp.console.options import Interrupted, Screen
from homo_dp.core.crash_points import crash_point
from homo_dp.core.errors import ConfigError
from homo_dp.core.event_log import about, kept_events, told_errors
from homo_dp.core.files import write_whole
from homo_dp.data.encoding import Encoding
from homo_dp.data.public_encoding import public_encoding, public_table
from homo_dp.federation.mechanisms.base import Mechanism, PartyPlan, Weights
from homo_dp.federation.protocol.messages import KINDS, extended
from homo_dp.federation.sessions.aggregator import Aggregator, RoundReport
from homo_dp.federation.sessions.aggregator_session import AggregatorSession, RunState
from homo_dp.federation.sessions.aggregator_statement import promised_plans, promised_statement
from homo_dp.federation.sessions.best_round import best_round_of
from homo_dp.federation.sessions.build import (
    build_aggregator,
    mechanism_class,
    noise_source,
    number_limits,
    trained_model,
)
from homo_dp.federation.sessions.crash_state import Row, RunFolder
from homo_dp.federation.sessions.ledger_heads import LedgerHeads
from homo_dp.federation.sessions.members import MOST_ROWS, Members, SessionRules
from homo_dp.federation.sessions.plan import (
    PlanJson,
    begun_without,
    difference,
    facts_for_aggregator,
    make_plan,
    needs_declared_rows,
)
from homo_dp.federation.sessions.plan_schema import read_plan
from homo_dp.federation.sessions.stages import (
    Found,
    Stage,
    asked_by,
    estimates,
    found_by,
    read_found,
    stage_of,
    with_all_columns,
    with_fixed_sampler,
    with_settings,
)
from homo_dp.federation.sessions.statement import statement_lines
from homo_dp.models.baselines import majority
from homo_dp.models.files import ModelCard, save_model
from homo_dp.models.metrics import evaluate
from homo_dp.models.registry import BuiltModel
from homo_dp.models.scoring import (
    load_into,
    no_metrics,
    round_metrics,
    score_tables,
    with_features,
)
from homo_dp.privacy.accounting.checks import most_rows
from homo_dp.privacy.ledger import Ledger
from homo_dp.runs.auto import chosen_mechanism, set_again, settled, with_model
from homo_dp.runs.continuation import continued_statement, earlier_model
from homo_dp.runs.lifecycle import Ending, Life, Table
from homo_dp.runs.masked_sums import aggregator_sums
from homo_dp.runs.outputs import (
    FILE_NAMES,
    judged,
    judged_line,
    released_line,
    released_of,
    replaced,
    report_facts,
)
from homo_dp.runs.processes import (
    GO_ON,
    OpenTransport,
    aggregator_sealer,
    check_bounds_source,
    open_transport,
    run_name,
    start_tracker,
)
from homo_dp.runs.round_metrics import payload_bytes, promised_numbers
from homo_dp.runs.setup_facts import aggregator_setup, bounds_facts
from homo_dp.runs.statistics_outputs import Results, published, results_of
from homo_dp.tracking.files import companion, write_json
from homo_dp.tracking.indicators import (
    build_indicators,
    no_better_than_majority,
    numbers_of,
    write_indicators,
)

_SMALL_MODEL = 64 << 20  # bytes that a message may have however small the model is
_NUMBER_BYTES = 9  # of a sum in a message, with what is around it
# who is in which cohort
SEEN_BY = {"directory": "can list the folder", "flower": "runs the SuperLink"}
COHORT_NOTE = (
    "transport.kind={kind}: whoever {who} sees who is in which cohort; epsilon holds for readers "
    "of the model who cannot (docs/threat_model.md)"
)
# of a round: in no output where cohorts are drawn in secret
WHO = ("replied", "missing", "refused")


class AggregatorProcess:
    """Builds the parts, runs the session, writes model and indicators; metrics only on a table
    declared public.
    """

    def __init__(
        self, config: Config, screen: Screen, open_end: OpenTransport = open_transport
    ) -> None:
        config = self.given = self.job = with_all_columns(with_model(config))
        check_bounds_source(config)
        self.stage = stage_of(config, {})
        self.screen = screen
        self._open_transport = open_end
        self.run_id = run_name(config)
        fields = mechanism_class(chosen_mechanism(config)).message_fields
        self.sealer = aggregator_sealer(config, extended(KINDS, fields))
        self._allowed = self.sealer.limits
        self._read_columns()
        self.life = Life(config, screen)
        self.ledger: Ledger | None = None
        self.found: Results | None = None  # of a run that asks, once it is over

    @property
    def config(self) -> Config:
        """The config of the stage that the run is in."""
        return self.stage.config

    def _read_columns(self) -> None:
        """Make what depends on the columns: their encoding, the test rows, the model and how
        large a message may be.
        """
        config = self.config
        self.encoding: Encoding = public_encoding(config)
        self.test = public_table(config, self.encoding)
        self.model: BuiltModel = trained_model(
            config, self.encoding.input_shape, self.encoding.classes
        )
        if self.test is not None:
            self.test = with_features(self.model.module, self.test)
        private = config.private and mechanism_class(chosen_mechanism(config)).capabilities.private
        self.earlier = earlier_model(
            config, self.model.architecture, self.encoding.to_json(), private=private
        )
        # Bounds the memory that a party can make this process take: an update is as large as the
        # model.
        needed = max(_SMALL_MODEL, 4 * payload_bytes(self.model.module.state_dict()))
        self.sealer.limits = replace(self._allowed, bytes=min(self._allowed.bytes, needed))

    def run(self) -> int:
        """The whole life of the process; the exit code."""
        folder = RunFolder(self.config.federation.state_dir, self.run_id)
        with kept_events(folder.path), told_errors():
            about(run=self.run_id, party=None)
            return self._run(folder)

    def _run(self, folder: RunFolder) -> int:
        config = self.config
        state = RunState(folder.path)
        saved = state.load()
        plan = None if saved is None else self._same_plan(saved.plan)
        if saved is not None and saved.facts.found is not None:
            self._enter(
                stage_of(self.job, saved.plan["rows"], Found(**saved.facts.found), self.run_id)
            )
        transport = self._open_transport(config, self.sealer, folder.path)
        members = session = None
        if (note := replaced(config.output, self.run_id, FILE_NAMES[1:])) is not None:
            self.screen.warn(f"run {self.run_id}: {note}")
        with closing(folder), closing(transport), self.life:
            try:
                heads = LedgerHeads(Path(config.federation.state_dir) / "heads.json")
                members = Members(
                    self.run_id,
                    list(self.sealer.allowed),
                    transport,
                    heads,
                    self.screen.line,
                    self._most_rows,
                )
                rules = self._rules()
                if plan is None:
                    members.open(rules)
                    plan = self._plan(members.parties, members.rows)
                members.keep_to(plan["rows"])
                config = self.config
                found = None if saved is None else saved.facts.found
                aggregator = self._aggregator(plan, folder.path, found)
                kind = config.transport.kind
                if aggregator.mechanism.hides_cohort and kind in SEEN_BY:
                    self.screen.line(COHORT_NOTE.format(kind=kind, who=SEEN_BY[kind]))
                told = plan | {"rows": dict(self.stage.rows)}
                plans = promised_plans(config, aggregator, told) or {}
                with self.screen.progress(aggregator.settings.rounds) as progress:

                    def made() -> Aggregator:
                        return aggregator if session is None else session.aggregator

                    def report(found: RoundReport, row: Row) -> Row:
                        row = {
                            **row,
                            **self._measured(made().training_round, made().weights),
                            **self._numbers(made(), plans, found),
                        }
                        replies = None if made().mechanism.hides_cohort else len(found.replied)
                        progress.advance(
                            loss=row["test_loss"], accuracy=row["test_acc"], replies=replies
                        )
                        numbers = {
                            name: float(value)
                            for name, value in numbers_of(row).items()
                            if name != "round"
                        }
                        numbers |= {
                            f"{n}/{party}": v
                            for party, own in found.by_party.items()
                            for n, v in own.items()
                        }
                        self.life.tracker.log_round(found.round, numbers, {})
                        return row

                    session = AggregatorSession(
                        aggregator,
                        plan,
                        members,
                        rules,
                        state,
                        report,
                        best_round_of(config),
                        partial(self._next_stage, plan, folder.path),
                    )
                    mechanism = aggregator.mechanism
                    private = config.private and mechanism.capabilities.private
                    start_tracker(
                        self.life.tracker, config, "aggregator", folder, mechanism, private=private
                    )
                    if saved is None:
                        session.begin()
                    else:
                        session.resume(saved)
                        done = aggregator.round
                        self.screen.line(
                            f"run {self.run_id}: continues after round {done} of "
                            f"{aggregator.settings.rounds}"
                        )
                        progress.advance(done)
                    session.run()
                self._write(session.aggregator, session, plan)
                return 0
            except KeyboardInterrupt as interrupt:
                done = session.aggregator.round if session else 0
                text = str(interrupt) or "Ctrl-C"
                raise Interrupted(
                    f"{text}, in round {done} of {config.train.rounds}; {GO_ON}"
                ) from None
            except Exception:
                if members is not None:
                    members.give_up(session.aggregator.round if session else 0)
                raise

    @property
    def _most_rows(self) -> int:
        """The most rows that a party can declare: where records are hidden, delta must be below
        one over them.
        """
        found = mechanism_class(chosen_mechanism(self.config)).capabilities
        hidden = self.config.private and found.private and found.unit == "record"
        delta = self.config.privacy.delta  # without one, it follows from what parties declare
        return MOST_ROWS if delta is None or not hidden else min(MOST_ROWS, most_rows(delta))

    @property
    def _needs_rows(self) -> str | None:
        """The setting that needs the row counts of all parties; None if there is none, or they are
        privately estimated.
        """
        if self.given.data.counts == "private":
            return None
        return needs_declared_rows(self.given, chosen_mechanism(self.given))

    def _plan(self, names: Collection[str], joined: Mapping[str, int | None]) -> PlanJson:
        """The plan of a run, without those who have not joined where it needs their rows and
        nobody declared them.
        """
        declared = self.config.data.rows
        rows = {
            name: declared.get(name) if joined.get(name) is None else joined[name] for name in names
        }
        needs = self._needs_rows
        left_out = [name for name in names if needs and name not in joined and rows[name] is None]
        if left_out:
            keys = ", ".join(f"data.rows.{name}" for name in left_out)
            self.screen.warn(
                f"run {self.run_id}: begins and goes on without {', '.join(left_out)}; "
                f"{chosen_mechanism(self.config)} needs the rows of all parties, so one that comes "
                f"late is waited for only if {keys} is declared here"
            )
        rows = {name: count for name, count in rows.items() if name not in left_out}
        self.given = begun_without(self.given, left_out)
        self._settle(rows)
        return make_plan(self.job, rows, self.encoding.to_json())

    def _same_plan(self, plan: PlanJson) -> PlanJson:
        declared = self.config.data.rows
        needs = self._needs_rows
        left_out = [
            name
            for name in self.sealer.allowed
            if needs and name not in plan["rows"] and declared.get(name) is None
        ]
        self.given = begun_without(self.given, left_out)
        self._settle(plan["rows"])
        kept = read_plan(plan)  # one of an earlier version lacks keys that have a default
        changed = difference(kept, make_plan(self.job, plan["rows"], self.encoding.to_json()))
        before, now = (
            ", ".join(sorted(names)) for names in ([*plan["rows"], *left_out], self.sealer.allowed)
        )
        if before != now:
            changed = f"federation.parties={before} became {now}"
        if changed is not None:
            raise ConfigError(
                f"federation.run={self.run_id}: was started with other settings ({changed}); "
                "restore them, or give the new job a new name"
            )
        return plan

    def _settle(self, rows: Mapping[str, int | None]) -> None:
        """Fill in what ``train.auto`` chooses; the same again after a restart, by the same
        counts.
        """
        before = stage_of(self.given, rows)
        found = settled(before.config, self.encoding, before.rows)
        chosen = found.config.data.curves != before.config.data.curves
        job = found.config
        if before.estimating:
            job = with_fixed_sampler(asked_by(self.given, found.config), rows)
        self.job, self.stage = job, stage_of(job, rows)
        if chosen:
            self._read_columns()
        for note in found.notes:
            self.screen.line(note)

    def _enter(self, stage: Stage) -> None:
        """Go by what was privately estimated."""
        self.stage = stage
        self._read_columns()

    def _next_stage(self, plan: PlanJson, folder: Path, aggregator: Aggregator) -> Aggregator:
        """The training of a run whose estimates are there."""
        found = found_by(self.stage, aggregator.mechanism, aggregator.weights)
        after = stage_of(self.job, plan["rows"], found, self.run_id)
        again = set_again(self.given, after.config, public_encoding(after.config), after.rows)
        found = read_found(self.job, plan["rows"], with_settings(found, again).to_json())
        self._enter(stage_of(self.job, plan["rows"], found, self.run_id))
        self.screen.line(f"run {self.run_id}: privately estimated {', '.join(estimates(self.job))}")
        made = self._aggregator(plan, folder, found.to_json())
        made.round = aggregator.round
        return made

    def _rules(self) -> SessionRules:
        federation, privacy = self.config.federation, self.config.privacy
        least = federation.min_parties or len(federation.parties)
        if isinstance(privacy, SharedNoiseKeys) and privacy.secure_aggregation:
            # with fewer the masks cannot be taken off
            fewest = len(federation.parties) - privacy.tolerated_dropouts
            least = max(federation.min_parties or fewest, fewest)
        return SessionRules(least, federation.round_timeout, federation.on_missing == "stop")

    def _aggregator(
        self, plan: PlanJson, folder: Path, found: Mapping[str, Any] | None
    ) -> Aggregator:
        parameters = sum(parameter.numel() for parameter in self.model.module.parameters())
        levels = self.encoding.levels_of_columns
        told = plan | {"rows": dict(self.stage.rows)}
        facts = self.stage.with_estimates(
            facts_for_aggregator(self.config, told, parameters, self.model.task.outputs, levels)
        )
        mechanism = self.stage.mechanism(facts, noise_source(self.config))
        self._check_sums(mechanism)
        if mechanism.capabilities.private and mechanism.ledger_keeper == "aggregator":
            self.ledger = Ledger(self.config.privacy.ledger)
        sums = aggregator_sums(self.run_id, plan, self.sealer, mechanism, folder, found)
        # only then parties hold weights to limits
        hidden = mechanism.capabilities.private and not self.config.privacy.not_private
        limits = number_limits(self.config.party.caps, self.config) if hidden else None
        return build_aggregator(
            self.config,
            self.run_id,
            self._first_weights(),
            mechanism,
            self.ledger,
            sums,
            limits,
            found,
        )

    def _check_sums(self, mechanism: Mechanism) -> None:
        """Refuse to ask for answers that this process would not read, before a party pays for
        one.
        """
        most = self.sealer.limits.bytes
        for asked in mechanism.run.sums.values():
            if _NUMBER_BYTES * asked.dimension > most:
                raise ConfigError(
                    f"the sum {asked.name} has {asked.dimension} numbers, more than a message of "
                    f"{most} bytes holds; ask about fewer columns, classes or bins"
                )

    def _first_weights(self) -> Weights:
        if self.earlier is not None:
            return self.earlier.weights
        model = self.model
        if self.stage.estimating:
            encoding = public_encoding(self.stage.reading)
            model = trained_model(self.stage.reading, encoding.input_shape, encoding.classes)
        return {name: tensor.clone() for name, tensor in model.module.state_dict().items()}

    def _measured(self, number: int, weights: Weights) -> dict[str, float | None]:
        if self.stage.estimating:
            return round_metrics(self.model.module, self.model.task, [])
        load_into(self.model.module, weights)
        tables = (
            [self.test] if self.test is not None and self.config.train.evaluates(number) else []
        )
        return round_metrics(self.model.module, self.model.task, tables)

    @staticmethod
    def _numbers(
        aggregator: Aggregator, plans: Mapping[str, PartyPlan], found: RoundReport
    ) -> dict[str, float]:
        """What the round cost: epsilon by the plan, the noise that was added here, and what
        travelled.
        """
        numbers = promised_numbers(plans, found.round) if plans else {}
        if aggregator.applied_sigma is not None:
            numbers["applied_sigma"] = aggregator.applied_sigma
        if not aggregator.mechanism.hides_cohort:
            messages = 2 * len(found.replied) + len(found.missing)
            numbers["bytes"] = float(payload_bytes(found.weights) * messages)
        return numbers

    def _write(self, aggregator: Aggregator, session: AggregatorSession, plan: PlanJson) -> None:
        config, output = self.config, self.config.output
        plan = plan | {"rows": dict(self.stage.rows)}
        promised = promised_statement(config, aggregator, plan, aggregator.round)
        if not aggregator.mechanism.capabilities.trains:
            self.found = results_of(aggregator.mechanism, aggregator.weights, self.run_id, promised)
            self.life.finish(published(config, self.found))
            return
        statement = continued_statement(promised, self.earlier, config.data.dataset)
        files = {
            "model": Path(output.modelFileName),
            "indicators": Path(output.indicatorFileName),
            "config": companion(output.indicatorFileName, "config.yaml"),
        }
        save_model(files["model"], aggregator.final_weights, self._card(statement))
        write_whole(files["config"], dump_yaml(config).encode(), "resolved config")
        if self.ledger is not None:
            files["ledger"] = companion(output.indicatorFileName, "ledger.json")
            write_json(files["ledger"], self.ledger.extract(self.run_id), "ledger extract")
        indicators = self._indicators(aggregator, session, statement)
        write_indicators(files["indicators"], indicators)
        crash_point("aggregator.written")
        found = released_of(session.rows) | judged(session.rows, config)
        ending = Ending(
            statement=statement,
            files=files,
            guarantee=statement_lines(statement),
            summary={
                "run": self.run_id,
                "rounds_done": session.aggregator.round,
                "privacy": statement,
            },
            numbers=numbers_of(indicators),
            tables=self._tables(session),
            warnings=[no_better_than_majority(indicators)],
            lines=[released_line(found), judged_line(found)],
        )
        self.life.finish(ending)

    def _indicators(
        self, aggregator: Aggregator, session: AggregatorSession, statement: Mapping[str, Any]
    ) -> dict[str, Any]:
        task, threshold = self.model.task, self.config.predict.threshold
        test: Mapping[str, Any] = no_metrics(task, "test_")
        if self.test is not None:
            load_into(self.model.module, aggregator.final_weights)
            test = evaluate(task, *score_tables(self.model.module, [self.test]), "test_", threshold)
            if task.kind != "regression" and self.test.labels is not None:
                test = {**test, "test_majority": majority(self.test.labels)}
        counted = sum(bool(row["counted"]) for row in session.rows)
        heads = {name: session.members.heads.newest(name) for name in session.members.parties}
        extra = {
            "bounds": bounds_facts(self.config),
            "setup": aggregator_setup(self.config, self.sealer),
            **report_facts(self.config),
            "run": self.run_id,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": __version__,
            "data": self.config.data.dataset,
            "model": self.config.model.factory or self.config.model.name,
            "rounds_done": aggregator.round,
            "rounds_counted": counted,
            "refused": dict(session.members.refusals),
            "ledger_heads": heads,
        }
        extra |= released_of(session.rows) | judged(session.rows, self.config)
        rows = session.rows
        if (
            aggregator.mechanism.hides_cohort
        ):  # heads count the rounds that a party was in, and refusals name who was asked
            rows = [{key: value for key, value in row.items() if key not in WHO} for row in rows]
            extra |= {"ledger_heads": {}, "refused": {}}
        return build_indicators(no_metrics(task, "train_"), test, statement, rows, [], extra)

    def _card(self, statement: Mapping[str, Any]) -> ModelCard:
        return ModelCard(
            architecture=self.model.architecture,
            classes=tuple(self.model.task.classes),
            label=self.config.data.label,
            encoding=self.encoding.to_json(),
            threshold=self.config.predict.threshold,
            target_bounds=self.config.data.target_bounds,
            privacy={**statement, "data": self.config.data.dataset},
        )

    @staticmethod
    def _tables(session: AggregatorSession) -> list[Table]:
        """Who replied how often, unless cohorts are drawn in secret."""
        if session.aggregator.mechanism.hides_cohort:
            return []
        replied = Counter(name for row in session.rows for name in row["replied"])
        missed = Counter(name for row in session.rows for name in row["missing"])
        rows = [[name, replied[name], missed[name]] for name in session.members.parties]
        return [Table("rounds", ["party", "replied", "missed"], rows)]
