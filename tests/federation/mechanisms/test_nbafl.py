"""NbAFL: the paper's formulas, clip before noise, both noises as large as they should be, both
epsilons as labelled.

Each claim is a ``check_*`` function that raises AssertionError; it must pass on the mechanism and
fail on a broken one. The noise of these tests is seeded, so they always give the same verdict; the
bounds on a measured deviation are five of its standard errors, so another seed would fail with
probability below 1e-6.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import given
from hypothesis import strategies as st

from homo_dp.core.errors import ConfigError
from homo_dp.federation.mechanisms.base import PartyPlan, Update
from homo_dp.federation.mechanisms.nbafl import Formula, Nbafl, noise_constant, schedule
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.build import (
    build_fit,
    build_mechanism,
    federation_facts,
    run_budget,
)
from homo_dp.federation.sessions.party import PartySettings
from homo_dp.federation.sessions.party_session import Party
from homo_dp.federation.sessions.statement import privacy_statement
from homo_dp.models.registry import build_model
from homo_dp.privacy.accounting.events import from_json
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.gradients.clipping import vector_norm
from homo_dp.privacy.ledger import Ledger
from homo_dp.privacy.noise.source import SeededNoise, secure_noise
from tests.federation import small
from tests.federation.nbafl_parts import (
    PARTIES,
    ROWS,
    RUN,
    TRUSTED,
    WITH_DOWNLOAD,
    AssumedSensitivity,
    C,
    ClipPerTensor,
    DownloadAlwaysZero,
    NoiseBeforeClip,
    NoiseDropped,
    NominalAsAccounted,
    assert_deviation,
    closed_form,
    flat,
    make,
    make_aggregator,
    make_fit,
    make_party,
    nbafl_config,
    weights,
)

# --- the claims


def check_upload_noise(kind: type[Nbafl]) -> None:
    """What is uploaded is the clipped weights plus noise of the formula's deviation, which is
    the one reported.
    """
    mechanism = make(kind)
    assert mechanism.formula.upload_sigma == 2 * noise_constant(0.01) * C * 2 / (ROWS * 10)
    start = weights(1.0, 30.0)
    release = make_fit(mechanism).fit(mechanism, start, 1, {})
    assert release.sigma == mechanism.formula.upload_sigma
    assert_deviation(flat(release.tensors) - flat(start) * C / vector_norm(start), release.sigma)


def check_one_vector(kind: type[Nbafl]) -> None:
    """All tensors together have norm C at most, before a noise that is too small to matter here."""
    mechanism = make(kind, nbafl__epsilon=1e7)
    release = make_fit(mechanism).fit(mechanism, weights(1.0, 60.0), 1, {})
    assert vector_norm(release.tensors) < C * (1 + 1e-4)


def check_download_noise(kind: type[Nbafl]) -> None:
    """The mean of the uploads gets noise of the formula's deviation."""
    mechanism = make(kind, **WITH_DOWNLOAD)
    wanted = 2 * noise_constant(0.01) * C * math.sqrt(8**2 - 2**2 * 4) / (ROWS * 4 * 10)
    aggregator = make_aggregator(mechanism)
    for party in aggregator.cohort:
        aggregator.receive(Message(RUN, 1, party, "aggregator", "update", weights(0.5)))
    report = aggregator.finish_round()
    assert report.metrics["download_sigma"] == pytest.approx(wanted)
    assert_deviation(flat(report.weights) - flat(weights(0.5)), wanted)


def check_accounted(kind: type[Nbafl]) -> None:
    """The accounted epsilon is that of sensitivity 2C, by a solver of our own; the nominal one
    is the configured.
    """
    mechanism = make(kind)
    plans = {name: mechanism.plan(facts) for name, facts in mechanism.facts.parties.items()}
    said = privacy_statement(
        mechanism, plans, 2, {}, private=True, secure_mode=True, declared_rows=True
    )
    sigma = mechanism.formula.upload_sigma
    assert said["nominal_epsilon"] == 10
    assert said["accounted_epsilon"] == pytest.approx(
        closed_form(sigma / (2 * C), 2, 1e-5), rel=1e-6
    )
    reader = math.sqrt(sigma**2 / 4) * 4 / (2 * C)
    assert said["accounted_epsilon_model_reader"] == pytest.approx(
        closed_form(reader, 2, 1e-5), rel=1e-6
    )
    assert said["epsilon"] == said["accounted_epsilon"]


