"""Without privacy and without a second moment, what parties send is their weights and its mean
the model.
"""

import torch

from homo_dp.federation.protocol.messages import signature
from homo_dp.federation.protocol.party_plan import FederationFacts, PartyFacts
from homo_dp.solvers.plain import TrainedWeights
from tests.federation.small import small_config


def test_the_mean_of_trained_weights_is_the_model() -> None:
    facts = FederationFacts({"a": PartyFacts("a", 10, 1, 1, 1.0)}, 1, 2)
    config = small_config(privacy__mechanism="none", privacy__noise_multiplier=None)
    found = TrainedWeights(config, facts, {"a": 1.0})
    current, mean = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    assert found.moved(mean, current, 1) is mean
    assert found.take({}, current) is current
    assert (found.sums, found.state(), found.longest(current)) == ({}, {}, None)
    assert found.signature(current) == signature(current)
