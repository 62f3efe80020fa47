"""A party: charge before release, refuse before data is touched, never send what the contract
does not cover.
"""

from pathlib import Path

import pytest
import torch

from homo_dp.core.errors import MessageError
from homo_dp.federation.mechanisms.base import Release
from homo_dp.federation.mechanisms.dp_sgd import DpSgd
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.messages import encode
from homo_dp.federation.sessions.party import PartyLimits, check_numbers
from homo_dp.privacy.errors import BudgetExceeded, PrivacyError
from homo_dp.privacy.ledger.outbox import Outbox
from tests.federation.small import (
    small_config,
    small_mechanism,
    small_party,
    weights_message,
    zeros,
)


class NoEvent(DpSgd):
    """Broken: releases without naming an event."""

    def after_fit(self, fit: LocalFit) -> Release:
        return Release(fit.weights(), event=None, sigma=1.0, relation="add_or_remove_one")


class NoNoise(DpSgd):
    """Broken: names the event and adds no noise."""

    def after_fit(self, fit: LocalFit) -> Release:
        release = super().after_fit(fit)
        return Release(release.tensors, release.event, sigma=0.0, relation=release.relation)


class NotFinite(DpSgd):
    """Broken: releases a NaN."""

    def after_fit(self, fit: LocalFit) -> Release:
        release = super().after_fit(fit)
        tensors = {
            name: torch.full_like(tensor, float("nan")) for name, tensor in release.tensors.items()
        }
        return Release(tensors, release.event, release.sigma, release.relation)


def broken(kind: type[DpSgd]) -> DpSgd:
    config = small_config()
    good = small_mechanism(config, {"a": 20})
    return kind(config, good.facts, good.noise)


def test_an_update_is_on_the_ledger_when_it_is_returned(tmp_path: Path) -> None:
    party = small_party(small_config(), tmp_path)
    answer = party.handle(weights_message())
    assert answer is not None
    assert answer.kind == "update"
    assert party.ledger is not None
    row = party.ledger.rows()[0]
    assert (row.run, row.party, row.round, row.kind, row.sigma) == ("run-1", "a", 1, "update", 2.0)


def test_epsilon_of_the_ledger_grows_over_rounds(tmp_path: Path) -> None:
    party = small_party(small_config(), tmp_path)
    for number in (1, 2):
        party.handle(weights_message(number))
    assert party.ledger is not None
    first, second = party.ledger.rows()
    assert second.epsilon > first.epsilon > 0


def test_the_same_question_gets_the_same_answer_and_one_charge(tmp_path: Path) -> None:
    party = small_party(small_config(), tmp_path)
    assert party.ledger is not None
    first, second = party.handle(weights_message()), party.handle(weights_message())
    assert first is not None
    assert second is not None
    assert encode(first) == encode(second)
    assert len(party.ledger.rows()) == 1


def test_a_restarted_party_sends_its_charged_message_again(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    first = small_party(small_config(), tmp_path, outbox=outbox).handle(weights_message())
    restarted = small_party(small_config(), tmp_path, outbox=Outbox(tmp_path / "outbox"))
    second = restarted.handle(weights_message())
    assert first is not None
    assert second is not None
    assert encode(first) == encode(second)
    assert restarted.ledger is not None
    assert len(restarted.ledger.rows()) == 1


def test_a_restarted_party_without_its_message_does_not_release_a_second_one(
    tmp_path: Path,
) -> None:
    small_party(small_config(), tmp_path).handle(weights_message())
    with pytest.raises(PrivacyError, match="charged before"):
        small_party(small_config(), tmp_path).handle(weights_message())


def test_a_round_over_the_budget_is_refused_before_data_is_touched(tmp_path: Path) -> None:
    config = small_config(privacy__lifetime_epsilon=0.01)
    party = small_party(config, tmp_path)
    party.fit.features = torch.empty(0)  # any use of the rows would fail in another way
    with pytest.raises(BudgetExceeded, match="lifetime"):
        party.handle(weights_message())
    assert party.ledger is not None
    assert party.ledger.rows() == []


def test_a_round_beyond_the_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetExceeded, match="planned 2 rounds"):
        small_party(small_config(), tmp_path).handle(weights_message(3))


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (NoEvent, PrivacyError, "names no event"),
        (NoNoise, PrivacyError, "noise above zero"),
        (NotFinite, MessageError, "NaN"),
    ],
)
def test_a_broken_mechanism_releases_nothing_and_pays(
    tmp_path: Path, kind: type[DpSgd], error: type[Exception], words: str
) -> None:
    party = small_party(small_config(), tmp_path, mechanism=broken(kind))
    with pytest.raises(error, match=words):
        party.handle(weights_message())
    assert party.ledger is not None
    assert [row.round for row in party.ledger.rows()] == [1]
    answer = party.handle(weights_message())
    assert answer is not None
    assert (answer.kind, answer.info, answer.tensors) == ("refused", {"reason": "skipped"}, {})


def test_a_mechanism_without_event_runs_where_the_run_is_marked_not_private(tmp_path: Path) -> None:
    config = small_config(privacy__not_private=True)
    assert (
        small_party(config, tmp_path, mechanism=broken(NoEvent)).handle(weights_message())
        is not None
    )


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    strange = zeros() | {"linear.bias": torch.zeros(2)}
    with pytest.raises(MessageError, match=r"linear\.bias"):
        small_party(small_config(), tmp_path).handle(weights_message(tensors=strange))


def test_final_weights_are_kept(tmp_path: Path) -> None:
    party = small_party(small_config(), tmp_path)
    message = weights_message(2)
    party.handle(type(message)(message.run, 2, "aggregator", "a", "finished", zeros()))
    assert party.final_weights is not None


def test_weights_of_networks_have_a_limit_of_their_own() -> None:
    limits = PartyLimits(max_network_weight=100.0)
    check_numbers(limits, {"w": torch.tensor([100.0])}, {"clip_norm": 1000.0})
    with pytest.raises(MessageError, match=r"party\.caps\.max_network_weight=100"):
        check_numbers(limits, {"w": torch.tensor([-101.0])}, {})
    with pytest.raises(MessageError, match=r"party\.caps\.max_weight=10"):
        check_numbers(PartyLimits(10.0, max_network_weight=100.0), {"w": torch.tensor([11.0])}, {})
