"""DP-FedAvg: what one user can change, what noise there is, what it costs; every check fails on
a broken mechanism.
"""

import logging
import math
from typing import Any

import pytest
import torch
from dp_accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from homo_dp.config.privacy import UserKeys, keys_of
from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.federation.sessions.build import build_aggregator
from homo_dp.federation.sessions.statement import privacy_statement
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import secure_noise
from tests.federation.broken_dp_fedavg import (
    DividesByReplies,
    ForgetsFactorTwo,
    FullNoiseAtEveryParty,
    NoClipping,
    NoiseDropped,
    NoiseTwice,
    WeighsByRows,
)
from tests.federation.small import RUN
from tests.federation.user_checks import (
    check_a_missing_reply_lowers_the_sum_only,
    check_event_covers_one_user,
    check_noise_on_the_mean,
    gaussian_of,
)
from tests.federation.user_parts import (
    ADAPTIVE,
    EVERYONE,
    FIXED,
    PARTIES,
    POISSON,
    SERVER,
    Keys,
    sent_by,
    user_config,
    user_mechanism,
    zeros,
)

FIFTY: Keys = {"privacy.population": 50}
SITES: list[tuple[Keys, ...]] = [
    (SERVER, POISSON),
    (SERVER, FIXED),
    (SERVER, EVERYONE, FIFTY),
    (PARTIES, FIXED),
    (PARTIES, FIXED, {"privacy.tolerated_dropouts": 10}),
    (PARTIES, EVERYONE, FIFTY),
    (PARTIES, FIXED, {"privacy.trust_aggregator": True}),
]
CLIPPINGS: list[Keys] = [{}, ADAPTIVE]


# --- noise on the final mean ---


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=["fixed", "adaptive"])
@pytest.mark.parametrize("site", SITES)
def test_noise_is_added_exactly_once(site: tuple[Keys, ...], clipping: Keys) -> None:
    config = user_config(*site, clipping)
    for replies in (50, 50 - keys_of(config.privacy, UserKeys).tolerated_dropouts):
        check_noise_on_the_mean(DpFedAvg, config, replies)


def test_missing_replies_leave_the_noise_of_the_aggregator() -> None:
    for replies in (0, 1, 30):
        check_noise_on_the_mean(DpFedAvg, user_config(), replies)


@pytest.mark.parametrize(
    ("kind", "site"),
    [
        (NoiseDropped, SITES[0]),
        (NoiseTwice, SITES[0]),
        (NoiseTwice, SITES[3]),
        (FullNoiseAtEveryParty, SITES[3]),
        (FullNoiseAtEveryParty, SITES[5]),
        (DividesByReplies, SITES[1]),
    ],
)
def test_broken_noise_is_noticed(kind: type[DpFedAvg], site: tuple[Keys, ...]) -> None:
    with pytest.raises(AssertionError):
        check_noise_on_the_mean(kind, user_config(*site), 30 if kind is DividesByReplies else 50)


def test_the_sigma_that_is_reported_is_the_one_that_was_added() -> None:
    tolerant = {"privacy.tolerated_dropouts": 10}
    mechanism = user_mechanism(
        user_config(PARTIES, EVERYONE, {"privacy.population": 50, "privacy.delta": 1e-3}, tolerant)
    )
    combined = mechanism.on_receive(sent_by(mechanism, torch.zeros(45, 4)), zeros(4), 1)
    assert math.isclose(combined.metrics["applied_sigma"], 2.0 * 3.0 * math.sqrt(45 / 40))
    server = user_mechanism(user_config(FIXED))
    combined = server.on_receive(sent_by(server, torch.zeros(45, 4)), zeros(4), 1)
    assert (combined.sigma, combined.metrics["applied_sigma"]) == (6.0, 6.0)


def test_the_sigma_of_a_secret_cohort_does_not_tell_how_many_replied() -> None:
    """Who knows that somebody never replies would see whether that one had been drawn, past the
    sampling's epsilon.
    """
    told = set()
    for replies in (40, 45, 50):
        mechanism = user_mechanism(user_config(PARTIES, {"privacy.tolerated_dropouts": 10}))
        combined = mechanism.on_receive(sent_by(mechanism, torch.zeros(replies, 4)), zeros(4), 1)
        told.add((combined.sigma, *sorted(combined.metrics.items())))
    assert len(told) == 1
    # what the guarantee rests on; more replies only add to it
    assert math.isclose(combined.sigma, 2.0 * 3.0)


# --- what one user can change ---


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=["fixed", "adaptive"])
@pytest.mark.parametrize(
    "sampling", [POISSON, FIXED, EVERYONE], ids=["poisson", "fixed", "everyone"]
)
def test_the_event_covers_one_user(sampling: Keys, clipping: Keys) -> None:
    check_event_covers_one_user(DpFedAvg, user_config(sampling, clipping))


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [(ForgetsFactorTwo, FIXED), (WeighsByRows, POISSON), (NoClipping, POISSON)],
)
def test_an_event_that_costs_too_little_is_noticed(kind: type[DpFedAvg], sampling: Keys) -> None:
    with pytest.raises(AssertionError):
        check_event_covers_one_user(kind, user_config(sampling))


