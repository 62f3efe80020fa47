"""What a privacy mechanism is: hooks around local training, what it releases, and what the aggregator does.

A mechanism is one class. A party calls ``before_fit``, ``after_batch`` and ``after_fit``; the aggregator calls
``on_receive`` and ``before_broadcast``; ``plan`` states, before any row is touched, what all of this will cost. The
checks of the contract (an event for every release, noise above zero, budget, names and shapes) are made by the party
and the aggregator, so they hold for every mechanism, ours or the user's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from homo_dp.config.schema import Config
from homo_dp.federation.protocol.messages import KINDS, Field, Kinds, Signature, extended, signature
from homo_dp.privacy.accounting.accountants import epsilon
from homo_dp.privacy.accounting.dp_event import DpEvent
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.ledger.rows import Charge
from homo_dp.privacy.noise.source import NoiseSource
from homo_dp.privacy.private_sum import PrivateSum

if TYPE_CHECKING:
    from homo_dp.federation.mechanisms.local_fit import LocalFit

Weights = dict[str, Tensor]
Observer = Literal["aggregator", "model_reader"]


@dataclass(frozen=True)
class PartyFacts:
    """The public facts of one party's part in a run, known before its rows are touched."""

    name: str
    rows: int
    rounds: int
    steps_per_round: int
    sample_rate: float


@dataclass(frozen=True)
class FederationFacts:
    """The public facts of a run that mechanisms calibrate against."""

    parties: Mapping[str, PartyFacts]
    rounds: int
    parameters: int

    @property
    def smallest_rows(self) -> int:
        return min(facts.rows for facts in self.parties.values())


@dataclass(frozen=True)
class PartyPlan:
    """What a party will release in each round and what every observer learns from it.

    ``rounds`` are those of the run; where ``schedule`` names some of them, the party takes part in no others.
    ``events`` maps an observer to the event of one round; an observer who is missing gets no guarantee. Where
    ``trusts_aggregator``, the target is kept against the readers of the model, and theirs is the figure to quote.
    """

    noise_multiplier: float
    sigma: float
    clip_norm: float
    relation: str
    delta: float
    rounds: int
    events: Mapping[Observer, DpEvent]
    releases: tuple[str, ...]
    noise_to_signal: float
    notes: tuple[str, ...] = ()
    extra: Mapping[str, float | str | None] = field(default_factory=dict)
    trusts_aggregator: bool = False
    schedule: tuple[int, ...] | None = None

    def releases_by(self, round_number: int) -> int:
        """How many times the party has released something once this round of the run is over."""
        if self.schedule is None:
            return round_number
        return sum(number <= round_number for number in self.schedule)

    def round_of(self, releases: int) -> int:
        """The round of the run in which a party that missed none of its own makes its n-th release; 0 before the first.

        >>> plan = PartyPlan(1.0, 1.0, 1.0, "replace_one", 1e-5, 4, {}, (), 1.0, schedule=(3, 4))
        >>> plan.round_of(1), plan.releases_by(plan.round_of(2)), plan.releases_by(2)
        (3, 2, 0)
        """
        return self.schedule[releases - 1] if self.schedule and releases else releases


@dataclass(frozen=True)
class Release:
    """Tensors that may leave, with the event that covers them and the noise that was applied.

    ``event`` is None only where the noise is added later by a trusted aggregator, or in a run marked NOT PRIVATE.
    """

    tensors: Weights
    event: DpEvent | None
    sigma: float
    relation: str
    info: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """One party's checked reply as the aggregator sees it."""

    party: str
    tensors: Weights
    weight: float
    info: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Combined:
    """The outcome of a round at the aggregator; ``event`` and ``sigma`` where the aggregator's ledger pays for it.

    A ``discarded`` round is paid for and moves nothing.
    """

    weights: Weights
    event: DpEvent | None = None
    sigma: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    discarded: bool = False