CHECKS = [check_upload_noise, check_one_vector, check_download_noise, check_accounted]


@pytest.mark.parametrize("check", CHECKS)
def test_the_mechanism_keeps_its_claims(check: Callable[[type[Nbafl]], None]) -> None:
    check(Nbafl)


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (NoiseBeforeClip, check_upload_noise),
        (NoiseDropped, check_upload_noise),
        (NoiseDropped, check_download_noise),
        (ClipPerTensor, check_one_vector),
        (DownloadAlwaysZero, check_download_noise),
        (NominalAsAccounted, check_accounted),
        (AssumedSensitivity, check_accounted),
    ],
)
def test_a_broken_mechanism_is_caught(
    kind: type[Nbafl], check: Callable[[type[Nbafl]], None]
) -> None:
    with pytest.raises(AssertionError):
        check(kind)


# --- formulas


def test_golden_values() -> None:
    # flower-dp (https://github.com/ckinateder/flower-dp), privacy.py, doctests of calculate_c and
    # calculate_sigma_d
    assert noise_constant(2e-5) == 4.699557816587533
    formula = Formula(
        0.8, noise_constant(1e-5), clip_norm=1.5, exposures=2, rounds=3, parties=2, rows=10_000
    )
    assert formula.download_sigma == 0.0009084009867385104


def test_download_noise_is_zero_up_to_the_threshold() -> None:
    formula = Formula(1.0, 1.0, clip_norm=1.0, exposures=2, rounds=4, parties=4, rows=100)
    assert formula.download_sigma == 0
    assert replace(formula, rounds=5).download_sigma == pytest.approx(2 * math.sqrt(25 - 16) / 400)


def test_the_secure_source_makes_the_noise_unless_a_test_asks_for_another() -> None:
    config = nbafl_config()
    mechanism = build_mechanism(config, federation_facts(config, PARTIES, 4), secure_noise())
    assert isinstance(mechanism, Nbafl)
    assert mechanism.noise.secure


def test_large_delta_only_sets_the_constant() -> None:
    mechanism = make(nbafl__delta=0.76)
    assert mechanism.constant == pytest.approx(math.sqrt(2 * math.log(1.25 / 0.76)))
    assert mechanism.plan(mechanism.facts.parties["a"]).delta == 1e-5


def test_the_constant_can_be_given_itself() -> None:
    assert make(nbafl__constant=1.0).formula.upload_sigma == 2 * 1.0 * C * 2 / (ROWS * 10)


def test_smallest_rows_decide_or_the_declared_ones() -> None:
    assert make(rows={"a": 50, "b": 30}).formula.rows == 30
    declared = make(rows={"a": 50, "b": 30}, nbafl__min_dataset_size=25)
    assert declared.formula.rows == 25
    assert not any(
        "min_dataset_size" in note for note in declared.plan(declared.facts.parties["a"]).notes
    )


def test_more_declared_rows_than_there_are_is_said() -> None:
    mechanism = make(rows={"a": 50, "b": 30}, nbafl__min_dataset_size=60)
    notes = " ".join(mechanism.plan(mechanism.facts.parties["a"]).notes)
    assert (
        "smallest party has 30 rows; with those the paper's epsilon is 20, not the nominal 10"
        in notes
    )


def test_a_zero_by_formula_is_said() -> None:
    notes = " ".join(make().plan(make().facts.parties["a"]).notes)
    assert "download noise is zero by formula (rounds T=2 are not above L sqrt(N)=4" in notes


