"""Which settings a mechanism's record rules out: one table, with the message of each rule.

A rule reads the record and the config, and never the name of a mechanism. The rules are checked
when a config is loaded and, for a mechanism of somebody's own, again when its class is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from homo_dp.config.base import Conflict
from homo_dp.config.capabilities import Capabilities
from homo_dp.config.mechanisms import records

if TYPE_CHECKING:
    from homo_dp.config.schema import Config


@dataclass(frozen=True)
class Rule:
    """A combination that is refused.

    Attributes:
        refuses: Whether a config asks for what a mechanism's record does not have.
        says: The message; in braces ``mechanism``, ``able`` (those that have what is asked for),
            ``one_step``, ``estimates``, and sections of the config with their keys.
        able: Whether a record has what is asked for.
    """

    refuses: Callable[[Config, Capabilities], bool]
    says: str
    able: Callable[[Capabilities, Config], bool] = lambda record, config: True

    def message(self, config: Config, record: Capabilities) -> str:
        """The message of a refusal."""
        able = [each for each in records() if each.trains and self.able(each, config)]
        also = "".join(f" (or {each.name})" for each in able if not each.private)
        return self.says.format(
            mechanism=config.privacy.mechanism,
            able=" or ".join(each.name for each in able if each.private) + also,
            one_step="train.solver: second_moment" if record.local_steps else record.name,
            estimates=_estimates(config),
            privacy=config.privacy,
            train=config.train,
        )


def check_rules(config: Config, record: Capabilities) -> None:
    """Refuse a config that asks a mechanism for what it cannot do."""
    for rule in RULES:
        if rule.refuses(config, record):
            raise Conflict(rule.message(config, record))


def solved_plainly(config: Config, record: Capabilities) -> bool:
    """Whether a linear model is solved by an exact second moment, in a run without privacy."""
    return not record.private and config.train.solver == "second_moment" in record.solvers


def _one_step(config: Config, record: Capabilities) -> bool:
    """Whether a round is one gradient, by which the aggregator takes the step."""
    return not record.local_steps or solved_plainly(config, record)


def _estimates(config: Config) -> str | None:
    """The key under ``data`` that asks for private estimates."""
    for name in ("scaling", "counts"):
        if getattr(config.data, name) == "private":
            return name
    return next((f"columns.{name}.levels" for name in config.data.private_levels), None)


def _is_set(config: Config, section: str) -> bool:
    given = getattr(config, section)
    return bool(given != type(given)())


def _trusts_aggregator(config: Config) -> bool:
    return config.privacy.trust_aggregator or bool(
        getattr(config.privacy, "secure_aggregation", False)
    )


RULES: tuple[Rule, ...] = (
    # Whose presence is hidden, and whether at all.
    Rule(
        lambda config, record: (
            not record.private and not config.privacy.built_in and not config.privacy.not_private
        ),
        "privacy.mechanism={mechanism}: calls itself not private; write privacy.not_private: true "
        "to run it all the same, marked NOT PRIVATE",
    ),
    Rule(
        lambda config, record: (
            config.privacy.unit == "user"
            and record.unit == "record"
            and record.private
            and not config.privacy.not_private
        ),
        "privacy.unit=user: privacy.mechanism={mechanism} hides a record; write privacy.unit: "
        "record, or choose {able}; a class that hides a user says so in its capabilities",
        lambda record, config: record.unit == "user",
    ),
    # Sections that another mechanism reads.
    *(
        Rule(
            lambda config, record, name=section: (  # type: ignore[misc]
                record.trains and _is_set(config, name) and name not in record.sections
            ),
            f"{section}: is not used by privacy.mechanism={{mechanism}}; {instead}",
        )
        for section, instead in (
            ("nbafl", "write privacy.mechanism: nbafl"),
            ("statistics", "ask with `homo-dp stats`"),
        )
    ),
    # Rounds of one step.
    Rule(
        lambda config, record: (
            _one_step(config, record)
            and ((config.train.local_steps or 1) != 1 or (config.train.local_epochs or 1.0) != 1.0)
        ),
        "train.local_steps, train.local_epochs: a round of {one_step} is one step; leave them out "
        "and raise train.rounds",
    ),
    Rule(
        lambda config, record: (
            _one_step(config, record)
            and (
                config.train.optimizer != "sgd"
                or config.train.momentum > 0
                or config.train.proximal_mu > 0
            )
        ),
        "train.optimizer, train.momentum, train.proximal_mu: parties take no step under "
        "{one_step}; use train.server_optimizer: fedavgm or fedadam",
    ),
    # What shares the budget with the training.
    Rule(
        lambda config, record: _estimates(config) is not None and not record.estimates_first,
        "data.{estimates}=private: privacy.mechanism={mechanism} has no share of its budget for "
        "it; use {able}, or ask `homo-dp stats` first and write down what it finds",
        lambda record, config: record.estimates_first,
    ),
    Rule(
        lambda config, record: (
            _estimates(config) is not None and config.privacy.target_epsilon is None
        ),
        "data.{estimates}=private: shares privacy.target_epsilon with the training; give it",
    ),
    Rule(
        lambda config, record: (
            _estimates(config) is not None and record.trains and config.train.init_from is not None
        ),
        "data.{estimates}=private: train.init_from={train.init_from} was trained on known columns; "
        "write down those of its config, or leave train.init_from out",
    ),
    Rule(
        lambda config, record: (
            config.metrics.release == "noised"
            and (not record.metrics or config.privacy.target_epsilon is None)
        ),
        "metrics.release=noised: privacy.mechanism={mechanism} has no share of its budget for it; "
        "use {able} with privacy.target_epsilon, or a public test table (data.public_test)",
        lambda record, config: record.metrics,
    ),
    # How the model is trained.
    Rule(
        lambda config, record: config.train.grad_clip is not None and not record.cuts_batches,
        "train.grad_clip={train.grad_clip:g}: cuts the gradient of a batch, which bounds no "
        "record's part in it; privacy.mechanism={mechanism} clips by privacy.max_grad_norm or "
        "clip_norm, leave it out",
    ),
    Rule(
        lambda config, record: config.train.weighting not in record.weightings,
        "train.weighting={train.weighting}: users count the same under {mechanism}, or one could "
        "move the mean further than its noise allows; write train.weighting: uniform",
    ),
    Rule(
        # a mechanism that nobody wrote down follows from the solver
        lambda config, record: (
            config.train.solver not in ("auto", *record.solvers)
            and "mechanism" in config.privacy.model_fields_set
        ),
        "train.solver={train.solver}: is for privacy.mechanism: {able}; leave one of them out",
        lambda record, config: config.train.solver in record.solvers,
    ),
    # Who adds the noise.
    Rule(
        lambda config, record: (
            record.leaves_noise_to_aggregator(config) and not _trusts_aggregator(config)
        ),
        "nbafl.noise_at_upload=false: the aggregator sees weights without noise; write "
        "privacy.trust_aggregator: true if you trust it, or privacy.secure_aggregation: true",
    ),
)