class Mechanism(ABC):
    """Bounds what one unit can change, adds the noise, and names the event.

    Guarantees every subclass must keep:
        - the event that ``after_fit`` (or ``on_receive``) names is the one it performed;
        - the sigma that it reports is the one that was added;
        - ``plan`` never costs less than what the rounds will charge.
    """

    name: ClassVar[str]
    unit: ClassVar[Literal["record", "user"]] = "record"
    private: ClassVar[bool] = True
    message_fields: ClassVar[Mapping[str, Mapping[str, Field]]] = {}  # numbers it may add to messages, by kind
    relation: ClassVar[str | None] = None  # of every plan that it makes; None where the settings decide
    price_needs_rows: ClassVar[bool] = True  # whether what a party spends depends on how many rows it has
    one_party_holds_all: bool = False  # users of one table: their party draws the cohort and answers with the sum
    combines_empty_rounds: ClassVar[bool] = False  # on_receive is called (and adds noise) also if nobody replied

    def __init__(self, config: Config, facts: FederationFacts, noise: NoiseSource) -> None:
        self.config = config
        self.facts = facts
        self.noise = noise

    @classmethod
    def leaves_noise_to_aggregator(cls, config: Config) -> bool:
        """Whether parties would send something without noise, so that each must trust the aggregator."""
        return False

    @classmethod
    def needs_rows(cls, config: Config) -> str | None:
        """The setting that cannot work while a party keeps its row count to itself; None if there is none."""
        return None

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
        """The sum whose summands leave a party only under masks; None where updates are sent as they are."""
        return None

    @property
    def noise_label(self) -> str:
        """What a row of the ledger says about the noise."""
        return self.noise.label

    @property
    def ledger_keeper(self) -> Literal["party", "aggregator"]:
        """Who charges: the party, or the aggregator where it is trusted with the noise."""
        return "party"

    @property
    def paid_against(self) -> Observer:
        """Against whom the charges of its ledger hold."""
        return "aggregator" if self.ledger_keeper == "party" else "model_reader"

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
        """What this party's part in the run will release and cost; touches no data."""

    def figures(self, plan: PartyPlan, epsilons: Mapping[Observer, float | None]) -> Mapping[str, float | str | None]:
        """What it adds to the privacy statement, given the epsilon that is accounted towards each observer so far."""
        return plan.extra

    def check_broadcast(self, broadcast: Mapping[str, float]) -> None:  # noqa: B027 (a hook that may stay empty)
        """Called at the party with the numbers that came with the weights, before a row is touched: refuse bad ones."""

    def before_fit(self, fit: LocalFit) -> None:  # noqa: B027 (a hook that may stay empty)
        """Called at the party in each round, after the global weights were loaded and before the first batch."""

    def after_batch(self, fit: LocalFit) -> None:  # noqa: B027 (a hook that may stay empty)
        """Called at the party after each local batch."""

    @abstractmethod
    def after_fit(self, fit: LocalFit) -> Release:
        """Called at the party after the last batch: the bounded, noised tensors and their event."""

    def update_signature(self, weights: Weights) -> Signature:
        """Names, shapes and dtypes of the tensors of an update: those of the model, unless it says otherwise."""
        return signature(weights)

    def local_norms(self) -> tuple[Tensor, float] | None:
        """Gradient norms of the last batch and the norm they are clipped to. LOCAL: never send them."""
        return None

    def cohort(self, parties: Sequence[str], round_number: int) -> tuple[str, ...]:
        """Called at the aggregator when a round opens: the parties that take part in it."""
        return tuple(parties)

    def participants(self, parties: Sequence[str], round_number: int) -> tuple[str, ...]:
        """Whom the aggregator asks in a round: the cohort, unless one party holds all users and draws it itself."""
        return tuple(parties) if self.one_party_holds_all else self.cohort(parties, round_number)

    def on_receive(self, updates: Sequence[Update], current: Weights, round_number: int) -> Combined:
        """Called at the aggregator with the round's checked updates: the weights that follow from them."""
        return Combined(weighted_mean(updates))

    def on_total(self, total: Tensor, replied: Sequence[str], current: Weights, round_number: int) -> Combined:
        """Called at the aggregator instead of ``on_receive`` where updates are masked, with the values of their sum."""
        raise PrivacyError(f"mechanism={self.name}: has no masked sum; send updates as they are")

    def before_broadcast(self, weights: Weights, round_number: int) -> Weights:
        """Called at the aggregator on the weights of the next round, before anyone sees them."""
        return weights

    def broadcast_info(self) -> Mapping[str, float]:
        """Public numbers that parties need with the weights, e.g. the clip norm of the round."""
        return {}

    def state(self) -> Weights:
        """What it must know after a restart (a clip norm that moved), as tensors; saved after every round."""
        return {}

    def restore(self, state: Weights) -> None:  # noqa: B027 (a hook that may stay empty)
        """Go on from what ``state`` gave."""


def round_charge(
    mechanism: Mechanism,
    plan: PartyPlan,
    observer: Observer,
    event: DpEvent,
    sigma: float,
    *,
    run: str,
    dataset: str,
    party: str,
    round_number: int,
) -> Charge:
    """A round as the ledger is charged for it: an update against the aggregator, a model against its readers."""
    return Charge(
        run=run,
        dataset=dataset,
        unit=mechanism.unit,
        relation=plan.relation,
        party=party,
        round=round_number,
        kind="update" if observer == "aggregator" else "model",
        event=event,
        delta=plan.delta,
        sigma=sigma,
        observer=observer,
        noise=mechanism.noise_label,
    )


def check_within_plan(mechanism: Mechanism, event: DpEvent, planned: DpEvent, delta: float) -> None:
    """The plan is what was agreed to and what the statement quotes: a release may not cost more."""
    if event == planned:
        return
    asked, agreed = epsilon(event, delta).quoted, epsilon(planned, delta).quoted
    if asked > agreed * (1 + 1e-9):
        raise PrivacyError(
            f"epsilon={asked:.6g} of a release at delta={delta:g}: the plan of {mechanism.name} says {agreed:.6g}; "
            "plan what is released"
        )


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
