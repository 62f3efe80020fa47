"""Broken variants of NbAFL, and a federation of wide models to hold it and them against."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from dp_accounting import GaussianDpEvent
from scipy import optimize, stats

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.data.rows import Table
from homo_dp.federation.mechanisms.base import (
    FederationFacts,
    Mechanism,
    Observer,
    PartyPlan,
    Release,
    Weights,
)
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.mechanisms.nbafl import Nbafl
from homo_dp.federation.sessions.aggregator import Aggregator
from homo_dp.federation.sessions.build import (
    build_aggregator,
    build_fit,
    federation_facts,
    run_budget,
)
from homo_dp.federation.sessions.party import PartySettings
from homo_dp.federation.sessions.party_session import Party
from homo_dp.models.registry import build_model
from homo_dp.privacy.gradients.clipping import clip_vector
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.noise.source import NoiseSource, SeededNoise
from homo_dp.privacy.sampling.samplers import REPLACE_ONE

FEATURES, ROWS, C = 4000, 20, 2.0
RUN = "run-1"
# download noise: 8 rounds > 2 exposures x sqrt(4 parties)
PARTIES = {"a": ROWS, "b": ROWS, "c": ROWS, "d": ROWS}
WITH_DOWNLOAD: dict[str, Any] = {"train.rounds": 8, "nbafl.exposures": 2}
TRUSTED: dict[str, Any] = {
    **WITH_DOWNLOAD,
    "nbafl.noise_at_upload": False,
    "privacy.trust_aggregator": True,
}


# --- broken mechanisms


class NoiseBeforeClip(Nbafl):
    """Broken: the clip takes most of the noise away again."""

    def after_fit(self, fit: LocalFit) -> Release:
        clipped, _ = clip_vector(self._noised(fit.weights(), self.upload_sigma), self.clip_norm)
        return Release(clipped, self.upload_event, self.upload_sigma, REPLACE_ONE)


class NoiseDropped(Nbafl):
    """Broken: the noise is computed and not added."""

    def _noised(self, tensors: Weights, sigma: float) -> Weights:
        super()._noised(tensors, sigma)
        return tensors


class ClipPerTensor(Nbafl):
    """Broken: every tensor gets the whole clip norm."""

    def after_fit(self, fit: LocalFit) -> Release:
        clipped = {
            name: clip_vector({name: t}, self.clip_norm)[0][name]
            for name, t in fit.weights().items()
        }
        return Release(
            self._noised(clipped, self.upload_sigma),
            self.upload_event,
            self.upload_sigma,
            REPLACE_ONE,
        )


class DownloadAlwaysZero(Nbafl):
    """Broken: takes the number of parties for the exposures, as FederatedScope does: T > L
    sqrt(N) hardly ever then.
    """

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        super().__init__(config, facts, noise)
        self.download_sigma = replace(self.formula, exposures=self.formula.parties).download_sigma


class NominalAsAccounted(Nbafl):
    """Broken: reports the paper's epsilon as the accounted one."""

    def figures(
        self, plan: PartyPlan, epsilons: Mapping[Observer, float | None]
    ) -> Mapping[str, float | str | None]:
        return {**super().figures(plan, epsilons), "accounted_epsilon": self.config.nbafl.epsilon}


class AssumedSensitivity(Nbafl):
    """Broken: charges the noise as if a record could move the weights by 2C/m only."""

    @property
    def upload_event(self) -> GaussianDpEvent:
        return GaussianDpEvent(self.upload_sigma * self.formula.rows / (2 * self.clip_norm))


# --- a federation of wide logistic regressions that hardly train


def nbafl_config(**overrides: Any) -> Config:
    base = {
        "privacy.mechanism": "nbafl",
        "nbafl.epsilon": 10,
        "nbafl.clip_norm": C,
        "train.rounds": 2,
        "train.local_steps": 1,
        "train.learning_rate": 1e-9,
    }
    return load_config(
        None, base | {name.replace("__", "."): value for name, value in overrides.items()}
    )


def make(
    kind: type[Nbafl] = Nbafl, rows: Mapping[str, int] = PARTIES, seed: int = 0, **overrides: Any
) -> Nbafl:
    config = nbafl_config(**overrides)
    return kind(config, federation_facts(config, rows, FEATURES + 1), SeededNoise(seed))


def make_fit(mechanism: Mechanism, party: str = "a") -> LocalFit:
    generator = torch.Generator().manual_seed(1)
    table = Table(torch.rand(ROWS, FEATURES, generator=generator) * 2 - 1, torch.arange(ROWS) % 2)
    model = build_model(mechanism.config.model, (FEATURES,), (0, 1))
    return build_fit(mechanism.config, model, table, mechanism.facts.parties[party])


def make_party(mechanism: Mechanism, folder: Path, party: str = "a") -> Party:
    privacy = mechanism.config.privacy
    settings = PartySettings(
        party, RUN, f"wide/{party}", run_budget(mechanism.config), privacy.trust_aggregator
    )
    return Party(settings, make_fit(mechanism, party), mechanism, Ledger(folder / "ledger.sqlite"))


def make_aggregator(mechanism: Mechanism, ledger: Ledger | None = None) -> Aggregator:
    aggregator = build_aggregator(mechanism.config, RUN, weights(0.0), mechanism, ledger)
    aggregator.start_round()
    return aggregator


def weights(weight: float, bias: float = 0.0) -> Weights:
    return {
        "linear.weight": torch.full((1, FEATURES), weight),
        "linear.bias": torch.full((1,), bias),
    }


def flat(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)]).double()


def assert_deviation(noise: torch.Tensor, sigma: float) -> None:
    """Mean 0 and deviation sigma within five standard errors: n normals give a deviation with
    error sigma/sqrt(2n).
    """
    count = noise.numel()
    assert abs(float(noise.std()) - sigma) < 5 * sigma / math.sqrt(2 * count)
    assert abs(float(noise.mean())) < 5 * sigma / math.sqrt(count)


def closed_form(multiplier: float, releases: int, delta: float) -> float:
    """Epsilon of composed Gaussians (Balle & Wang 2018, theorem 8), solved here on its own."""
    mu = math.sqrt(releases) / multiplier

    def excess(epsilon: float) -> float:
        second = math.exp(epsilon + float(stats.norm.logcdf(-mu / 2 - epsilon / mu)))
        return float(stats.norm.cdf(mu / 2 - epsilon / mu)) - second - delta

    return float(optimize.brentq(excess, 0, mu**2 / 2 + 40 * mu, xtol=1e-12, rtol=1e-14))