# --- at the party


def test_the_proximal_term_pulls_to_the_global_weights() -> None:
    moved = {}
    for mu in (0.0, 5.0):
        long: dict[str, Any] = {
            "train.learning_rate": 0.1,
            "train.local_steps": 20,
            "nbafl.epsilon": 1e7,
        }
        mechanism = make(nbafl__clip_norm=1e3, nbafl__mu=mu, **long)
        release = make_fit(mechanism).fit(mechanism, weights(0.1), 1, {})
        moved[mu] = float((flat(release.tensors) - flat(weights(0.1))).norm())
    assert moved[5.0] < 0.6 * moved[0.0]


def test_one_record_can_move_the_weights_further_than_the_paper_assumes() -> None:
    """Why the nominal epsilon is not charged: a flipped label moves clipped weights by more than
    2C/m.
    """
    long: dict[str, Any] = {
        "train.learning_rate": 1.0,
        "train.local_steps": 100,
        "train.sample_rate": 1.0,
    }
    mechanism = make(rows={"a": 20}, nbafl__epsilon=1e9, **long)
    uploads = []
    for flipped in (False, True):
        table = small.small_table()
        assert table.labels is not None
        table.labels[0] = 1 - table.labels[0] if flipped else table.labels[0]
        model = build_model(mechanism.config.model, (small.FEATURES,), (0, 1))
        fit = build_fit(mechanism.config, model, table, mechanism.facts.parties["a"])
        uploads.append(flat(fit.fit(mechanism, small.zeros(), 1, {}).tensors))
    moved = float((uploads[1] - uploads[0]).norm())
    assert 2 * C / 20 < moved <= 2 * C


def test_an_upload_is_charged_for_twice_the_clip_norm(tmp_path: Path) -> None:
    mechanism = make()
    party = make_party(mechanism, tmp_path)
    party.handle(Message(RUN, 1, "aggregator", "a", "weights", weights(1.0)))
    assert party.ledger is not None
    (row,) = party.ledger.rows()
    assert from_json(row.event) == GaussianDpEvent(mechanism.upload_sigma / (2 * C))
    assert (row.relation, row.observer, row.sigma) == (
        "replace_one",
        "aggregator",
        mechanism.upload_sigma,
    )


def test_a_party_never_uploads_more_often_than_its_exposures(tmp_path: Path) -> None:
    mechanism = make(**WITH_DOWNLOAD)
    party = make_party(mechanism, tmp_path)
    for number in range(1, 9):
        message = Message(RUN, number, "aggregator", "a", "weights", weights(1.0))
        if number in (1, 2):
            assert party.handle(message) is not None
            continue
        with pytest.raises(BudgetExceeded, match="takes part only in rounds 1, 2"):
            party.handle(message)
    assert party.ledger is not None
    assert [row.round for row in party.ledger.rows()] == [1, 2]


@given(parties=st.integers(1, 12), rounds=st.integers(1, 30), data=st.data())
def test_the_schedule_gives_everybody_the_same_and_no_round_to_nobody(
    parties: int, rounds: int, data: st.DataObject
) -> None:
    exposures = data.draw(st.integers(math.ceil(rounds / parties), rounds))
    names = [f"p{number}" for number in range(parties)]
    found = schedule(names, exposures, rounds)
    assert all(
        len(set(numbers)) == exposures and set(numbers) <= set(range(1, rounds + 1))
        for numbers in found.values()
    )
    sizes = [
        sum(number in numbers for numbers in found.values()) for number in range(1, rounds + 1)
    ]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


# --- at the aggregator


def test_everybody_in_every_round_gives_the_closed_form() -> None:
    mechanism = make()
    assert mechanism.cohort(tuple(PARTIES), 2) == tuple(PARTIES)
    assert mechanism.reader_multiplier == pytest.approx(
        mechanism.upload_sigma / math.sqrt(4) * 4 / (2 * C)
    )


