"""What a mechanism can do, as one frozen record: the code asks it, and never what a mechanism is
called.

A record is plain data without torch, so that a config can be checked before anything heavy is
imported. Those of the mechanisms that ship are in ``mechanisms.py``; a mechanism of one's own has
one as ``capabilities`` of its class. ``rules.py`` says which settings a record rules out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from homo_dp.config.schema import Config

Observer = Literal["aggregator", "model_reader"]
NoiseSite = Literal["party", "parties together", "aggregator"]
Settings = Mapping[str, object]
"""Values of config keys, by dotted key."""


@dataclass(frozen=True)
class Capabilities:
    """One mechanism: what it promises, what it works with, and what it needs.

    The defaults are those of a mechanism that promises least: what is not declared cannot be used.

    Attributes:
        name: The word for it in statements, ledgers and messages.
        about: What it does, in a few words.
        unit: Whose presence it hides: one row, or all rows of a user.
        private: Whether it adds noise at all. False needs ``privacy.not_private: true``, unless it
            ships with homo_dp.
        trains: Whether its rounds train a model; False: they only ask sums of the tables.
        relation: The neighbouring relation of all of its plans; None where settings decide.
        observers: Towards whom it can give a guarantee.
        noise: Who can add the noise; "parties together" is under masks.
        noise_at_aggregator: The settings that together leave the noise to the aggregator, which
            each party must then trust; None: no settings do.
        sampling: What is drawn: batches of rows, cohorts of users, or nothing.
        works_on: What it bounds: each row's part in a step, or the result of local training. In the
            second case hooks may change the model, and a client of one's own may train it.
        local_steps: Whether parties take several steps in a round; False: a round is one step, of
            the aggregator.
        cuts_batches: Whether ``train.grad_clip`` may cut the gradient of a batch.
        metrics: Whether its noise is solved together with released metrics.
        estimates_first: Whether its noise is solved together with private estimates in the first
            rounds.
        weightings: What ``train.weighting`` may be.
        solvers: What ``train.solver`` may be, beside ``auto``.
        auto: Whether ``train.auto`` has rules for it.
        keys: Which keys of the section ``privacy`` it reads: those of clipped rows, of clipped rows
            whose noise parties can share, of users, of uploads, of questions, or none.
        target: Whether ``privacy.target_epsilon`` or ``privacy.noise_multiplier`` sets its noise.
        parties_of_round: All, some in turn (K of N), or a cohort that is drawn.
        hides_cohort: Whether it can keep secret who takes part in a round.
        answers_empty_rounds: Whether a round to which nobody replied still adds noise and counts.
        needs_rows: The settings that together need declared row counts; None: it never does.
        price_needs_rows: Whether what a party spends depends on how many rows it has.
        sections: Sections of the config that only it reads.
        leaves_keys_aside: Whether keys of other mechanisms are ignored, not refused.
        attacks: The attack that tests its claim, by observer.
    """

    name: str
    about: str = ""
    unit: Literal["record", "user"] = "record"
    private: bool = True
    trains: bool = True
    relation: str | None = None
    observers: tuple[Observer, ...] = ("aggregator", "model_reader")
    noise: tuple[NoiseSite, ...] = ("party",)
    noise_at_aggregator: Settings | None = None
    sampling: Literal["rows", "users", "nothing"] = "nothing"
    works_on: Literal["rows", "result"] = "rows"
    local_steps: bool = True
    cuts_batches: bool = False
    metrics: bool = False
    estimates_first: bool = False
    weightings: tuple[str, ...] = ("uniform", "rows", "noise")
    solvers: tuple[str, ...] = ("sgd",)
    auto: bool = False
    keys: Literal["rows", "shared_rows", "users", "uploads", "questions", "none"] = "rows"
    target: bool = True
    parties_of_round: Literal["all", "in turn", "drawn"] = "all"
    hides_cohort: bool = False
    answers_empty_rounds: bool = False
    needs_rows: Settings | None = None
    price_needs_rows: bool = True
    sections: tuple[str, ...] = ()
    leaves_keys_aside: bool = False
    attacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def masks(self) -> bool:
        """Whether it works under ``privacy.secure_aggregation: true``."""
        return "parties together" in self.noise

    @property
    def one_sum(self) -> bool:
        """Whether a round is one sum of rows, by which linear models can be solved."""
        return self.private and "second_moment" in self.solvers

    def leaves_noise_to_aggregator(self, config: Config) -> bool:
        """Whether parties would send something without noise, so that each must trust the
        aggregator.
        """
        return self.noise_at_aggregator is not None and has(config, self.noise_at_aggregator)

    def rows_are_needed(self, config: Config) -> str | None:
        """The setting that cannot work while a party keeps its row count to itself; None if
        there is none.
        """
        if self.needs_rows is None or not has(config, self.needs_rows):
            return None
        return said(self.needs_rows) or f"privacy.mechanism={config.privacy.mechanism}"


def has(config: Config, settings: Settings) -> bool:
    """Whether a config has all of these values."""
    return all(_value(config, key) == value for key, value in settings.items())


def said(settings: Settings) -> str:
    """Settings as a person would write them.

    >>> said({"nbafl.min_dataset_size": None, "privacy.secure_aggregation": True})
    'nbafl.min_dataset_size=null privacy.secure_aggregation=true'
    """
    return " ".join(f"{key}={_WORDS.get(str(value), value)}" for key, value in settings.items())


_WORDS = {"True": "true", "False": "false", "None": "null"}


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name, None)
