"""From a configuration to the objects of a run: facts, mechanism, parties, aggregator."""

from __future__ import annotations

import importlib
import inspect
import logging
import zlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch

from homo_dp.config.base import Conflict
from homo_dp.config.capabilities import Capabilities
from homo_dp.config.federation import CapsConfig
from homo_dp.config.mechanisms import BUILT_IN, capabilities_of, where_is
from homo_dp.config.privacy import RecordKeys
from homo_dp.config.rules import check_rules
from homo_dp.config.schema import LINEAR_MODELS, Config
from homo_dp.config.train import TrainConfig
from homo_dp.core.errors import ConfigError, DataError
from homo_dp.data.columns import Level
from homo_dp.data.rows import Table
from homo_dp.federation.mechanisms.base import (
    FederationFacts,
    Levels,
    Mechanism,
    PartyFacts,
    Weights,
    party_weights,
)
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.mechanisms.server_optimizers import ServerOptimizer
from homo_dp.federation.mechanisms.statistics import Numbers
from homo_dp.federation.sessions.aggregator import Aggregator, AggregatorSettings
from homo_dp.federation.sessions.party import PartyLimits
from homo_dp.federation.sessions.secure_rounds import AggregatorSums
from homo_dp.models.architecture import architecture_of
from homo_dp.models.averaging import WeightAverage
from homo_dp.models.device import torch_device
from homo_dp.models.fixed_features import trained_part
from homo_dp.models.registry import BuiltModel, build_model
from homo_dp.models.scoring import with_features
from homo_dp.models.task import task_for
from homo_dp.privacy.accounting.checks import check_steps, exact_steps
from homo_dp.privacy.ledger import Budget, Ledger
from homo_dp.privacy.noise.source import NoiseSource, OrdinaryNoise, SeededNoise, secure_noise

log = logging.getLogger(__name__)


def party_facts(config: Config, name: str, rows: int) -> PartyFacts:
    """A party's sampling rate and steps: q = batch / rows, steps = ceil(epochs / q)."""
    train = config.train
    rate = train.sample_rate
    if rate is None:
        rate = min(1.0, (train.batch_size or rows) / rows)
    steps = train.local_steps or _steps_of_epochs(train, rows)
    check_steps(steps * train.rounds, "train.rounds times the local steps of a round")
    return PartyFacts(
        name=name, rows=rows, rounds=train.rounds, steps_per_round=steps, sample_rate=rate
    )


def _steps_of_epochs(train: TrainConfig, rows: int) -> int:
    batch = min(train.batch_size or rows, rows)
    rate = Fraction(str(train.sample_rate)) if train.sample_rate else Fraction(batch, rows)
    return exact_steps(train.local_epochs or 1, rate)


def federation_facts(
    config: Config,
    rows: Mapping[str, int],
    parameters: int,
    outputs: int = 1,
    levels: Levels | None = None,
) -> FederationFacts:
    """The public facts of a run, from declared row counts."""
    parties = {name: party_facts(config, name, count) for name, count in rows.items()}
    warn_of_full_batches(config, parties)
    return common_facts(
        config,
        FederationFacts(
            parties, config.train.rounds, parameters, outputs=outputs, levels=levels or {}
        ),
    )


def common_facts(config: Config, facts: FederationFacts) -> FederationFacts:
    """The facts as the mechanism reads them: one that takes one step a round has one rate for
    all parties.
    """
    return mechanism_class(config.privacy.mechanism).common_facts(facts)


def warn_of_full_batches(config: Config, parties: Mapping[str, PartyFacts]) -> None:
    """One line where some parties have no more rows than a batch: their steps gain nothing from
    sampling.
    """
    if not capabilities(config).trains:
        return
    full = [
        facts
        for facts in parties.values()
        if facts.sample_rate >= 1 and config.train.sample_rate is None
    ]
    if full:
        batch, others = config.train.batch_size or full[0].rows, len(full) - 1
        log.warning(
            "train.batch_size=%d is not below the %d rows of party %s%s: every step takes all rows",
            batch,
            full[0].rows,
            full[0].name,
            f" (nor of {others} others)" if others else "",
        )


def noise_source(config: Config) -> NoiseSource:
    """The secure source, unless the config asks by name for seeded noise, which is NOT PRIVATE,
    or secure mode off.
    """
    seed = config.privacy.seeded_noise_for_tests
    if seed is not None:
        return SeededNoise(seed)
    return secure_noise() if config.privacy.secure_mode else OrdinaryNoise()


def build_mechanism(config: Config, facts: FederationFacts, noise: NoiseSource) -> Mechanism:
    """The mechanism that the config names; ``package.module:Class`` loads the user's own."""
    found = mechanism_class(config.privacy.mechanism)
    try:
        check_rules(config, found.capabilities)
    except Conflict as error:
        raise ConfigError(str(error)) from None
    return found(config, facts, noise)


