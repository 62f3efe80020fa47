"""What a privacy mechanism is: hooks around local training, what it releases, and what the
aggregator does.

A mechanism is one class. A party calls ``before_fit``, ``after_batch`` and ``after_fit``; the
aggregator calls ``on_receive`` and ``before_broadcast``; ``plan`` states, before any row is
touched, what all of this will cost. The checks of the contract (an event for every release, noise
above zero, budget, names and shapes) are made by the party and the aggregator, so they hold for
every mechanism, ours or the user's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from homo_dp.config.capabilities import Capabilities as Capabilities
from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.outcomes import Combined as Combined
from homo_dp.federation.mechanisms.outcomes import Release as Release
from homo_dp.federation.mechanisms.outcomes import Update as Update
from homo_dp.federation.mechanisms.run_rounds import RunRounds
from homo_dp.federation.protocol.messages import (
    KINDS,
    Field,
    Kinds,
    Signature,
    extended,
    signature,
)
from homo_dp.federation.protocol.party_plan import FederationFacts as FederationFacts
from homo_dp.federation.protocol.party_plan import Levels as Levels
from homo_dp.federation.protocol.party_plan import Observer as Observer
from homo_dp.federation.protocol.party_plan import PartyFacts as PartyFacts
from homo_dp.federation.protocol.party_plan import PartyPlan as PartyPlan
from homo_dp.federation.protocol.round_sums import (
    SUM,
    RoundSum,
    RoundSums,
)
from homo_dp.federation.protocol.tensors import Weights as Weights
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum

if TYPE_CHECKING:
    from homo_dp.federation.mechanisms.local_fit import LocalFit, Training


class Mechanism(ABC):
    """Bounds what one unit can change, adds the noise, and names the event.

    Guarantees every subclass must keep:
        - the event that ``after_fit`` (or ``on_receive``) names is the one it performed;
        - the sigma that it reports is the one that was added;
        - ``plan`` never costs less than what the rounds will charge.
    """

    capabilities: Capabilities
    # numbers it may add to messages, by kind
    message_fields: ClassVar[Mapping[str, Mapping[str, Field]]] = {}
    # users of one table: their party draws the cohort and answers with the sum
    one_party_holds_all: bool = False

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        self.config = config
        self.facts = facts
        self.noise = noise
        self.run = RunRounds(self)

    @property
    def name(self) -> str:
        """The word for it in statements, ledgers and messages."""
        return self.capabilities.name

    @classmethod
    def common_facts(cls, facts: FederationFacts) -> FederationFacts:
        """The public facts as this mechanism reads them."""
        return facts

    @classmethod  # noqa: B027 (a hook that may stay empty)
    def warm_up(cls) -> None:
        """Import what the first round at a party needs, so that no round waits for it."""

    @property
    def kinds(self) -> Kinds:
        """The table of messages of a run with this mechanism."""
        return extended(KINDS, self.message_fields)

    @property
    def masked_sum(self) -> PrivateSum | None:
        """The sum whose summands leave a party only under masks; None where updates are sent as
        they are.
        """
        return None

    def other_sums(self, party: PartyFacts) -> RoundSums:
        """Rounds that ask another sum than training's, numbered from the first one after those of
        private estimates; they come on top of ``train.rounds``.

        Which rounds they are is the same for all parties. Where one is declared, ``row_parts``
        gives what rows add to it and ``on_sum`` takes the total; noise of the training has to be
        solved together with them (``run.noise_multiplier``).
        """
        return {}

    @property
    def noise_share(self) -> NoiseShare | None:
        """How parties share the noise of sums under masks; None where each adds all of its own."""
        return None

    @property
    def last_round(self) -> int:
        """The last round that this mechanism answers; in the estimation stage of a run others
        follow.
        """
        return self.run.count

    @property
    def noises_in_a_number(self) -> int:
        """How many draws of noise, of different parties, are accounted as the noise of one
        released number, at most.
        """
        found = self.masked_sum
        return 1 if found is None or found.share is None else found.share.parties

    @property
    def ledger_keeper(self) -> Literal["party", "aggregator"]:
        """Who charges: the party, or the aggregator where it is trusted with the noise."""
        return "party"

    @property
    def proximal_mu(self) -> float:
        """How strongly its fits are pulled to the global weights."""
        return self.config.train.proximal_mu

    @property
    def hides_cohort(self) -> bool:
        """Whether who takes part in a round is drawn in secret, so that no output may say it."""
        return False

    @abstractmethod
    def plan(self, party: PartyFacts) -> PartyPlan:
        """What this party's part in the training will release and cost; touches no data."""

    def figures(
        self, plan: PartyPlan, epsilons: Mapping[Observer, float | None]
    ) -> Mapping[str, float | str | None]:
        """What it adds to the privacy statement, given the epsilon that is accounted towards
        each observer so far.
        """
        return plan.extra

    # a hook that may stay empty
    def check_broadcast(self, broadcast: Mapping[str, float]) -> None:  # noqa: B027
        """Called at the party with the numbers that came with the weights, before a row is
        touched: refuse bad ones.
        """

    def check_model(self, module: nn.Module) -> None:  # noqa: B027 (a hook that may stay empty)
        """Called at the party before the run, and before a row is touched: refuse a model that
        it cannot protect.
        """

    def before_fit(self, fit: LocalFit) -> None:  # noqa: B027 (a hook that may stay empty)
        """Called at the party in each round, after the global weights were loaded and before the
        first batch.
        """

    def training(self, fit: LocalFit) -> Training | None:
        """Called at the party in each round, after ``before_fit``: what the training loop is made
        of. None: the party takes no step of its own.
        """
        return fit.plain_training()

    def after_batch(self, fit: LocalFit) -> None:  # noqa: B027 (a hook that may stay empty)
        """Called at the party after each local batch."""

    @abstractmethod
    def after_fit(self, fit: LocalFit) -> Release:
        """Called at the party after the last batch: the bounded, noised tensors and their event."""

    def row_parts(self, fit: LocalFit, asked: RoundSum) -> Iterable[Tensor]:
        """Called at the party in a round that asks another sum: one vector a row, some rows at a
        time.

        The global weights of the round are in ``fit.model``. Longer vectors than the sum's clip
        norm are clipped.
        """
        raise PrivacyError(
            f"mechanism={self.name}: asks for {asked.name} and has no row_parts for it"
        )

    def answer(self, fit: LocalFit, asked: RoundSum) -> Release:
        """A party's bounded and noised part of another sum."""
        released = asked.private_sum.of_chunks(self.row_parts(fit, asked), self.noise)
        return Release.of_sum(asked, released)

    def noise_alone(self) -> Release:
        """Called at the party in rounds that its schedule leaves out, where others need its
        share of the noise.
        """
        raise PrivacyError(
            f"mechanism={self.name}: shares no noise; take part in the rounds of the schedule"
        )

    def signature_of(self, weights: Weights, asked: RoundSum | None) -> Signature:
        """Names, shapes and dtypes of the answer of a round that is not masked.

        An update, where no other sum is asked, has those of the model unless it says otherwise.
        """
        return signature(weights) if asked is None else {SUM: ((asked.dimension,), torch.float64)}

    def local_norms(self) -> tuple[Tensor, float] | None:
        """Gradient norms of the last batch and the norm they are clipped to. LOCAL: never send
        them.
        """
        return None

    def cohort(self, parties: Sequence[str], round_number: int) -> tuple[str, ...]:
        """Called at the aggregator when a round opens: the parties that take part in it."""
        return tuple(parties)

    def longest_update(self, weights: Weights) -> float | None:
        """The norm that no update at these weights can pass, by public numbers; None where
        updates are weights.
        """
        return None

    def on_receive(
        self, updates: Sequence[Update], current: Weights, round_number: int
    ) -> Combined:
        """Called at the aggregator with the round's checked updates: the weights that follow
        from them.
        """
        return Combined(weighted_mean(updates))

    def on_total(
        self, total: Tensor, replied: Sequence[str], current: Weights, round_number: int
    ) -> Combined:
        """Called at the aggregator instead of ``on_receive`` where updates are masked, with the
        values of their sum.
        """
        raise PrivacyError(f"mechanism={self.name}: has no masked sum; send updates as they are")

    def on_sum(
        self, asked: RoundSum, parts: Mapping[str, Tensor], current: Weights, round_number: int
    ) -> Combined:
        """Called at the aggregator with the values of another sum, by party; under masks of all, as
        ``SUM``.

        Weights other than ``current`` become the global ones.
        """
        return Combined(current)

    def before_broadcast(self, weights: Weights, round_number: int) -> Weights:
        """Called at the aggregator on the weights of the next round, before anyone sees them."""
        return weights

    def starts_from_mean(self, round_number: int) -> bool:
        """Whether a round of training, by its number among those, goes on from the mean of the
        models before it, where there is one.
        """
        return False

    def broadcast_tensors(self, round_number: int, weights: Weights) -> Weights:
        """Public tensors that parties need with these weights of a round, beside those of the
        model.
        """
        return {}

    def broadcast_signature(self, round_number: int) -> Signature:
        """Names, shapes and dtypes of ``broadcast_tensors``, as a party expects them."""
        return {}

    def broadcast_info(self) -> Mapping[str, float]:
        """Public numbers that parties need with the weights, e.g. the clip norm of the round."""
        return {}

    def state(self) -> Weights:
        """What it must know after a restart (a clip norm that moved), as tensors; saved after
        every round.
        """
        return {}

    def restore(self, state: Weights) -> None:  # noqa: B027 (a hook that may stay empty)
        """Go on from what ``state`` gave."""


def party_weights(config: Config, facts: FederationFacts) -> dict[str, float]:
    """What the update of each party counts: the same, or by public row counts."""
    by_rows = config.train.weighting == "rows"
    return {name: float(party.rows) if by_rows else 1.0 for name, party in facts.parties.items()}


def weighted_mean(updates: Sequence[Update]) -> Weights:
    """The mean of updates by their public weights."""
    total = sum(update.weight for update in updates)
    names = updates[0].tensors
    result: Weights = {}
    for name in names:
        accumulated = updates[0].tensors[name] * (updates[0].weight / total)
        for update in updates[1:]:
            accumulated.add_(update.tensors[name], alpha=update.weight / total)
        result[name] = accumulated
    return result
