"""Statistics as a run of its own: every round asks one question of the parties' tables, and nothing
is trained.

The questions share ``privacy.target_epsilon`` by the rule of ``questions.SHARES``. What follows
from one answer may be needed by the next question: it is then the "weights" that the aggregator
sends.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from homo_dp.config.mechanisms import STATISTICS
from homo_dp.config.privacy import SharedNoiseKeys, keys_of
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError
from homo_dp.data.columns import Numeric
from homo_dp.data.public_encoding import public_encoding
from homo_dp.federation.mechanisms.base import (
    Combined,
    FederationFacts,
    Mechanism,
    PartyFacts,
    PartyPlan,
    Release,
    Weights,
)
from homo_dp.federation.mechanisms.local_fit import CHUNK, LocalFit
from homo_dp.federation.mechanisms.shared_noise import shared_figures, shared_note
from homo_dp.federation.protocol.messages import Signature
from homo_dp.federation.protocol.round_sums import SUM, RoundSum, RoundSums, noise_of_share
from homo_dp.privacy.accounting.accountants import check_delta
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum
from homo_dp.statistics.private_levels import LEVEL_NAMES, LevelNames, level_names
from homo_dp.statistics.questions import SHARES, Question, questions_of
from homo_dp.statistics.working_bounds import (
    ANCHORS,
    WITH_SPREADS,
    Magnitudes,
    Octaves,
    Outer,
    Spreads,
    Window,
    outer_of,
    phases_of,
)

ESTIMATES = {LEVEL_NAMES: 2.0, "bounds": 6.0}  # shares of questions beside those of ``SHARES``


class Numbers(nn.Module):
    """What stands for the model while a run only asks: numbers that a later question goes by."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(*shape, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        """Nothing is predicted."""
        return rows


class Statistics(Mechanism):
    """One private sum a round.

    Guarantees:
        - every row is in every sum, clipped to a norm of 1, and each sum has Gaussian noise of its
          share of the budget;
        - all questions together cost ``privacy.target_epsilon``;
        - with secure aggregation parties share the noise of a sum, and the aggregator sees its
          total alone;
        - names of levels are not a sum: each party adds its own noise, and they are not asked under
          masks.
    """

    capabilities = STATISTICS

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        super().__init__(config, facts, noise)
        shared = keys_of(config.privacy, SharedNoiseKeys)
        self._share = None
        if shared.secure_aggregation:
            self._share = NoiseShare(
                len(facts.parties), shared.tolerated_dropouts, shared.tolerated_colluders
            )
        self.answers: dict[int, dict[str, Tensor]] = {}
        self._check_names()

    def _check_names(self) -> None:
        """Refuse a run that is masked and asks for nothing but a list of names, or for one too."""
        if self._share is not None and LEVEL_NAMES in self.config.statistics.ask:
            raise ConfigError(
                f"statistics.ask={LEVEL_NAMES}: a list of names is no sum that could be "
                "masked; ask it without privacy.secure_aggregation"
            )

    @functools.cached_property
    def questions(self) -> tuple[Question, ...]:
        """What is asked, one question a round; by the declared columns, so that both sides have
        the same.
        """
        return questions_of(self.config.statistics, public_encoding(self.config))

    @classmethod
    def common_facts(cls, facts: FederationFacts) -> FederationFacts:
        """Nothing is trained."""
        parties = {
            name: replace(party, rounds=0, steps_per_round=0, sample_rate=1.0)
            for name, party in facts.parties.items()
        }
        return replace(facts, parties=parties, rounds=0)

    @property
    def masked_sum(self) -> PrivateSum | None:
        return None if self._share is None else next(iter(self.run.sums.values())).private_sum

    def other_sums(self, party: PartyFacts) -> RoundSums:
        rows, found = self._most_rows, dict[int, RoundSum]()
        for number, (name, (dimension, share)) in enumerate(self._asked.items(), 1):
            noise = self._noise(share)
            text, clip_norm = f"{name} of all rows, with noise, once", 1.0
            if name == LEVEL_NAMES:
                text, clip_norm = _names_text(self.level_names), self.level_names.release.clip_norm
            shared = None if name == LEVEL_NAMES else self._share
            asked = PrivateSum(dimension, clip_norm, noise, rows, share=shared)
            found[number] = RoundSum(name, asked, text)
        return found

    def _noise(self, share: float) -> float:
        privacy = self.config.privacy
        if privacy.target_epsilon is None:
            return privacy.noise_multiplier or 1.0
        return noise_of_share(share, privacy.target_epsilon, self.config.delta)

    def _planned_noise(self, share: float) -> float:
        """The noise multiplier by which it is decided which sums are asked: the same everywhere."""
        return self._noise(share)

    @functools.cached_property
    def _asked(self) -> dict[str, tuple[int, float]]:
        """The dimension and share of the budget of each sum, in the order of the rounds."""
        found = dict[str, tuple[int, float]]()
        sizes = {question.name: question.dimension for question in self.questions}
        for name, share in self.shares.items():
            if name == "bounds":
                found |= self._asked_for_bounds(share)
            elif name == LEVEL_NAMES:
                found[name] = math.prod(self.level_names.shape), share
            else:
                found[name] = sizes[name], share
        return found

    def _asked_for_bounds(self, share: float) -> dict[str, tuple[int, float]]:
        columns = len(self.outer.columns)
        phases = phases_of(self._planned_noise(share), columns, self._summands, self._rows)
        return {
            name: (self._phase(name, None).dimension, share * part) for name, part in phases.items()
        }

    @functools.cached_property
    def shares(self) -> Mapping[str, float]:
        """The share of the budget that each question has, in the order in which they are asked."""
        asked = {question.name: SHARES[question.name] for question in self.questions} | {
            name: share for name, share in ESTIMATES.items() if name in self.config.statistics.ask
        }
        whole = sum(asked.values())
        return {name: share / whole for name, share in asked.items()}

    @functools.cached_property
    def level_names(self) -> LevelNames:
        """The question for levels that nobody listed."""
        smallest = min(self.config.delta, self.config.lifetime_delta)
        noise = self._noise(self.shares[LEVEL_NAMES])
        return level_names(public_encoding(self.config), noise, smallest)

    @property
    def _summands(self) -> float:
        parties = len(self.facts.parties)
        return parties if self._share is None else parties / self._share.sharers

    @property
    def _rows(self) -> float:
        return float(sum(facts.rows for facts in self.facts.parties.values()))

    @property
    def _most_rows(self) -> int:
        """Rows of all parties that no masked sum may wrap for."""
        return int(self._rows)

    @property
    def _known_rows(self) -> float:
        """Rows of all parties as far as they are known when answers are read."""
        return self._rows

    @functools.cached_property
    def outer(self) -> Outer:
        """The numeric columns with their outer bounds."""
        columns = public_encoding(self.config).columns
        wanted = [(at, column) for at, column in enumerate(columns) if isinstance(column, Numeric)]
        if not wanted:
            raise ConfigError(
                "data.scaling=private: no column has bounds; there is nothing to estimate"
            )
        bounds = [(column.low, column.high) for _, column in wanted]
        return outer_of([column.name for _, column in wanted], [at for at, _ in wanted], bounds)

    def _phase(self, name: str, numbers: Tensor | None) -> Question:
        """A phase of the estimate of bounds, by the numbers that the phase before it gave; None:
        its shape alone.
        """
        outer, width = self.outer, len(self.outer.columns)
        rows = self._rows if numbers is None else self._known_rows
        numbers = (
            torch.zeros(width + 2, 2, dtype=torch.float64)
            if numbers is None
            else numbers.detach().cpu()
        )
        if name == "octaves":
            return Octaves(outer, rows)
        if name == "magnitudes":
            anchor = int(min(max(float(numbers[0, 0]), 0.0), len(ANCHORS) - 1))
            return Magnitudes(
                outer, Window(anchor, float(numbers[0, 1]), float(numbers[1, 0]), rows)
            )
        low, high = outer.within(numbers[2 : 2 + width])
        return Spreads(outer, low, high, rows)

    def _next_numbers(self, name: str, total: Tensor, sigma: float, numbers: Tensor) -> Tensor:
        """The numbers that the next phase goes by, after one phase; at the end the working
        bounds.
        """
        question, found = self._phase(name, numbers), numbers.detach().clone()
        if isinstance(question, Octaves):
            window = question.window(total, sigma)
            found[0] = torch.tensor([float(window.anchor), window.octave], dtype=torch.float64)
            found[1, 0] = window.width
        elif isinstance(question, Spreads) and not question.is_reliable(sigma):
            return found  # fewer rows than the plan took them to be
        elif isinstance(question, Magnitudes | Spreads):
            found[2 : 2 + len(self.outer.columns)] = self.outer.shares(
                *question.bounds(total, sigma)
            )
        return found

    def working_bounds(self, weights: Weights) -> dict[str, tuple[float, float]]:
        """The bounds that were found, by column."""
        low, high = self.outer.within(weights["numbers"][2 : 2 + len(self.outer.columns)].double())
        return dict(
            zip(self.outer.columns, zip(low.tolist(), high.tolist(), strict=True), strict=True)
        )

    def plan(self, party: PartyFacts) -> PartyPlan:
        check_delta(self.config.delta, party.rows)
        first = next(iter(self.other_sums(party).values()))
        return PartyPlan(
            noise_multiplier=first.private_sum.noise_multiplier,
            sigma=first.private_sum.party_sigma,
            clip_norm=1.0,
            relation=first.private_sum.relation,
            delta=self.config.delta,
            rounds=0,
            events={"aggregator": first.event, "model_reader": first.event},
            releases=(),
            noise_to_signal=first.private_sum.noise_multiplier / max(1, party.rows),
            notes=() if self._share is None else (shared_note(self._share),),
            extra=self._figures(first.private_sum),
        )

    def _figures(self, first: PrivateSum) -> dict[str, float | str | None]:
        """Who shares the noise; how much of it there is differs from question to question."""
        return {
            name: value
            for name, value in shared_figures(first).items()
            if not name.endswith("_sigma")
        }

    @property
    def noise_share(self) -> NoiseShare | None:
        return self._share

    def row_parts(self, fit: LocalFit, asked: RoundSum) -> Iterator[Tensor]:
        known = {question.name: question for question in self.questions}
        question = known.get(asked.name) or self._phase(
            asked.name, fit.model.state_dict()["numbers"]
        )
        size = max(1, CHUNK // max(asked.dimension, fit.features.shape[1]))
        for rows, labels in zip(
            torch.split(fit.features, size), torch.split(fit.labels, size), strict=True
        ):
            yield question.parts(rows, labels)

    def answer(self, fit: LocalFit, asked: RoundSum) -> Release:
        if asked.name != LEVEL_NAMES:
            return super().answer(fit, asked)
        names = self.level_names.answer(fit.features, self.noise)
        return Release.of_sum(asked, names)

    def signature_of(self, weights: Weights, asked: RoundSum | None) -> Signature:
        if asked is None or asked.name != LEVEL_NAMES:
            return super().signature_of(weights, asked)
        return {SUM: (self.level_names.shape, torch.uint8)}

    def after_fit(self, fit: LocalFit) -> Release:
        raise PrivacyError("mechanism=statistics: trains nothing; ask the rounds of its plan")

    def on_sum(
        self, asked: RoundSum, parts: Mapping[str, Tensor], current: Weights, round_number: int
    ) -> Combined:
        named = asked.name == LEVEL_NAMES
        self.answers[round_number] = {
            name: part if named else part.double() for name, part in parts.items()
        }
        if asked.name not in WITH_SPREADS:
            return Combined(current)
        total, sigma, _ = self.total_of(round_number)
        return Combined(
            {"numbers": self._next_numbers(asked.name, total, sigma, current["numbers"])}
        )

    def total_of(self, round_number: int) -> tuple[Tensor, float, dict[str, Tensor]]:
        """The total of a question, the noise of its numbers, and the parts of parties where
        those were seen.
        """
        found = self.answers[round_number]
        asked = self.run.sums[round_number].private_sum
        if self._share is not None:
            return found[SUM], asked.total_sigma, {}
        return torch.stack(list(found.values())).sum(0), asked.sigma * math.sqrt(len(found)), found

    def state(self) -> Weights:
        return {
            f"{number}.{name}": part
            for number, parts in self.answers.items()
            for name, part in parts.items()
        }

    def restore(self, state: Weights) -> None:
        self.answers = {}
        for key, part in state.items():
            number, _, name = key.partition(".")
            self.answers.setdefault(int(number), {})[name] = part


def _names_text(asked: LevelNames) -> str:
    release = asked.release
    return (
        f"names of categories that more than about {release.threshold:.0f} rows of a party have, "
        f"by a noisy threshold, which adds {release.delta:.1e} to delta"
    )