@pytest.mark.parametrize("site", [site for site in SITES if site[0] is PARTIES])
def test_the_share_of_a_party_covers_what_the_aggregator_sees_of_it(site: tuple[Keys, ...]) -> None:
    config, size = user_config(*site), 20_000
    far = torch.full((1, size), 1e6)
    away = (
        -far if keys_of(config.privacy, UserKeys).sampling == "fixed" else torch.zeros(1, size)
    )  # everyone: an empty reply
    sent = [
        sent_by(user_mechanism(config), rows)[0].tensors["weight"].double() for rows in (far, away)
    ]
    silent = sent_by(user_mechanism(config), torch.zeros(1, size))[0].tensors["weight"].double()
    # rounding to the grid is hidden in one direction
    along = far[0].double() / float(far.double().norm())
    measured = float(silent.std()) / float((sent[0] - sent[1]) @ along)
    assert abs(gaussian_of(user_mechanism(config).numbers.share_event) / measured - 1) < 0.03


def test_half_the_replies_give_half_the_mean() -> None:
    check_a_missing_reply_lowers_the_sum_only(DpFedAvg, user_config(FIXED))
    with pytest.raises(AssertionError):
        check_a_missing_reply_lowers_the_sum_only(DividesByReplies, user_config(FIXED))


def test_the_aggregator_clips_what_it_adds_noise_to() -> None:
    mechanism = user_mechanism(user_config(SERVER, {"privacy.noise_multiplier": 1e-3}))
    update = sent_by(mechanism, torch.zeros(1, 1))[0]
    far = type(update)("liar", {"weight": torch.tensor([1e6])}, 1.0, {})
    moved = mechanism.on_receive([far], zeros(1), 1).weights["weight"]
    assert float(moved.abs()) * 50 < 3.1


# --- events, relations, epsilon ---


def test_events_of_the_samplers() -> None:
    def event(*parts: Keys) -> Any:
        return user_mechanism(user_config(*parts)).numbers.event

    poisson = PoissonSampledDpEvent(0.05, GaussianDpEvent(2.0))
    assert event(POISSON) == SelfComposedDpEvent(poisson, 1)
    fixed = SampledWithoutReplacementDpEvent(1000, 50, GaussianDpEvent(1.0))  # z / 2: replace one
    assert event(FIXED) == SelfComposedDpEvent(fixed, 1)
    assert event(EVERYONE) == SelfComposedDpEvent(GaussianDpEvent(2.0), 1)


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [(POISSON, "add_or_remove_one"), (FIXED, "replace_one"), (EVERYONE, "add_or_remove_one")],
)
def test_relation_and_accountants(sampling: Keys, relation: str) -> None:
    mechanism = user_mechanism(user_config(sampling))
    plan = mechanism.plan(mechanism.facts.parties["users"])
    assert plan.relation == relation
    assert (epsilon(plan.events["model_reader"], plan.delta).pld is None) is (
        relation == "replace_one"
    )


@pytest.mark.parametrize(
    "sampling", [POISSON, FIXED, EVERYONE], ids=["poisson", "fixed", "everyone"]
)
def test_a_target_covers_all_rounds(sampling: Keys) -> None:
    config = user_config(
        sampling, {"privacy.noise_multiplier": None, "privacy.target_epsilon": 3.0}
    )
    numbers = user_mechanism(config).numbers
    spent = epsilon(numbers.sampler.event(numbers.noise_multiplier, 10), config.delta).quoted
    assert 0.995 * 3.0 <= spent <= 3.0


def observers(*parts: Keys) -> dict[str, float | None]:
    mechanism = user_mechanism(user_config(*parts), noise=secure_noise())
    plans = {"users": mechanism.plan(mechanism.facts.parties["users"])}
    said = privacy_statement(mechanism, plans, 10, {"users": 1.0}, True, True, True)
    return {name: entry["epsilon"] for name, entry in said["observers"].items()} | {
        "quoted": said["epsilon"]
    }


def test_noise_at_the_aggregator_protects_against_model_readers_only() -> None:
    said = observers(SERVER)
    assert said["aggregator"] is None
    assert said["model_reader"] == said["quoted"] is not None


