"""Traces of fits that were not charged are caught."""

from homo_dp.core.errors import MessageError
from homo_dp.evidence.record_attacks import PartyOfAttack
from homo_dp.federation.protocol.messages import Message
from tests.evidence.parts import judged, one_step_recipe
from tests.evidence.uncharged_fits_attack import UnchargedFits


class KeepsMomentum:
    """A party of before: it checks its update after the fit, and what a refused fit did to the
    optimiser stays.
    """

    def __init__(self, parts: PartyOfAttack) -> None:
        self.parts = parts

    def handle(self, message: Message) -> Message:
        made = self.parts.fit.fit(self.parts.mechanism, dict(message.tensors), message.round, {})
        if not all(tensor.abs().max() < 1e30 for tensor in made.tensors.values()):
            raise MessageError("weights")
        return Message(
            message.run, message.round, message.recipient, message.sender, "update", made.tensors
        )


def test_momentum_of_fits_that_were_not_charged_is_caught() -> None:
    attacked = one_step_recipe(**{"train.momentum": 0.99, "privacy.target_epsilon": 2.0})
    assert judged(
        UnchargedFits(attacked, make_party=lambda parts, _: KeepsMomentum(parts)), 40
    ).refuted
    assert not judged(UnchargedFits(attacked), 40).refuted
