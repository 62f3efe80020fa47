"""A privacy plan: who is drawn how often, what that costs, and what doubling or halving each
knob would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from homo_dp.privacy.accounting.accountants import (
    Epsilon,
    calibrate,
    check_delta,
    check_noise_multiplier,
    check_sample_rate,
    check_steps,
    check_target_epsilon,
    epsilon,
    steps_for_epochs,
)
from homo_dp.privacy.accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from homo_dp.privacy.errors import PrivacyError

ADD_OR_REMOVE_ONE, REPLACE_ONE = "add_or_remove_one", "replace_one"


@dataclass(frozen=True)
class BudgetPlan:
    """Steps on draws of ``drawn`` out of ``total`` rows (or users), each with noise on the sum.

    ``epochs`` counts passes over the rows; for users it is None and ``rounds`` counts the steps.

    >>> BudgetPlan(total=60_000, drawn=256, epochs=60, delta=1e-5).steps
    14063
    """

    total: int
    drawn: int
    epochs: float | None = None
    rounds: int | None = None
    sampling: str = "poisson"
    relation: str = ADD_OR_REMOVE_ONE
    delta: float = 1e-5

    def __post_init__(self) -> None:
        small, large = self.names
        check_steps(self.total, large)
        check_steps(self.drawn, small)
        if self.drawn > self.total:
            raise PrivacyError(
                f"{small}={self.drawn} must be at most {large}={self.total}: "
                f"sample_rate={self.sample_rate:g} must be in (0, 1]; draw fewer"
            )
        check_sample_rate(self.sample_rate)
        check_delta(self.delta, self.total)
        if self.epochs is None:
            check_steps(0 if self.rounds is None else self.rounds, "rounds")
        else:
            steps_for_epochs(self.epochs, self.total, self.drawn)

    @property
    def names(self) -> tuple[str, str]:
        """What the options call the draw and the total."""
        return ("cohort", "population") if self.epochs is None else ("batch_size", "rows")

    @property
    def sample_rate(self) -> float:
        return self.drawn / self.total

    @property
    def steps(self) -> int:
        if self.epochs is None:
            return self.rounds or 0
        return steps_for_epochs(self.epochs, self.total, self.drawn)

    def event(self, noise_multiplier: float, steps: int | None = None) -> DpEvent:
        """What the samplers of homo_dp.privacy.sampling.samplers name for these draws."""
        check_noise_multiplier(noise_multiplier)
        gaussian = GaussianDpEvent(noise_multiplier / (2 if self.relation == REPLACE_ONE else 1))
        step = {
            "poisson": lambda: PoissonSampledDpEvent(self.sample_rate, gaussian),
            "fixed": lambda: SampledWithoutReplacementDpEvent(self.total, self.drawn, gaussian),
            "everyone": lambda: gaussian,
        }[self.sampling]()
        return SelfComposedDpEvent(step, self.steps if steps is None else steps)

    def epsilon(self, noise_multiplier: float) -> Epsilon:
        return epsilon(self.event(noise_multiplier), self.delta)

    def noise_for(self, target_epsilon: float) -> float:
        """The smallest noise multiplier that keeps the plan within the target."""
        check_target_epsilon(target_epsilon)
        return calibrate(self.event, target_epsilon, self.delta)


@dataclass(frozen=True)
class Change:
    """One knob at half and at twice its value, and the result there; None where the plan would
    not be allowed.
    """

    knob: str
    half: float
    result_at_half: float | None
    twice: float
    result_at_twice: float | None
    refusals: tuple[str, ...] = ()


def changes(
    plan: BudgetPlan, noise_multiplier: float, target_epsilon: float | None = None
) -> Iterator[Change]:
    """What half and twice of each knob would do: to the noise needed if there is a target, else
    to epsilon.
    """

    def result(other: BudgetPlan) -> float:
        return (
            other.epsilon(noise_multiplier).quoted
            if target_epsilon is None
            else other.noise_for(target_epsilon)
        )

    if target_epsilon is None:
        yield _change("noise multiplier", noise_multiplier, lambda z: plan.epsilon(z).quoted)
    else:
        yield _change("target epsilon", target_epsilon, plan.noise_for)
    if plan.sampling != "everyone":
        small = plan.names[0].replace("_", " ")
        yield _change(small, plan.drawn, lambda value: result(replace(plan, drawn=int(value))))
    if plan.epochs is None:
        yield _change("rounds", plan.steps, lambda value: result(replace(plan, rounds=int(value))))
    else:
        yield _change("epochs", plan.epochs, lambda value: result(replace(plan, epochs=value)))
    yield _change(plan.names[1], plan.total, lambda value: result(_with_total(plan, value)))
    yield _change("delta", plan.delta, lambda value: result(replace(plan, delta=value)))


def _change(knob: str, value: float, result: Callable[[float], float]) -> Change:
    half, twice = max(value // 2, 1) if isinstance(value, int) else value / 2, value * 2
    (at_half, first), (at_twice, second) = (
        _allowed(knob, result, half),
        _allowed(knob, result, twice),
    )
    return Change(knob, half, at_half, twice, at_twice, first + second)


def _allowed(
    knob: str, result: Callable[[float], float], value: float
) -> tuple[float | None, tuple[str, ...]]:
    """The result, or why there is none."""
    try:
        return result(value), ()
    except PrivacyError as refusal:
        return None, (f"{knob} {value:g}: {refusal}",)


def _with_total(plan: BudgetPlan, value: float) -> BudgetPlan:
    return replace(
        plan, total=int(value), drawn=int(value) if plan.sampling == "everyone" else plan.drawn
    )