def test_fewer_parties_in_a_round_hide_a_party_less() -> None:
    mechanism = make(**WITH_DOWNLOAD)
    assert {len(mechanism.cohort(tuple(PARTIES), number)) for number in range(1, 9)} == {1}
    alone = math.hypot(mechanism.upload_sigma, mechanism.download_sigma)
    assert mechanism.reader_multiplier == pytest.approx(alone / (2 * C))


def test_weighting_by_rows_accounts_for_the_largest_share() -> None:
    mechanism = make(rows={"a": 30, "b": 10}, train__weighting="rows")
    noise = mechanism.upload_sigma * math.sqrt(0.75**2 + 0.25**2)
    assert mechanism.reader_multiplier == pytest.approx(noise / (2 * C * 0.75))


def test_the_aggregator_adds_the_noise_that_missing_parties_would_have_brought() -> None:
    mechanism = make()
    aggregator = make_aggregator(mechanism)
    uploads = SeededNoise(5)
    for party in ("a", "b"):
        noised = {
            name: t + uploads.normal(t.shape, mechanism.upload_sigma)
            for name, t in weights(0.5).items()
        }
        aggregator.receive(Message(RUN, 1, party, "aggregator", "update", noised))
    report = aggregator.finish_round()
    # half of the parties: each share is twice as large, and so must be the noise
    planned = mechanism.upload_sigma / 2
    assert report.missing == ("c", "d")
    assert_deviation(flat(report.weights) - flat(weights(0.5)), 2 * planned)


def test_a_server_optimiser_sees_the_mean_with_its_noise() -> None:
    half = {"name": "fedavg", "learning_rate": 0.5}
    mechanism = make(train__server_optimizer=half, **WITH_DOWNLOAD)
    aggregator = make_aggregator(mechanism)
    for party in aggregator.cohort:
        aggregator.receive(Message(RUN, 1, party, "aggregator", "update", weights(0.0)))
    assert_deviation(flat(aggregator.finish_round().weights), mechanism.download_sigma / 2)


# --- a trusted aggregator


def test_without_upload_noise_the_aggregator_keeps_the_ledger(tmp_path: Path) -> None:
    mechanism = make(**TRUSTED)
    plan = mechanism.plan(mechanism.facts.parties["a"])
    assert set(plan.events) == {"model_reader"}
    ledger = Ledger(tmp_path / "ledger.sqlite")
    aggregator = make_aggregator(mechanism, ledger)
    assert aggregator.cohort == ("a",)
    answer = make_party(mechanism, tmp_path).handle(
        Message(RUN, 1, "aggregator", "a", "weights", weights(1.0))
    )
    assert answer is not None
    assert vector_norm(answer.tensors) == pytest.approx(C, rel=1e-4)
    aggregator.receive(answer)
    assert_deviation(
        flat(aggregator.finish_round().weights) - flat(answer.tensors), mechanism.download_sigma
    )
    (row,) = ledger.rows()
    assert (row.party, row.dataset, row.observer, row.sigma) == (
        "a",
        mechanism.config.data.dataset,
        "model_reader",
        mechanism.download_sigma,
    )
    assert from_json(row.event) == GaussianDpEvent(mechanism.download_sigma / (2 * C))


def test_the_aggregator_clips_what_it_alone_adds_noise_to() -> None:
    mechanism = make(
        nbafl__noise_at_upload=False,
        privacy__trust_aggregator=True,
        nbafl__exposures=1,
        train__rounds=3,
    )
    sent = [Update(name, weights(100.0), 1.0) for name in mechanism.cohort([], 1)]
    found = flat(mechanism.on_receive(sent, weights(0.0), 1).weights)
    noise = mechanism.download_sigma * math.sqrt(len(found))
    assert float(found.norm()) <= C + 6 * noise


def test_weights_that_are_not_finite_are_uploaded_as_zeros_with_noise_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mechanism = make()
    fit = make_fit(mechanism)
    fit.load(weights(math.nan))
    release = mechanism.after_fit(fit)
    assert_deviation(flat(release.tensors), mechanism.upload_sigma)
    assert "NaN or infinity" in caplog.text


