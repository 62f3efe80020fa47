"""Simulations that hide whole users: all users of a table in one process, or parties that hold them
and share noise.

Where the data have a user column, a user is all rows with one value there; else every party is one
user.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from homo_dp.config.privacy import UserKeys, keys_of
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.data.images import is_there
from homo_dp.data.parties import Federation, load_federation
from homo_dp.data.public_facts import planned_rows
from homo_dp.federation.mechanisms.base import FederationFacts, Mechanism, PartyFacts
from homo_dp.federation.mechanisms.cohort_mechanism import CohortMechanism
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.mechanisms.train_hooks import active_hooks
from homo_dp.federation.sessions.aggregator import RoundReport
from homo_dp.federation.sessions.build import (
    build_mechanism,
    capabilities,
    federation_facts,
    mechanism_class,
    noise_source,
    run_budget,
)
from homo_dp.federation.sessions.crash_state import Row
from homo_dp.federation.sessions.party import PartyLimits, PartySettings
from homo_dp.federation.sessions.party_session import Party
from homo_dp.federation.users.cohorts import CohortTraining, OneAtATime, cohort_training
from homo_dp.federation.users.user_rows import Users
from homo_dp.federation.users.users_fit import UsersFit, users_fit
from homo_dp.privacy.accounting.accountants import check_delta
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.runs.simulation import USERS, RoundRow, Simulation

log = logging.getLogger(__name__)

COUNTED = (
    "counted, and public with this run: noise and sample rate disclose the number; declare "
    "privacy.population"
)
NOTE = "Epsilon covers all rows of one user; a person who is several users adds their epsilons."


class UserSimulation(Simulation):
    """One in-process run that hides whole users.

    Guarantees:
        - a round is on the ledger before its weights are used, and refused before it starts if it
          would not fit;
        - where parties add the noise, every user is charged as if it took part in every round, so
          that the ledger's extract tells nobody who did;
        - cohorts are in no file, metric or message.
    """

    @functools.cached_property
    def users(self) -> Users:
        """The training rows, user by user."""
        parties, names = self.federation.parties, self.federation.user_names
        return Users.of_tables(
            [party.train for party in parties.values()], list(parties) if names is None else names
        )

    def _with_delta(self, config: Config) -> Config:
        declared = keys_of(config.privacy, UserKeys).population
        return config.with_delta([declared or len(self.users)])

    @property
    def user_mechanism(self) -> CohortMechanism:
        """The mechanism, which works on sums over users."""
        if not isinstance(self.mechanism, CohortMechanism):
            raise ConfigError(
                f"privacy.mechanism={self.mechanism.name}: is not a sum over users; they cannot be "
                "simulated"
            )
        return self.mechanism

    def statement(self, rounds_done: int, aggregator_sigma: float | None = None) -> dict[str, Any]:
        """The privacy statement after some rounds, with one entry for all users."""
        by_aggregator = self.mechanism.ledger_keeper == "aggregator"
        sigma = aggregator_sigma if by_aggregator else self.parties[USERS].applied_sigma
        declared = keys_of(self.config.privacy, UserKeys).population is not None
        made = self._statement(rounds_done, {USERS: sigma}, declared_rows=declared)
        return {**made, "note": NOTE, **({} if declared else {"rows": COUNTED})}

    def _facts(self, parameters: int) -> FederationFacts:
        declared = keys_of(self.config.privacy, UserKeys).population
        if declared is not None and declared < len(self.users):
            raise ConfigError(
                f"privacy.population={declared}: is below the {len(self.users)} users with "
                "training rows"
            )
        return user_facts(self.config, declared or len(self.users), parameters)

    def _mechanism(self) -> CohortMechanism:
        made = user_mechanism(self.config, self.facts, self.noise)
        trusted = self.config.privacy.trust_aggregator or self.config.privacy.not_private
        if made.ledger_keeper == "aggregator" and not trusted:
            raise PrivacyError(
                "privacy.trust_aggregator=false: the aggregator adds the noise; write true, or see "
                "noise_at"
            )
        if not self.config.privacy.not_private:
            check_delta(made.plan(self.facts.parties[USERS]).delta, self.facts.parties[USERS].rows)
        return made

    def _parties(self) -> dict[str, Party]:
        """One party that holds all users; it shares the mechanism of the aggregator, whose clip
        norm moves.
        """
        config, facts = self.config, self.facts.parties[USERS]
        settings = PartySettings(
            name=USERS,
            run=self.run_id,
            dataset=config.data.dataset,
            budget=run_budget(config),
            trust_aggregator=config.privacy.trust_aggregator,
            not_private=config.privacy.not_private,
            limits=PartyLimits(math.inf, math.inf),
        )
        return {
            USERS: Party(
                settings,
                UsersFit(self._training(), facts, config.train),
                self.mechanism,
                self.ledger,
                self.outboxes[USERS],
            )
        }

    def _training(self) -> CohortTraining:
        model, loss, train = self._build().module, self.model.task.loss, self.config.train
        if not self.user_mechanism.trains_together or active_hooks() is not None:
            log.info(
                "users are trained one at a time, since %s or the run has hooks of its own",
                self.mechanism.name,
            )
            return OneAtATime(model, loss, self.users, train)
        return cohort_training(model, loss, self.users, train)

    def _sigmas(self) -> dict[str, float | None]:
        return {}  # the noise of a round is among its metrics

    def _report(self, report: RoundReport, kept: Row) -> Row:
        # bytes would say who, or how many, took part
        return super()._report(replace(report, replied=()), kept)


class HolderSimulation(Simulation):
    """One in-process run of parties that hold users and share the noise of their sum under masks.

    Guarantees:
        - those of ``Simulation``: the same sessions, masks included, as between machines;
        - which of its users a party has drawn is known to that party alone.
    """

    def statement(self, rounds_done: int, aggregator_sigma: float | None = None) -> dict[str, Any]:
        """The privacy statement after some rounds; epsilon is of the population, whatever the
        rows of a party are.
        """
        sigmas = {name: party.applied_sigma for name, party in self.parties.items()}
        declared = keys_of(self.config.privacy, UserKeys).population is not None
        made = self._statement(rounds_done, sigmas, declared_rows=declared)
        return {**made, "note": NOTE, **({} if declared else {"rows": COUNTED})}

    def _with_delta(self, config: Config) -> Config:
        declared = keys_of(config.privacy, UserKeys).population
        return config.with_delta([declared or held_users(self.federation)])

    def _mechanism(self) -> Mechanism:
        declared, held = (
            keys_of(self.config.privacy, UserKeys).population,
            held_users(self.federation),
        )
        if declared is not None and declared < held:
            raise ConfigError(
                f"privacy.population={declared}: is below the {held} users that the parties hold"
            )
        return build_mechanism(
            with_population(self.config, declared or held), self.facts, self.noise
        )

    def _fit(self, name: str) -> LocalFit:
        table, facts = self.federation.parties[name].train, self.facts.parties[name]
        return users_fit(self.config, self._build(), table, name, facts, self.federation.user_names)


def held_users(federation: Federation) -> int:
    """Users over all parties; who is in several is counted in each, as each draws and clips
    alone.
    """
    tables = [party.train for party in federation.parties.values()]
    return sum(1 if table.users is None else len(set(table.users.tolist())) for table in tables)


def with_population(config: Config, population: int) -> Config:
    """The config with the number of users that was declared or counted."""
    privacy = keys_of(config.privacy, UserKeys).model_copy(update={"population": population})
    return config.model_copy(update={"privacy": privacy})


def build_simulation(
    config: Config,
    on_round: Callable[[RoundRow, Mapping[str, Mapping[str, float]]], None],
    begin: Callable[[Simulation], None] | None = None,
) -> Simulation:
    """The simulation that a config asks for: over users for a sum over a cohort, else over
    parties; the arguments are those of ``Simulation``.
    """
    if simulates_users(config):
        return UserSimulation(config, on_round, begin)
    found = HolderSimulation if shares_user_noise(config) else Simulation
    return found(config, on_round, begin)


def simulates_users(config: Config) -> bool:
    """Whether the mechanism works on sums over users, who are then trained together in one
    process.
    """
    return _sums_users(config) and not shares_user_noise(config)


def shares_user_noise(config: Config) -> bool:
    """Whether several parties hold the users and share the noise of their sum under masks."""
    data = config.data
    several = data.partition is not None or data.party_column is not None or len(data.files) > 1
    return _sums_users(config) and several and keys_of(config.privacy, UserKeys).secure_aggregation


def _sums_users(config: Config) -> bool:
    if capabilities(config).unit == "record":
        return False  # without a word to its class, which need not be loaded for this
    return issubclass(mechanism_class(config.privacy.mechanism), CohortMechanism)


def counted(config: Config) -> str:
    """What the number of rows of a party is of: all users stand under one name, and are counted
    themselves.
    """
    return "users" if simulates_users(config) else "rows"


def user_facts(config: Config, population: int, parameters: int) -> FederationFacts:
    """The public facts of a run over users: how many there are, and the probability of being in
    a round.
    """
    privacy = keys_of(config.privacy, UserKeys)
    rate = 1.0
    if privacy.sampling != "everyone":
        rate = privacy.sample_rate or (privacy.cohort_size or population) / population
    facts = PartyFacts(USERS, population, config.train.rounds, steps_per_round=1, sample_rate=rate)
    return FederationFacts({USERS: facts}, config.train.rounds, parameters)


def user_mechanism(config: Config, facts: FederationFacts, noise: NoiseSource) -> CohortMechanism:
    """The mechanism of a run over users, with the population of the facts."""
    made = build_mechanism(with_population(config, facts.parties[USERS].rows), facts, noise)
    if not isinstance(made, CohortMechanism):
        raise ConfigError(
            f"privacy.mechanism={made.name}: is not a sum over users; they cannot be simulated "
            "with it"
        )
    made.one_party_holds_all = True
    return made


def planned_user_mechanism(config: Config, parameters: int) -> Mechanism:
    """The mechanism for a dry run: from the declared population, or that of a bundled set."""
    population = planned_population(config)
    if shares_user_noise(config):
        facts = federation_facts(config, planned_rows(config)[0], parameters)
        return build_mechanism(with_population(config, population), facts, noise_source(config))
    return user_mechanism(config, user_facts(config, population, parameters), noise_source(config))


def planned_population(config: Config) -> int:
    """How many users a run over users has: declared, or those of a bundled or counted table."""
    return keys_of(config.privacy, UserKeys).population or _public_population(config)


def counts_users(config: Config) -> bool:
    """Whether a dry run has to look into files to know how many users there are."""
    data, declared = config.data, keys_of(config.privacy, UserKeys).population
    return (
        declared is None
        and bool(data.files)
        and (data.one_table is not None or data.user_column is not None)
    )


def _public_population(config: Config) -> int:
    data = config.data
    if counts_users(config):
        gone = [path for path in data.files.values() if not is_there(path)]
        if gone:
            raise ConfigError(
                f"privacy.population: is not declared, and {gone[0]} is not there to count its "
                "users in"
            )
    if (data.embedded is not None and not data.files) or counts_users(config):
        federation = load_federation(config)
        if shares_user_noise(config):
            return held_users(federation)
        return federation.users or len(federation.parties)
    return len(data.files)
