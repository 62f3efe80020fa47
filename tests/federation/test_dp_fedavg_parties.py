"""DP-FedAvg at parties: odd tensors and updates, the clip norm of a round, whole rounds through
messages.
"""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from homo_dp.federation.mechanisms.base import PartyFacts
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.sessions.aggregator import RoundReport
from homo_dp.federation.sessions.build import (
    build_aggregator,
    build_fit,
    build_mechanism,
    federation_facts,
    run_budget,
)
from homo_dp.federation.sessions.party import PartySettings
from homo_dp.federation.sessions.party_session import Party
from homo_dp.models.registry import build_model
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.gradients.losses import squared_error
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.noise.source import secure_noise
from tests.federation.in_memory import run_in_memory
from tests.federation.small import FEATURES, RUN, small_table
from tests.federation.small import zeros as model_zeros
from tests.federation.user_parts import (
    ADAPTIVE,
    EVERYONE,
    PARTIES,
    Keys,
    sent_by,
    user_config,
    user_mechanism,
)

# --- zero, NaN, scalar, buffers ---


class Odd(nn.Module):
    """A scalar weight, a frozen weight and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("counted", torch.tensor(5))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.sum(1) * self.scale + self.frozen.sum()


PUBLIC: Keys = {
    "privacy.public_tensors": ["frozen", "counted"],
    "train.local_steps": 1,
    "train.learning_rate": 0.1,
}


def odd_fit(config: Any, labels: float = 0.0) -> LocalFit:
    facts = PartyFacts("users", 4, 10, config.train.local_steps, 1.0)
    features = torch.full((4, 3), 0.5)
    return LocalFit(
        Odd(),
        squared_error,
        features,
        torch.full((4,), labels),
        facts,
        config.train,
        torch.Generator().manual_seed(0),
    )


def test_a_scalar_weight_is_clipped_and_public_tensors_stay() -> None:
    config = user_config(PUBLIC, {"train.learning_rate": 1e6})
    mechanism = user_mechanism(config)
    fit = odd_fit(config)
    release = fit.fit(mechanism, fit.weights(), 1, {"clip_norm": 3.0})
    assert abs(abs(float(release.tensors["scale"])) - 3.0) < 1e-4
    assert release.tensors["frozen"].tolist() == [0.0, 0.0]
    assert int(release.tensors["counted"]) == 0
    update = type(sent_by(mechanism, torch.zeros(1, 1))[0])("u", release.tensors, 1.0, {})
    combined = mechanism.on_receive([update], fit.start, 1)
    assert int(combined.weights["counted"]) == 5
    assert combined.weights["frozen"].tolist() == [1.0, 1.0]
    assert float(combined.weights["scale"]) != 1.0


@pytest.mark.parametrize("public", [[], ["counted"], ["frozen"]])
def test_undeclared_buffers_and_frozen_weights_are_refused(public: list[str]) -> None:
    config = user_config(PUBLIC, {"privacy.public_tensors": public})
    fit = odd_fit(config)
    with pytest.raises(PrivacyError, match=r"public_tensors"):
        fit.fit(user_mechanism(config), fit.weights(), 1, {"clip_norm": 3.0})


def test_a_trained_weight_cannot_be_declared_public() -> None:
    config = user_config(PUBLIC, {"privacy.public_tensors": ["frozen", "counted", "scale"]})
    fit = odd_fit(config)
    with pytest.raises(PrivacyError, match="trained on data"):
        fit.fit(user_mechanism(config), fit.weights(), 1, {"clip_norm": 3.0})


def test_an_integer_tensor_is_refused_at_the_aggregator_too() -> None:
    with pytest.raises(PrivacyError, match="counted"):
        user_mechanism(user_config()).on_receive([], {"counted": torch.tensor(1)}, 1)


def test_a_zero_update_is_sent_as_zero() -> None:
    mechanism = user_mechanism(user_config(ADAPTIVE))
    sent = mechanism.contributions(torch.zeros(1, 3), 3.0, torch.tensor([True]))
    assert sent.rows.tolist() == [[0.0, 0.0, 0.0]]
    assert sent.bits.tolist() == [0.5]


def test_an_update_that_is_not_finite_counts_as_zero_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = user_config(PUBLIC, ADAPTIVE)
    fit, mechanism = odd_fit(config, labels=math.inf), user_mechanism(config)
    with caplog.at_level(logging.WARNING):
        release = fit.fit(mechanism, fit.weights(), 1, {"clip_norm": 3.0})
    assert float(release.tensors["scale"]) == 0.0
    assert release.info == {"clip_bit": -0.5}
    assert mechanism.not_finite == 1
    assert "count as zero" in caplog.text


# --- clip norm of a round, clip_each_step ---


class Watched(DpFedAvg):
    """Writes down how far the weights are from the global ones after each batch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.distances: list[float] = []

    def after_batch(self, fit: LocalFit) -> None:
        super().after_batch(fit)
        self.distances.append(abs(float(fit.weights()["scale"] - fit.start["scale"])))


def test_clip_each_step_projects_after_every_batch_and_remembers_it() -> None:
    keys: Keys = {
        "privacy.clip_each_step": True,
        "train.local_steps": 2,
        "train.learning_rate": 1e6,
    }
    config = user_config(PUBLIC, ADAPTIVE, keys)
    mechanism = Watched(config, user_mechanism(config).facts, secure_noise())
    fit = odd_fit(config)
    release = fit.fit(mechanism, fit.weights(), 1, {"clip_norm": 3.0})
    assert len(mechanism.distances) == 2
    assert max(mechanism.distances) <= 3.0
    assert abs(float(release.tensors["scale"])) <= 3.0
    assert release.info == {"clip_bit": -0.5}  # it was clipped on the way, though what is sent fits