@pytest.mark.parametrize("sampling", [FIXED, (EVERYONE | FIFTY)], ids=["fixed", "everyone"])
def test_without_trust_the_target_holds_against_the_aggregator(sampling: Keys) -> None:
    target: Keys = {
        "privacy.noise_multiplier": None,
        "privacy.target_epsilon": 3.0,
        "privacy.trust_aggregator": False,
    }
    said = observers(PARTIES, sampling, target)
    assert said["aggregator"] is not None
    assert said["model_reader"] is not None
    assert 0.995 * 3.0 <= said["aggregator"] <= 3.0
    assert said["model_reader"] < said["aggregator"] == said["quoted"]


def test_with_trust_the_target_holds_against_model_readers_and_both_are_said() -> None:
    target: Keys = {
        "privacy.noise_multiplier": None,
        "privacy.target_epsilon": 3.0,
        "privacy.trust_aggregator": True,
    }
    said = observers(PARTIES, FIXED, target)
    assert said["aggregator"] is not None
    assert said["model_reader"] is not None
    assert 0.995 * 3.0 <= said["model_reader"] <= 3.0
    assert said["aggregator"] > 20 > said["model_reader"] == said["quoted"]


def test_the_aggregator_gets_no_amplification() -> None:
    numbers = user_mechanism(user_config(PARTIES, FIXED, {"privacy.tolerated_dropouts": 1})).numbers
    assert numbers.share_event == GaussianDpEvent(2.0 / math.sqrt(49) / 2)


def test_delta_must_be_below_one_over_the_population() -> None:
    with pytest.raises((PrivacyError, ConfigError), match=r"1 / privacy\.population"):
        user_config({"privacy.delta": 1e-3})


def test_a_population_must_be_declared() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.population"):
        user_mechanism(user_config({"privacy.population": None}))


@pytest.mark.parametrize(
    "keys", [{"privacy.clip_norm": 1e-13}, {**ADAPTIVE, "privacy.adaptive.initial_clip_norm": 1e13}]
)
def test_a_clip_norm_that_float32_does_not_resolve_is_refused_before_the_first_round(
    keys: Keys,
) -> None:
    with pytest.raises(PrivacyError, match="clip_norm=1e"):
        user_mechanism(user_config(keys))


def test_weighting_by_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="uniform"):
        user_mechanism(user_config({"train.weighting": "rows"}))


# --- cohorts ---


def test_cohorts_have_the_rate_that_is_accounted() -> None:
    # 200 cohorts of 1000 users at 5 %: the total has a deviation of 97, the tolerance is six of
    # them
    mechanism = user_mechanism(user_config(POISSON))
    sizes = [len(mechanism.draw()) for _ in range(200)]
    assert abs(sum(sizes) - 10_000) < 600
    assert len(set(sizes)) > 5
    fixed = user_mechanism(user_config(FIXED))
    assert {len(fixed.draw()) for _ in range(20)} == {50}


def test_parties_are_drawn_from_the_declared_population() -> None:
    names = [f"p{number}" for number in range(100)]
    mechanism = user_mechanism(user_config(FIXED))
    # 5 of the 50 numbers on average are parties
    drawn = [mechanism.cohort(names, 1) for _ in range(50)]
    assert 100 < sum(map(len, drawn)) < 400
    assert all(len(set(cohort)) == len(cohort) for cohort in drawn)


def test_more_parties_than_the_population_are_refused() -> None:
    with pytest.raises(PrivacyError, match="population=1000"):
        user_mechanism(user_config()).cohort([f"p{number}" for number in range(1001)], 1)


def test_an_empty_cohort_still_steps_and_still_adds_noise() -> None:
    config = user_config({"train.rounds": 1})
    mechanism = user_mechanism(config)
    aggregator = build_aggregator(config, RUN, zeros(1000), mechanism, None)
    aggregator.mechanism.on_receive([], zeros(1000), 1)
    assert mechanism.capabilities.answers_empty_rounds
    assert float(mechanism.on_receive([], zeros(1000), 1).weights["weight"].std()) > 0


# --- too many missing where the parties add the noise ---


@pytest.mark.parametrize("trust", [False, True])
def test_more_missing_than_tolerated_discards_and_charges(
    trust: bool, caplog: pytest.LogCaptureFixture
) -> None:
    keys: Keys = {"privacy.tolerated_dropouts": 5, "privacy.trust_aggregator": trust}
    mechanism = user_mechanism(user_config(PARTIES, FIXED, ADAPTIVE, keys))
    current = zeros(4)
    with caplog.at_level(logging.WARNING):
        combined = mechanism.on_receive(sent_by(mechanism, torch.ones(44, 4)), current, 7)
    assert combined.discarded
    assert combined.weights is current
    assert mechanism.clip_norm == 3.0
    assert "round 7: 6 of 50 replies are missing" in caplog.text
    assert "discarded" in caplog.text
    # the parties have charged their own ledgers before they sent; a trusted aggregator charges its
    # own
    assert (combined.event is not None) is trust
    enough = mechanism.on_receive(sent_by(mechanism, torch.ones(45, 4)), current, 8)
    assert not enough.discarded
