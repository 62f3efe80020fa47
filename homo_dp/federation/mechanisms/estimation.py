"""The first rounds of a run whose bounds, categories or row counts are privately estimated.

They are rounds of the run's one plan, like those that ask a second moment: their noise takes
``privacy.statistics_share`` of the target by mu^2, and the noise of the training is solved beside
them. The plan fixes all events before the first answer. What the answers say may change what later
rounds sum (dimension, clip norm, bounds, divisor), never a sampler, a noise multiplier or a number
of steps, so exact composition holds for the whole.

``Estimates`` asks the questions. ``EstimationStage`` is the mechanism of a run until they are
answered: it plans the whole run and answers its first rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.base import (
    Combined,
    FederationFacts,
    Mechanism,
    PartyFacts,
    PartyPlan,
    Release,
    Weights,
)
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.mechanisms.statistics import Statistics
from homo_dp.federation.protocol.messages import Signature
from homo_dp.federation.protocol.round_sums import SUM, RoundSum, RoundSums
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.statistics.private_levels import LEVEL_NAMES

ROWS = "rows"
BOUNDS = "bounds"
# how the estimates share their part of the budget, in the order in which they are asked
WEIGHTS = {LEVEL_NAMES: 0.8, ROWS: 0.2, BOUNDS: 0.8}


class Estimates(Statistics):
    """The questions of the first rounds.

    Guarantees:
        - those of ``Statistics``; together they cost ``privacy.statistics_share`` of the target, by
          mu^2;
        - which rounds there are, and their noise, follow from the plan alone;
        - names of categories are a list, which masks cannot add up: that round alone is not masked,
          and each party adds all of its noise to it.
    """

    def __init__(
        self,
        asking: Config,
        rows: Mapping[str, int],
        most_rows: int,
        noise_of_all: float,
        noise: NoiseSource,
    ) -> None:
        """Make the questions.

        Args:
            asking: the config of a run that only asks (``stages.py`` makes it).
            rows: a public row count of every party, the same at all sides.
            most_rows: a count that the rows of all parties do not pass.
            noise_of_all: the noise multiplier of one sum that takes the whole target of the plan;
                a party may add more noise, and asks the same questions.
            noise: what releases draw from.
        """
        self._most, self._noise_of_all = most_rows, noise_of_all
        parties = {name: PartyFacts(name, count, 0, 0, 1.0) for name, count in rows.items()}
        super().__init__(asking, FederationFacts(parties, 0, 0), noise)

    def _check_names(self) -> None:
        """The round that asks for names is not masked."""

    @property
    def shares(self) -> Mapping[str, float]:
        asked = [name for name in WEIGHTS if name in self.config.statistics.ask]
        whole = sum(WEIGHTS[name] for name in asked)
        part = self.config.privacy.statistics_share
        return {name: part * WEIGHTS[name] / whole for name in asked}

    def _planned_noise(self, share: float) -> float:
        return self._noise_of_all / math.sqrt(share)

    @property
    def _most_rows(self) -> int:
        return self._most

    @property
    def _known_rows(self) -> float:
        """Rows of all parties; once they are counted, by that count."""
        counted = self._counted()
        return self._rows if counted is None else max(1.0, counted)

    def _counted(self) -> float | None:
        number = self._number_of(ROWS)
        if number is None or number not in self.answers:
            return None
        total, sigma, _ = self.total_of(number)
        return float(self._question(ROWS).read(total, sigma)["values"][ROWS])

    def _number_of(self, name: str) -> int | None:
        return next((number for number, asked in self.run.sums.items() if asked.name == name), None)

    def _question(self, name: str) -> Any:
        return next(question for question in self.questions if question.name == name)

    def found(self, weights: Weights) -> dict[str, Any]:
        """What the answers say: categories and bounds by column, and row counts by party.

        A sum that could not be opened says nothing: its counts are left out, its bounds are the
        outer ones. Where only the total of the rows was seen, its equal parts stand for parties:
        masked sums sample at one rate and divide by the total alone.
        """
        ask, made = self.config.statistics.ask, dict[str, Any]()
        if LEVEL_NAMES in ask:
            number = self._number_of(LEVEL_NAMES)
            answers = self.answers.get(number or 0, {})
            made["levels"] = self.level_names.read(answers.values())["values"]
        if ROWS in ask:
            made["rows"] = self._found_rows()
        if BOUNDS in ask:
            made["bounds"] = {
                name: list(pair) for name, pair in self.working_bounds(weights).items()
            }
        return made

    def _found_rows(self) -> dict[str, float]:
        number = self._number_of(ROWS)
        if number is None or number not in self.answers:
            return {}
        total, sigma, parts = self.total_of(number)
        question = self._question(ROWS)
        if parts:
            return {
                name: float(question.read(part, sigma)["values"][ROWS])
                for name, part in parts.items()
            }
        equal = float(question.read(total, sigma)["values"][ROWS]) / len(self.facts.parties)
        return dict.fromkeys(self.facts.parties, equal)

    @property
    def threshold(self) -> float:
        """The noisy count that a category needs at a party."""
        return self.level_names.release.threshold


class EstimationStage(Mechanism):
    """A run until its estimates are there: the plan of all of it, and its first rounds.

    Guarantees:
        - the plan is that of the training, which is priced together with the estimates;
        - no round of the training is answered in this stage.
    """

    def __init__(self, estimates: Estimates, training: Mechanism) -> None:
        """Wrap a training.

        Args:
            estimates: asks and answers the first rounds.
            training: the mechanism that trains, by what stands for the estimates; its facts hold
                their sums.
        """
        super().__init__(training.config, training.facts, training.noise)
        self.capabilities = training.capabilities
        self.estimates, self.training_of_run = estimates, training

    @property
    def last_round(self) -> int:
        return len(self.facts.estimates)

    # --- the plan: that of the training ---

    def plan(self, party: PartyFacts) -> PartyPlan:
        return self.training_of_run.plan(party)

    def other_sums(self, party: PartyFacts) -> RoundSums:
        return self.training_of_run.other_sums(party)

    @property
    def masked_sum(self) -> PrivateSum | None:
        return self.training_of_run.masked_sum

    @property
    def noise_share(self) -> NoiseShare | None:
        return self.training_of_run.noise_share

    # --- the first rounds: those of the estimates ---

    def row_parts(self, fit: LocalFit, asked: RoundSum) -> Iterator[Tensor]:
        return self.estimates.row_parts(fit, asked)

    def answer(self, fit: LocalFit, asked: RoundSum) -> Release:
        return self.estimates.answer(fit, asked)

    def after_fit(self, fit: LocalFit) -> Release:
        raise PrivacyError("a round of training was asked before the estimates were there; refused")

    def signature_of(self, weights: Weights, asked: RoundSum | None) -> Signature:
        if asked is None or asked.name != LEVEL_NAMES:
            return super().signature_of(weights, asked)
        return {SUM: (self.estimates.level_names.shape, torch.uint8)}

    def on_sum(
        self, asked: RoundSum, parts: Mapping[str, Tensor], current: Weights, round_number: int
    ) -> Combined:
        return self.estimates.on_sum(asked, parts, current, round_number)

    def state(self) -> Weights:
        return self.estimates.state()

    def restore(self, state: Weights) -> None:
        self.estimates.restore(state)