def test_a_party_keeps_to_its_own_fixed_clip_norm() -> None:
    config = user_config(PUBLIC)
    fit = odd_fit(config)
    with pytest.raises(PrivacyError, match="clip_norm=50"):
        fit.fit(user_mechanism(config), fit.weights(), 1, {"clip_norm": 50.0})


@pytest.mark.parametrize("asked", [{}, {"clip_norm": 0.0}, {"clip_norm": math.inf}])
def test_an_impossible_clip_norm_is_refused(asked: dict[str, float]) -> None:
    config = user_config(PUBLIC, ADAPTIVE)
    fit = odd_fit(config)
    with pytest.raises(PrivacyError, match="clip_norm"):
        fit.fit(user_mechanism(config), fit.weights(), 1, asked)


# --- whole rounds with parties, through bytes ---


def federation(
    config: Any, folder: Path, names: list[str]
) -> tuple[list[RoundReport], Ledger, dict[str, Party]]:
    facts = federation_facts(config, dict.fromkeys(names, 20), FEATURES + 1)
    ledger = Ledger(folder / "ledger.sqlite")
    parties = {}
    for seed, name in enumerate(names):
        fit = build_fit(
            config,
            build_model(config.model, (FEATURES,), (0, 1)),
            small_table(seed=seed),
            facts.parties[name],
        )
        settings = PartySettings(
            name, RUN, f"small/{name}", run_budget(config), config.privacy.trust_aggregator
        )
        parties[name] = Party(settings, fit, build_mechanism(config, facts, secure_noise()), ledger)
    mechanism = build_mechanism(config, facts, secure_noise())
    aggregator = build_aggregator(config, RUN, model_zeros(), mechanism, ledger)
    handlers = {name: party.handle for name, party in parties.items()}
    reports = run_in_memory(aggregator, handlers, stop_on_missing=False, least=0)
    return reports, ledger, parties


SMALL: Keys = {
    "privacy.population": 6,
    "privacy.clip_norm": 0.5,
    "train.rounds": 3,
    "train.local_steps": 2,
    "train.sample_rate": 0.5,
    "data.name": "small",
}


@pytest.mark.parametrize(
    "sampling", [{"privacy.sampling": "poisson", "privacy.cohort_size": 3}, EVERYONE]
)
def test_rounds_with_a_trusted_aggregator(sampling: Keys, tmp_path: Path) -> None:
    config = user_config(SMALL, sampling)
    reports, ledger, _ = federation(config, tmp_path, [f"p{number}" for number in range(6)])
    rows = ledger.rows()
    assert [(row.party, row.round, row.kind, row.observer) for row in rows] == [
        ("aggregator", number, "model", "model_reader") for number in (1, 2, 3)
    ]
    assert {row.sigma for row in rows} == {1.0}
    assert all(report.metrics["clip_norm"] == 0.5 for report in reports)
    assert reports[-1].weights["linear.weight"].any()


def test_rounds_with_noise_at_the_parties(tmp_path: Path) -> None:
    adaptive: Keys = {"privacy.clipping": "adaptive", "privacy.adaptive.bit_noise": 2.0}
    keys: Keys = {"privacy.trust_aggregator": False, "privacy.tolerated_dropouts": 2}
    config = user_config(SMALL, PARTIES, EVERYONE, adaptive, keys)
    reports, ledger, parties = federation(config, tmp_path, [f"p{number}" for number in range(6)])
    rows = ledger.rows()
    assert len(rows) == 18
    assert {(row.kind, row.observer, row.unit) for row in rows} == {
        ("update", "aggregator", "user")
    }
    share = parties["p0"].mechanism
    assert isinstance(share, DpFedAvg)
    first = [row.sigma for row in rows if row.round == 1]
    assert first == [share.numbers.share_sigma(0.5)] * 6
    assert reports[1].metrics["clip_norm"] != 0.5


def test_parties_that_do_not_trust_the_aggregator_refuse_its_noise(tmp_path: Path) -> None:
    config = user_config(SMALL, EVERYONE)
    facts = federation_facts(config, {"a": 20}, FEATURES + 1)
    fit = build_fit(
        config, build_model(config.model, (FEATURES,), (0, 1)), small_table(), facts.parties["a"]
    )
    settings = PartySettings("a", RUN, "small/a", run_budget(config), trust_aggregator=False)
    with pytest.raises(PrivacyError, match="trust_aggregator"):
        Party(
            settings,
            fit,
            build_mechanism(config, facts, secure_noise()),
            Ledger(tmp_path / "ledger.sqlite"),
        )


def test_a_round_over_the_budget_is_refused_before_it_starts(tmp_path: Path) -> None:
    config = user_config(
        SMALL,
        EVERYONE,
        {"privacy.lifetime_epsilon": 2.5, "data.embedded": None, "data.files": "x.csv"},
    )
    facts = federation_facts(config, {"a": 20}, FEATURES + 1)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    mechanism = build_mechanism(config, facts, secure_noise())
    aggregator = build_aggregator(config, RUN, model_zeros(), mechanism, ledger)
    aggregator.start_round()
    aggregator.finish_round()
    with pytest.raises(BudgetExceeded, match="lifetime"):
        aggregator.start_round()
    assert aggregator.round == len(ledger.rows()) == 1