def test_a_party_that_does_not_trust_the_aggregator_refuses(tmp_path: Path) -> None:
    mechanism = make(**TRUSTED)
    settings = PartySettings(
        "a", RUN, "wide/a", run_budget(mechanism.config), trust_aggregator=False
    )
    with pytest.raises(PrivacyError, match="trust_aggregator"):
        Party(settings, make_fit(mechanism), mechanism, Ledger(tmp_path / "ledger.sqlite"))


# --- K of N parties a round


THREE: dict[str, Any] = {"nbafl.parties_per_round": 3, "train.rounds": 8}


def test_k_of_n_parties_take_turns_with_the_noise_for_their_uploads() -> None:
    mechanism = make(**THREE)
    names = sorted(mechanism.facts.parties)
    cohorts = [mechanism.cohort(names, number) for number in range(1, 9)]
    assert {len(cohort) for cohort in cohorts} == {3}
    uploads = {name: sum(name in cohort for cohort in cohorts) for name in names}
    assert max(uploads.values()) == mechanism.exposures == math.ceil(3 * 8 / len(names))
    same: dict[str, Any] = {"nbafl.exposures": mechanism.exposures, "train.rounds": 8}
    everybody = make(**same)
    assert mechanism.upload_sigma == everybody.upload_sigma


def test_k_of_n_has_no_nominal_epsilon_and_is_accounted_like_any_release() -> None:
    mechanism = make(**THREE)
    plan = mechanism.plan(mechanism.facts.parties["a"])
    assert plan.schedule is not None
    assert plan.releases_by(8) == len(plan.schedule) <= mechanism.exposures
    assert plan.events["aggregator"] == GaussianDpEvent(
        mechanism.upload_sigma / (2 * mechanism.clip_norm)
    )
    figures = mechanism.figures(plan, {"aggregator": 7.0, "model_reader": 5.0})
    assert figures["nominal_epsilon"] is None
    assert "could not be sourced" in str(figures["nominal_epsilon_is"])
    assert figures["accounted_epsilon"] == 7.0


# --- refusals


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"nbafl.noise_at_upload": False}, "trust_aggregator: true if you trust it"),
        (
            {
                "nbafl.noise_at_upload": False,
                "nbafl.noise_at_download": False,
                "privacy.trust_aggregator": True,
            },
            "both",
        ),
        (
            {"nbafl.noise_at_upload": False, "privacy.trust_aggregator": True},
            "no noise at all.*zero by formula",
        ),
        ({"nbafl.exposures": 3}, r"nbafl\.exposures=3: must be from 1"),
        ({"train.rounds": 9, "nbafl.exposures": 2}, r"nbafl\.exposures=2: must be from 3"),
        ({"train.proximal_mu": 0.1}, r"nbafl\.mu"),
        ({"privacy.cohort_size": 2}, r"nbafl\.parties_per_round"),
        ({"nbafl.parties_per_round": 9}, r"nbafl\.parties_per_round=9: must be at most"),
        ({"nbafl.parties_per_round": 1, "train.rounds": 1}, "give each a turn"),
        ({"nbafl.parties_per_round": 2, "nbafl.exposures": 2}, "one follows from the other"),
        ({"privacy.delta": 0.1}, "delta=0.1 must be in"),
        ({"privacy.target_epsilon": 1.0}, r"nbafl\.epsilon"),
        ({"nbafl.clip_norm": 1e-13}, r"nbafl\.clip_norm=1e-13 is outside"),
    ],
)
def test_what_cannot_be_is_refused(overrides: Mapping[str, Any], words: str) -> None:
    def plan() -> PartyPlan:
        mechanism = make(**overrides)
        return mechanism.plan(mechanism.facts.parties["a"])

    with pytest.raises((ConfigError, PrivacyError), match=words):
        plan()
