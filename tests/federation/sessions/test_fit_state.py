"""What lives from round to round: a copy, that puts a new fit where the old one was."""

from __future__ import annotations

from pathlib import Path

import torch

from homo_dp.federation.sessions.fit_state import FitState
from tests.federation.small import small_config, small_party, weights_message


def test_a_renewed_fit_goes_on_from_the_copy_and_not_from_what_came_after(tmp_path: Path) -> None:
    config = small_config(train__optimizer="sgd", train__momentum=0.9)
    party = small_party(config, tmp_path)
    party.handle(weights_message(1))
    kept = FitState.of(party.fit, party.mechanism)
    before = {name: tensor.clone() for name, tensor in kept.optimizer.items()}
    party.handle(weights_message(2))
    assert party.fit.steps_done > kept.steps_done
    assert all(torch.equal(kept.optimizer[name], tensor) for name, tensor in before.items())
    assert party.renew is not None
    fit, mechanism = party.renew()
    kept.put(fit, mechanism)
    assert fit.steps_done == kept.steps_done
    again = FitState.of(fit, mechanism)
    assert set(again.optimizer) == set(before)
    assert all(torch.equal(again.optimizer[name], tensor) for name, tensor in before.items())
    assert torch.equal(again.generator, kept.generator)
