"""User-level mechanisms over a vector of any length, without data: what the checks measure."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from homo_dp.config.load import load_config
from homo_dp.config.privacy import UserKeys, keys_of
from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.base import FederationFacts, PartyFacts, Update, Weights
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.privacy.noise.source import NoiseSource, SeededNoise

Keys = dict[str, Any]
SERVER: Keys = {"privacy.noise_at": "server", "privacy.trust_aggregator": True}
PARTIES: Keys = {"privacy.noise_at": "parties", "privacy.sampling": "fixed"}
POISSON: Keys = {"privacy.sampling": "poisson", "privacy.cohort_size": 50}
FIXED: Keys = {"privacy.sampling": "fixed", "privacy.cohort_size": 50}
EVERYONE: Keys = {"privacy.sampling": "everyone"}
ADAPTIVE: Keys = {"privacy.clipping": "adaptive", "privacy.adaptive.initial_clip_norm": 3.0}


def user_config(*parts: Keys) -> Config:
    """Fifty of a thousand users a round, z = 2, C = 3; later parts win."""
    keys: Keys = {
        "privacy.mechanism": "dp_fedavg",
        "privacy.population": 1000,
        "privacy.cohort_size": 50,
        "privacy.noise_multiplier": 2.0,
        "privacy.clip_norm": 3.0,
        "train.rounds": 10,
        **SERVER,
    }
    for part in parts:
        keys |= part
    if keys.get("privacy.sampling") == "everyone":
        keys.pop("privacy.cohort_size", None)
    return load_config(None, keys)


def user_mechanism(
    config: Config,
    kind: type[DpFedAvg] = DpFedAvg,
    seed: int = 0,
    noise: NoiseSource | None = None,
    parameters: int = 1,
) -> DpFedAvg:
    facts = PartyFacts(
        "users", keys_of(config.privacy, UserKeys).population or 0, config.train.rounds, 1, 1.0
    )
    federation = FederationFacts({"users": facts}, config.train.rounds, parameters)
    return kind(config, federation, noise or SeededNoise(seed))


def zeros(size: int) -> Weights:
    return {"weight": torch.zeros(size)}


def sent_by(mechanism: DpFedAvg, rows: Tensor, within: Tensor | None = None) -> list[Update]:
    """What users with these differences send, as the aggregator gets it."""
    if not len(rows):
        return []
    everyone = torch.ones(len(rows), dtype=torch.bool) if within is None else within
    sent = mechanism.contributions(rows, mechanism.clip_norm, everyone)
    return [
        Update(f"u{number}", {"weight": row}, 1.0, {"clip_bit": float(bit)})
        for number, (row, bit) in enumerate(zip(sent.rows, sent.bits, strict=True))
    ]


def mean_of(mechanism: DpFedAvg, updates: Sequence[Update], size: int) -> Tensor:
    """The mean update of one round, noise included."""
    return mechanism.on_receive(updates, zeros(size), 1).weights["weight"]
