"""A federation of a few rows, for tests of parties and aggregators."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.data.rows import Table
from homo_dp.federation.mechanisms.base import Mechanism, Weights
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.build import (
    build_fit,
    build_mechanism,
    federation_facts,
    noise_source,
    run_budget,
)
from homo_dp.federation.sessions.fit_state import FitState
from homo_dp.federation.sessions.party import PartyLimits, PartySettings
from homo_dp.federation.sessions.party_session import Party
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.models.registry import build_model
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.ledger.outbox import MemoryOutbox, Outbox

RUN = "run-1"
FEATURES = 3


def small_config(**overrides: Any) -> Config:
    """Two rounds of two steps on a linear model; keys with __ for the dots."""
    keys = {name.replace("__", "."): value for name, value in overrides.items()}
    base = {
        "train.rounds": 2,
        "train.local_steps": 2,
        "train.sample_rate": 0.5,
        "privacy.noise_multiplier": 2.0,
    }
    return load_config(None, base | keys)


def small_mechanism(config: Config, rows: Mapping[str, int]) -> Mechanism:
    return build_mechanism(
        config, federation_facts(config, rows, FEATURES + 1), noise_source(config)
    )


def small_table(rows: int = 20, seed: int = 0) -> Table:
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(rows, FEATURES, generator=generator) * 2 - 1
    return Table(features, (features[:, 0] > 0).long())


def small_party(
    config: Config,
    folder: Path,
    name: str = "a",
    mechanism: Mechanism | None = None,
    outbox: Outbox | MemoryOutbox | None = None,
    table: Table | None = None,
    sums: PartySums | None = None,
    keep: Callable[[int, FitState], None] | None = None,
) -> Party:
    rows = table or small_table()
    first = mechanism or small_mechanism(config, {name: len(rows)})

    def renew() -> tuple[LocalFit, Mechanism]:
        classes = None if config.model.task == "regression" else (0, 1)
        model = build_model(config.model, (FEATURES,), classes)
        return build_fit(config, model, rows, first.facts.parties[name]), type(first)(
            config, first.facts, first.noise
        )

    privacy, caps = config.privacy, config.party.caps
    settings = PartySettings(
        name,
        RUN,
        f"small/{name}",
        run_budget(config),
        privacy.trust_aggregator,
        privacy.not_private,
        PartyLimits(caps.max_weight, caps.max_rate),
    )
    ledger = Ledger(folder / "ledger.sqlite")
    return Party(settings, renew()[0], first, ledger, outbox, renew, sums, keep)


def zeros() -> Weights:
    return {"linear.weight": torch.zeros(1, FEATURES), "linear.bias": torch.zeros(1)}


def weights_message(number: int = 1, party: str = "a", tensors: Weights | None = None) -> Message:
    return Message(
        RUN, number, "aggregator", party, "weights", zeros() if tensors is None else tensors
    )
