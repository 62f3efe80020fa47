"""A hostile aggregator: it provokes fits that fail, again and again, and then asks a harmless
question.

If a fit that was not charged leaves a trace (momentum, a counter), the one answer that is charged
carries the average of many fits. A sound party refuses before a row is touched, or charges the
round and answers one word.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from homo_dp.core.errors import ConfigError, MessageError
from homo_dp.evidence.record_attacks import (
    MECHANISM,
    CanaryGradient,
    Floats,
    PartyOfAttack,
    Recipe,
    first_weight,
)
from homo_dp.federation.mechanisms.base import Mechanism
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.build import run_budget
from homo_dp.federation.sessions.party import PartySettings
from homo_dp.federation.sessions.party_session import Party
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.ledger import Ledger

PROVOKED = 60  # messages before the harmless one
DEAD = 3.3e38  # a finite float32 that overflows in a step of weight decay
RUN = "audit"


class Answering(Protocol):
    """What answers messages: a party, or one that a test has broken."""

    def handle(self, message: Message) -> Message | None:
        """The answer to one message, or an error of ours."""


class UnchargedFits(CanaryGradient):
    """One answer after many provocations, from a party with its ledger on disk."""

    name = "uncharged_fits"
    scores_are_losses = False

    def __init__(
        self,
        recipe: Recipe,
        mechanism: MECHANISM | None = None,
        make_party: Callable[[PartyOfAttack, Path], Answering] | None = None,
    ) -> None:
        if recipe.config.train.rounds != 1:
            raise ConfigError(
                f"train.rounds={recipe.config.train.rounds}: uncharged_fits asks for one round; "
                "set 1"
            )
        super().__init__(recipe, mechanism)
        self._make_party = make_party or self._real_party

    def scores(self, present: bool, runs: int) -> Floats:
        return np.array([self._run(present) for _ in range(runs)])

    def _run(self, present: bool) -> float:
        parts = self.party(self.recipe.party, canary=present)
        name = first_weight(parts.fit.model)
        provoking = dict(parts.start)
        provoking[name] = provoking[name].clone()
        provoking[name][0, -1] = DEAD
        with tempfile.TemporaryDirectory() as folder:
            party = self._make_party(parts, Path(folder))
            for _ in range(PROVOKED):
                self._ask(party, provoking)
            answer = self._ask(party, parts.start)
        if answer is None or answer.kind != "update":
            return 0.0
        return self.moved(dict(answer.tensors), parts)

    def _ask(self, party: Answering, weights: dict[str, Tensor]) -> Message | None:
        try:
            return party.handle(
                Message(RUN, 1, AGGREGATOR, self.recipe.party, "weights", weights, {"rounds": 1})
            )
        except (MessageError, PrivacyError):
            return None  # refused, or charged and skipped

    def _real_party(self, parts: PartyOfAttack, folder: Path) -> Answering:
        config = self.recipe.config

        def renew() -> tuple[LocalFit, Mechanism]:
            made = self.party(self.recipe.party)
            return made.fit, made.mechanism

        settings = PartySettings(self.recipe.party, RUN, config.data.dataset, run_budget(config))
        return Party(
            settings, parts.fit, parts.mechanism, Ledger(folder / "ledger.sqlite"), None, renew
        )
