"""No privacy: plain federated averaging, for comparison; every output of such a run says NOT PRIVATE."""

from __future__ import annotations

from homo_dp.federation.mechanisms.base import Mechanism, PartyFacts, PartyPlan, Release
from homo_dp.federation.mechanisms.local_fit import LocalFit


class PlainAveraging(Mechanism):
    """Sends the trained weights as they are. It guarantees nothing."""

    name = "none"
    private = False
    relation = "add_or_remove_one"

    def plan(self, party: PartyFacts) -> PartyPlan:
        return PartyPlan(
            noise_multiplier=0.0,
            sigma=0.0,
            clip_norm=0.0,
            relation=self.relation,
            delta=self.config.privacy.delta,
            rounds=party.rounds,
            events={},
            releases=("model weights, every round, without noise",),
            noise_to_signal=0.0,
            notes=("NOT PRIVATE: privacy.mechanism is none",),
        )

    def after_fit(self, fit: LocalFit) -> Release:
        return Release(fit.weights(), event=None, sigma=0.0, relation="add_or_remove_one")
