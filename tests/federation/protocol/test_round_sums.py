"""Rounds that ask another sum than training's: what they release, cost and leave, alone and
under masks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting import GaussianDpEvent
from torch import Tensor

from homo_dp.config.load import load_config
from homo_dp.config.mechanisms import DP_FEDSGD
from homo_dp.federation.mechanisms.base import Combined, PartyFacts, Release, Weights
from homo_dp.federation.mechanisms.dp_fedsgd import DpFedSgd
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.round_sums import (
    SUM,
    RoundSum,
    RoundSums,
    calibrated_noise,
    noise_of_share,
    text_of,
)
from homo_dp.federation.sessions.plan import PlanRefused, check_releases_cap
from homo_dp.federation.sessions.statement import epsilon_after
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.moments import outer_products, second_moment, triangle_size
from homo_dp.privacy.noise.grid import on_grid
from homo_dp.privacy.private_sum import PrivateSum
from homo_dp.runs.simulation import Simulation
from tests.federation.small import (
    FEATURES,
    RUN,
    small_config,
    small_mechanism,
    small_party,
    small_table,
    weights_message,
)

RADIUS = 2.0  # rows are clipped to this norm, so X^T X has sensitivity RADIUS^2
HERE = "tests.federation.protocol.test_round_sums:SecondMomentFirst"


class SecondMomentFirst(DpFedSgd):
    """Round 1 asks X^T X, the others train."""

    capabilities = replace(DP_FEDSGD, name="second_moment_first")
    moment: Tensor | None = None
    width = FEATURES

    def other_sums(self, party: PartyFacts) -> RoundSums:
        privacy = self.config.privacy
        rows = sum(facts.rows for facts in self.facts.parties.values())
        noise = (
            5.0
            if privacy.target_epsilon is None
            else noise_of_share(0.2, privacy.target_epsilon, self.config.delta)
        )
        found = PrivateSum(triangle_size(self.width), RADIUS**2, noise, rows, share=self._share)
        return {1: RoundSum("second_moment", found, "X^T X with noise, once")}

    def row_parts(self, fit: LocalFit, asked: RoundSum) -> Iterator[Tensor]:
        for chunk in torch.split(fit.features.double(), 7):
            yield outer_products(chunk * (RADIUS / chunk.norm(dim=1, keepdim=True)).clamp(max=1.0))

    def on_sum(
        self, asked: RoundSum, parts: Mapping[str, Tensor], current: Weights, round_number: int
    ) -> Combined:
        self.moment = second_moment(torch.stack(list(parts.values())).sum(0), self.width)
        return Combined(current)

    def state(self) -> Weights:
        return {} if self.moment is None else {"moment": self.moment}


class Wide(SecondMomentFirst):
    capabilities = replace(DP_FEDSGD, name="wide")
    width = 30  # breast cancer


def _config(**keys: Any) -> Any:
    return small_config(**{"privacy__mechanism": HERE, "train__local_steps": None} | keys)


def test_a_round_answers_the_sum_that_it_asks_and_the_ledger_says_which(tmp_path: Path) -> None:
    table = small_table()
    config = _config()
    party = small_party(config, tmp_path, mechanism=small_mechanism(config, {"a": 20}), table=table)
    first, second = party.handle(weights_message(1)), party.handle(weights_message(2))
    assert first is not None
    assert second is not None
    assert set(first.tensors) == {SUM}
    assert first.tensors[SUM].shape == (6,)
    assert on_grid(first.tensors[SUM], 5.0 * RADIUS**2)
    assert "linear.weight" in second.tensors
    assert party.ledger is not None
    rows = party.ledger.rows(RUN, "a")
    assert [row.kind for row in rows] == ["second_moment", "update"]
    assert [row.sigma for row in rows] == [5.0 * RADIUS**2, 2.0]
    assert '"noise_multiplier":5.0' in rows[0].event
    assert party.applied_sigma == 2.0  # of the training
    # asked again: the same answer, no second charge
    assert party.handle(weights_message(1)) is first
    assert len(party.ledger.rows(RUN, "a")) == 2
    with pytest.raises(BudgetExceeded):  # two rounds that train and one that asks: no fourth
        party.handle(weights_message(4))


def test_the_answer_is_the_sum_of_bounded_rows(tmp_path: Path) -> None:
    table = small_table()
    config = _config()
    made = small_mechanism(config, {"a": 20})

    class Quiet(SecondMomentFirst):
        def other_sums(self, party: PartyFacts) -> RoundSums:
            return {
                number: replace(asked, sum=replace(asked.private_sum, noise_multiplier=1e-6))
                for number, asked in super().other_sums(party).items()
            }

    party = small_party(
        config, tmp_path, mechanism=Quiet(config, made.facts, made.noise), table=table
    )
    answer = party.handle(weights_message(1))
    assert answer is not None
    found = second_moment(answer.tensors[SUM], FEATURES)
    expected = table.features.double().T @ table.features.double()
    assert torch.allclose(found, expected, atol=1e-3)


def test_a_row_that_is_too_long_is_clipped() -> None:
    found = PrivateSum(2, clip_norm=1.0, noise_multiplier=1e-9, rows=10)
    from homo_dp.privacy.noise.source import secure_noise

    total = found.of_chunks(
        [torch.tensor([[300.0, 400.0]]), torch.tensor([[float("nan"), 1.0]])], secure_noise()
    )
    assert torch.allclose(total, torch.tensor([0.6, 0.8], dtype=torch.float64), atol=1e-5)
    with pytest.raises(PrivacyError, match="sampled"):
        replace(found, sample_rate=0.5).of_chunks([], secure_noise())


def test_the_noise_of_the_training_is_solved_so_that_all_fits_in_the_target() -> None:
    config = _config(privacy__noise_multiplier=None, privacy__target_epsilon=2.0)
    mechanism = small_mechanism(config, {"a": 2000})
    plan = mechanism.run.planned(mechanism.facts.parties["a"])
    spent = epsilon_after(plan, "aggregator", plan.all_rounds)
    assert spent is not None
    assert 0.99 * 2.0 <= spent.quoted <= 2.0
    alone = compose(plan.sums[1].event, *[plan.events["aggregator"]] * 2)
    assert spent.quoted == pytest.approx(epsilon(alone, plan.delta).quoted, rel=1e-6)
    after_first = epsilon_after(plan, "aggregator", 1)
    assert after_first is not None
    assert after_first.quoted == pytest.approx(epsilon(plan.sums[1].event, plan.delta).quoted)
    plain = small_mechanism(
        small_config(
            privacy__mechanism="dp_fedsgd",
            train__local_steps=None,
            privacy__noise_multiplier=None,
            privacy__target_epsilon=2.0,
        ),
        {"a": 2000},
    )
    assert plan.noise_multiplier > plain.plan(plain.facts.parties["a"]).noise_multiplier


def _estimate(noise: float) -> dict[int, RoundSum]:
    return {1: RoundSum("rows", PrivateSum(1, 1.0, noise, 2000), "rows")}


def test_estimates_in_the_first_rounds_are_solved_for_and_stated() -> None:
    config = small_config(privacy__noise_multiplier=None, privacy__target_epsilon=2.0)
    plain = small_mechanism(config, {"a": 2000})
    later = type(plain)(config, replace(plain.facts, estimates=_estimate(4.0)), plain.noise)
    plan = later.run.planned(later.facts.parties["a"])
    spent, first = (
        epsilon_after(plan, "aggregator", plan.all_rounds),
        epsilon_after(plan, "aggregator", 1),
    )
    assert spent is not None
    assert first is not None
    assert 0.99 * 2.0 <= spent.quoted <= 2.0
    assert first.quoted == pytest.approx(epsilon(GaussianDpEvent(4.0), plan.delta).quoted)
    assert plan.kind_of(1) == "rows"


def test_a_target_that_the_other_sums_use_up_is_refused() -> None:
    config = small_config(privacy__noise_multiplier=None, privacy__target_epsilon=0.5)
    plain = small_mechanism(config, {"a": 2000})
    later = type(plain)(config, replace(plain.facts, estimates=_estimate(1.0)), plain.noise)
    with pytest.raises(PrivacyError, match="beside training costs"):
        later.plan(later.facts.parties["a"])


@pytest.mark.parametrize("masked", [False, True])
def test_a_whole_run_asks_and_trains(tmp_path: Path, masked: bool) -> None:
    keys = {
        "privacy.mechanism": HERE.replace("SecondMomentFirst", "Wide"),
        "privacy.target_epsilon": 4,
        "privacy.delta": 1e-4,
        "privacy.ledger": str(tmp_path / "ledger.sqlite"),
        "privacy.secure_aggregation": masked,
        "data.embedded": "breast_cancer",
        "train.rounds": 3,
        "train.sample_rate": 0.5,
    }
    simulation = Simulation(load_config(None, keys), lambda row, numbers: None)
    outcome = simulation.run()
    assert [row.get("asked") for row in outcome.rounds] == ["second_moment", None, None, None]
    assert outcome.statement["epsilon"] <= 4
    assert outcome.statement["epsilon"] >= 3.9
    assert "X^T X with noise, once" in outcome.statement["releases"]
    mechanism = simulation.mechanism
    assert isinstance(mechanism, SecondMomentFirst)
    assert mechanism.moment is not None
    assert simulation.ledger is not None
    for name in simulation.parties:
        assert [row.kind for row in simulation.ledger.rows(outcome.run, name)] == [
            "second_moment"
        ] + ["update"] * 3
        spent = simulation.ledger.rows(outcome.run, name)[-1].epsilon
        assert spent == pytest.approx(outcome.statement["epsilon"], rel=1e-3)
    features = torch.cat(
        [data.train.features.double() for data in simulation.federation.parties.values()]
    )
    features *= (RADIUS / features.norm(dim=1, keepdim=True)).clamp(max=1.0)
    sigma = mechanism.run.sums[1].private_sum.party_sigma * len(simulation.parties) ** 0.5
    assert float((mechanism.moment - features.T @ features).abs().max()) < 6 * sigma


def test_a_cap_on_releases_names_the_other_sums() -> None:
    config = _config()
    mechanism = small_mechanism(config, {"a": 20})
    plan = mechanism.run.planned(mechanism.facts.parties["a"])
    own = load_config(None, {"party.caps.releases": ["update"]})
    with pytest.raises(PlanRefused, match="second_moment"):
        check_releases_cap(own, mechanism, plan)
    check_releases_cap(
        load_config(None, {"party.caps.releases": ["update", "second_moment"]}), mechanism, plan
    )


def test_a_name_that_is_not_on_the_list_is_refused() -> None:
    with pytest.raises(PrivacyError, match="must be one of"):
        RoundSum("maximum", PrivateSum(1, 1.0, 1.0, 10), "")
    with pytest.raises(PrivacyError, match="sample_rate"):
        RoundSum("metrics", PrivateSum(1, 1.0, 1.0, 10, sample_rate=0.5), "")


def test_an_answer_that_costs_more_than_its_plan_never_leaves(tmp_path: Path) -> None:
    class Cheat(SecondMomentFirst):
        def answer(self, fit: LocalFit, asked: RoundSum) -> Release:
            quiet = replace(asked, sum=replace(asked.private_sum, noise_multiplier=1.0))
            return super().answer(fit, quiet)

    config = _config()
    made = small_mechanism(config, {"a": 20})
    party = small_party(config, tmp_path, mechanism=Cheat(config, made.facts, made.noise))
    with pytest.raises(PrivacyError, match="the plan of"):
        party.handle(weights_message(1))
    told = party.handle(weights_message(1))  # charged as planned, and answered with one word
    assert told is not None
    assert (told.kind, dict(told.info), dict(told.tensors)) == (
        "refused",
        {"reason": "skipped"},
        {},
    )


@pytest.mark.parametrize("cap", [{"party.caps.parameters": 5}, {"transport.max_message_bytes": 47}])
def test_a_sum_of_more_numbers_than_a_model_may_have_is_refused(cap: dict[str, int]) -> None:
    asked = RoundSum("second_moment", PrivateSum(6, 1.0, 1.0, 10), "")
    mechanism = small_mechanism(small_config(), {"a": 20})
    plan = replace(mechanism.run.planned(mechanism.facts.parties["a"]), sums={1: asked})
    with pytest.raises(PlanRefused, match="sum second_moment has 6 numbers") as refusal:
        check_releases_cap(load_config(None, cap), mechanism, plan)
    assert refusal.value.reason == "releases_cap"
    check_releases_cap(
        load_config(None, {name: value + 1 for name, value in cap.items()}), mechanism, plan
    )


@pytest.mark.parametrize("beside", [None, text_of(GaussianDpEvent(20.0))])
def test_rows_that_are_drawn_less_often_than_delta_are_refused_at_once(beside: str | None) -> None:
    """Any noise would do there, and a plan with a rate of 1e-12 kept a party busy for 23 s."""
    with pytest.raises(PrivacyError, match="below delta"):
        calibrated_noise(1e-12, 1000, 2.0, 1e-5, beside)
    assert calibrated_noise(1e-4, 1, 2.0, 1e-5, beside) > 0.1