def mechanism_class(name: str) -> type[Mechanism]:
    """The class behind ``privacy.mechanism``."""
    module_name, _, class_name = where_is(name).partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:
        # the module is the user's own code, and may fail in any way
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"privacy.mechanism={name}: cannot be loaded ({why}); give package.module:Class"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Mechanism)):
        raise ConfigError(
            f"privacy.mechanism={name}: is not a subclass of "
            "homo_dp.federation.mechanisms.base.Mechanism"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError(
            f"privacy.mechanism={name}: does not define {missing}; see docs/extend.md"
        )
    if not isinstance(getattr(found, "capabilities", None), Capabilities):
        raise ConfigError(
            f"privacy.mechanism={name}: has no record of capabilities; see docs/extend.md"
        )
    return found


def capabilities(config: Config) -> Capabilities:
    """What the mechanism of a config can do, by its class."""
    name = config.privacy.mechanism
    return capabilities_of(name) if name in BUILT_IN else mechanism_class(name).capabilities


def trained_model(
    config: Config, input_shape: tuple[int, ...], classes: tuple[Level, ...] | None
) -> BuiltModel:
    """The model of a run; where nothing is trained, what stands for it."""
    train, data, public = config.train, config.data, config.privacy.public_tensors
    if capabilities(config).trains:
        return build_model(
            config.model, input_shape, classes, train.seed, data.target_bounds, public
        )
    task = task_for(classes, target_bounds=data.target_bounds)
    return BuiltModel(
        Numbers((input_shape[0] + 2, 2)),
        task,
        architecture_of(config.model, input_shape, task.outputs),
    )


def build_fit(
    config: Config, model: BuiltModel, table: Table, facts: PartyFacts, test: Table | None = None
) -> LocalFit:
    """One party's local training; its shuffles come from the seed and its name, its noise never
    does.
    """
    if table.labels is None:
        raise DataError(f"party {facts.name}: has no labels; set data.label to the label column")
    generator = torch.Generator().manual_seed(
        zlib.crc32(f"{config.train.seed}/{facts.name}".encode())
    )
    device = torch_device(config.train.device)
    module, labels = trained_part(model.module).to(device), table.labels.to(device)
    features = with_features(model.module, table).features.to(device)
    fit = LocalFit(module, model.task.loss, features, labels, facts, config.train, generator)
    if test is not None and test.labels is not None and config.metrics.release == "noised":
        fit.test = (model.task, with_features(model.module, test).features, test.labels)
    return fit


def run_budget(config: Config) -> Budget:
    """What the ledger enforces: the target of this run and the lifetime of the data set."""
    privacy = config.privacy
    lifetime_delta = None if privacy.lifetime_epsilon is None else config.lifetime_delta
    return Budget(privacy.target_epsilon, privacy.lifetime_epsilon, lifetime_delta)


def number_limits(caps: CapsConfig, config: Config) -> PartyLimits:
    """What an aggregator may send at most; less to networks, where rounding could carry one row
    to another.
    """
    linear = config.model.factory is None and config.model.name in LINEAR_MODELS
    network = isinstance(config.privacy, RecordKeys) and not linear
    return PartyLimits(caps.max_weight, caps.max_rate, caps.max_network_weight if network else None)


def build_aggregator(
    config: Config,
    run: str,
    weights: Weights,
    mechanism: Mechanism,
    ledger: Ledger | None,
    sums: AggregatorSums | None = None,
    limits: PartyLimits | None = None,
    found: Mapping[str, Any] | None = None,
) -> Aggregator:
    """The aggregator of a run, or of its stage after what was ``found``.

    Args:
        config: the configuration of the stage.
        run: the name of the run.
        weights: where it starts.
        mechanism: the mechanism of the stage.
        ledger: where the aggregator adds the noise.
        sums: its side of masked sums.
        limits: those that parties elsewhere hold its weights to.
        found: what the first rounds have privately estimated.

    Returns:
        The aggregator; party weights are uniform or by the public row counts.
    """
    settings = AggregatorSettings(
        run=run,
        party_weights=party_weights(config, mechanism.facts),
        rounds=mechanism.run.count,
        dataset=config.data.dataset,
        budget=run_budget(config),
        # A sum over many users is longer than an update may be.
        max_update_norm=(
            None if mechanism.one_party_holds_all else config.federation.max_update_norm
        ),
        not_private=config.privacy.not_private,
        limits=limits,
        found=found,
    )
    optimizer = ServerOptimizer(config.train.server_optimizer)
    averaging = config.train.averaging
    rounds = config.train.rounds - config.train.calibration_rounds
    average = WeightAverage(averaging.kind, rounds, averaging.tail, averaging.decay)
    return Aggregator(settings, weights, mechanism, optimizer, average, ledger, sums)
