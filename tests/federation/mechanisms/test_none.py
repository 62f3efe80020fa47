"""No privacy says so: no event, no noise, no ledger."""

from __future__ import annotations

import torch

from homo_dp.federation.sessions.build import build_fit
from homo_dp.models.registry import build_model
from tests.federation.small import FEATURES, small_config, small_mechanism, small_table, zeros


def test_weights_leave_as_they_are_and_the_plan_promises_nothing() -> None:
    config = small_config(privacy__mechanism="none", privacy__noise_multiplier=None)
    mechanism = small_mechanism(config, {"a": 20})
    plan = mechanism.plan(mechanism.facts.parties["a"])
    assert (mechanism.capabilities.private, plan.events, plan.sigma) == (False, {}, 0.0)
    assert "NOT PRIVATE" in plan.notes[0]
    model = build_model(config.model, (FEATURES,), (0, 1))
    fit = build_fit(config, model, small_table(), mechanism.facts.parties["a"])
    release = fit.fit(mechanism, zeros(), 1, {})
    assert release.event is None
    for name, tensor in fit.weights().items():
        assert torch.equal(release.tensors[name], tensor)
    assert bool(release.tensors["linear.weight"].any())
