"""The `train` section: rounds, local steps, optimisers and learning-rate schedules."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, model_validator

from homo_dp.config.base import (
    Conflict,
    Count,
    CountOrZero,
    FilePath,
    Flag,
    Fraction,
    Positive,
    Probability,
    Rate,
    Section,
    Seed,
    StepSize,
    Strength,
    key,
    section,
    shorthand,
)


def _kind_from_keys(given: Any, section_key: str, named: str, keys: Mapping[str, str]) -> Any:
    """A section with its kind filled in where only keys of that kind are set: without it they
    would be ignored.

    Args:
        given: the section as it is written.
        section_key: its dotted key, for errors.
        named: the key that names the kind.
        keys: the kind that each key belongs to.

    Raises:
        Conflict: the keys belong to several kinds.
    """
    if not isinstance(given, dict) or given.get(named) is not None:
        return given
    kinds = {kind: key for key, kind in keys.items() if given.get(key) is not None}
    if len(kinds) > 1:
        listed = " and ".join(f"{key} is of {named}={kind}" for kind, key in kinds.items())
        raise Conflict(f"{section_key}: {listed}; give {section_key}.{named} and its keys alone")
    return {**given, named: next(iter(kinds))} if kinds else given


class ScheduleConfig(Section):
    """How the learning rate moves over all local steps of the run."""

    kind: Literal["constant", "optimal", "cosine", "step", "inverse_sqrt"] = key(
        "constant",
        "`cosine` ends at 0; `step` divides by 10 after half of the run; `optimal` is "
        "scikit-learn's and PrimiHub's 1 / (alpha (t0 + t)), where alpha is weight_decay, and "
        "ignores learning_rate.",
    )

    def rate(self, learning_rate: float, step: int, steps: int, alpha: float = 0.0) -> float:
        """Learning rate of local step `step` (from 0) out of `steps`; `alpha` is the weight decay.

        >>> round(ScheduleConfig(kind="optimal").rate(1.0, 0, 100, alpha=1e-4), 6)
        10.0
        >>> ScheduleConfig(kind="cosine").rate(2.0, 50, 100)
        1.0
        """
        if self.kind == "optimal":
            # Bottou's heuristic: a typical weight is sqrt(1 / sqrt(alpha)), and the first rate
            # equals it, because the loss derivative that divides it is at most 1 (scikit-learn
            # _sgd_fast, PrimiHub homo_lr).
            return 1.0 / (alpha * (1.0 / (math.sqrt(1.0 / math.sqrt(alpha)) * alpha) + step))
        done = step / max(steps, 1)
        if self.kind == "cosine":
            return learning_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        if self.kind == "step":
            return learning_rate * 0.1 ** math.floor(done / 0.5 + 1e-9)
        return learning_rate / math.sqrt(step + 1) if self.kind == "inverse_sqrt" else learning_rate


class ServerOptimizerConfig(Section):
    """What the aggregator does with the mean update; free under DP, since it only
    post-processes.
    """

    name: Literal["fedavg", "fedavgm", "fedadam"] = key("fedavg", "FedAvg, with momentum, or Adam.")
    learning_rate: StepSize | None = key(
        None, "Step on the mean update; null: 1, or 0.1 for fedadam."
    )
    momentum: Fraction = key(0.9, "Of fedavgm.")
    beta1: Fraction = key(0.9, "Of fedadam.")
    beta2: Fraction = key(0.99, "Of fedadam.")
    tau: Positive = key(1e-3, "Of fedadam: keeps the division from zero.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        adam = dict.fromkeys(("beta1", "beta2", "tau"), "fedadam")
        keys = {"momentum": "fedavgm", **adam}
        return _kind_from_keys(given, "train.server_optimizer", "name", keys)

    @property
    def rate(self) -> float:
        """The learning rate with its default filled in."""
        return (
            self.learning_rate
            if self.learning_rate is not None
            else (0.1 if self.name == "fedadam" else 1.0)
        )


class AveragingConfig(Section):
    """Mean of the global weights over rounds, used for the final model; free under DP."""

    kind: Literal["none", "tail", "ema"] = key(
        "none", "Last weights, mean of the last rounds, or exponential mean."
    )
    tail: Rate = key(0.5, "Share of the rounds that `tail` takes, from the end.")
    decay: Probability = key(0.9, "Weight of the past in `ema`.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        keys = {"tail": "tail", "decay": "ema"}
        return _kind_from_keys(given, "train.averaging", "kind", keys)


class EarlyStoppingConfig(Section):
    """When a run ends before its last round: by figures that were released with noise or are of
    public rows.
    """

    metric: (
        Literal["acc", "auc", "ks", "precision", "recall", "loss", "r2", "mse", "mae"] | None
    ) = key(
        None,
        "The figure; null: acc, r2 or loss, the first that there is. Also what `train.keep: best` "
        "goes by.",
    )
    patience: Count | None = key(
        3, "Stop after so many figures that are no better than one before; null: never."
    )
    min_delta: Strength = key(0.0, "By how much more than this a figure has to be better.")


class TrainConfig(Section):
    """How the model is trained."""

    auto: Flag = key(
        True,
        "Fill what is not set by rules from public facts (docs/auto.md); what is set stays. "
        "False: what is not set has the default of this table.",
    )
    solver: Literal["auto", "sgd", "gradient", "second_moment"] = key(
        "auto",
        "How dp_fedsgd fits a linear model: by its gradient, or in coordinates that one private "
        "second moment gives (also without privacy); `sgd` is for any model, and `auto` without "
        "train.auto is `sgd`.",
    )
    row_norm: Positive | None = key(
        None,
        "Rows are clipped to this norm (solver gradient), and for the moment. Null: by the "
        "columns.",
    )
    moment_share: Probability = key(
        0.25, "Part of the privacy that solver second_moment spends on its moment."
    )
    column_share: Fraction = key(
        0.0,
        "Part of the privacy that solver second_moment spends on means and spreads of columns "
        "first; 0: not asked. Without privacy all above 0 means that weight_decay goes by these "
        "spreads.",
    )
    column_passes: Annotated[int, Field(ge=1, le=5)] = key(
        1,
        "Rounds among which column_share is divided: each looks closer at columns that fill little "
        "of their bounds.",
    )
    calibration_rounds: Annotated[int, Field(ge=0, le=10)] = key(
        0,
        "The last so many of the rounds fit how sure a model of two classes is and its odds, no "
        "more (solver second_moment with column_share).",
    )
    rounds: Count = key(20, "Rounds of the federation.")
    local_epochs: Positive | None = key(
        None, "Passes of a party over its rows each round: ceil(epochs / q) steps. Null: 1."
    )
    local_steps: Count | None = key(None, "Steps of a party each round, instead of local_epochs.")
    batch_size: Count | None = key(None, "Expected batch of a Poisson sample. Null: 50.")
    sample_rate: Rate | None = key(None, "Share of the rows in a batch, instead of batch_size.")
    physical_batch_size: Count | None = key(
        None, "Rows in memory at once; changes no result and no epsilon."
    )
    learning_rate: StepSize = key(2.0, "Of the local optimiser.")
    schedule: Annotated[ScheduleConfig, BeforeValidator(shorthand("kind"))] = section(
        ScheduleConfig, "A word is short for its kind."
    )
    optimizer: Literal["sgd", "adam"] = key("sgd", "Local optimiser.")
    momentum: Fraction = key(0.0, "Of sgd.")
    weight_decay: Strength = key(0.0, "L2 penalty, added after clipping and noise.")
    grad_clip: Positive | None = key(
        None,
        "Norm to which the gradient of a batch is cut (FederatedScope's `grad.grad_clip`), for "
        "training without privacy and NbAFL; gives no privacy.",
    )
    proximal_mu: Strength = key(
        0.0, "FedProx pull to the global weights, added after clipping and noise."
    )
    server_optimizer: Annotated[ServerOptimizerConfig, BeforeValidator(shorthand("name"))] = (
        section(ServerOptimizerConfig, "A word is short for its name.")
    )
    weighting: Literal["uniform", "rows", "noise"] = key(
        "uniform",
        "Parties count the same, by declared rows, or by the inverse variance of their noise.",
    )
    averaging: Annotated[AveragingConfig, BeforeValidator(shorthand("kind"))] = section(
        AveragingConfig, "A word is short for its kind."
    )
    seed: Seed = key(0, "Of initial weights and partitions; never of noise or sampling.")
    evaluate_every: CountOrZero = key(
        1,
        "Score the test rows after every so many rounds, and after the last; 0: after the last "
        "only.",
    )
    early_stopping: Annotated[EarlyStoppingConfig | None, BeforeValidator(shorthand("metric"))] = (
        key(
            None,
            "Stop when released metrics (`metrics.release: noised` with `metrics.every`) or public "
            "ones (`data.public_test`) get no better, `{metric, patience, min_delta}`; a word is "
            "short for its metric.",
        )
    )
    keep: Literal["last", "best"] = key(
        "last",
        "Which model is published: the last, or the best one by released or public metrics.",
    )
    init_from: FilePath | None = key(None, "A saved model to continue.")
    device: Literal["auto", "cpu", "cuda"] = key("auto", "`auto`, `cpu` or `cuda`.")
    threads: Literal["auto"] | Count = key(
        "auto", "Threads of torch in this process; `auto`: OMP_NUM_THREADS if it is set, else 1."
    )

    def evaluates(self, round_number: int) -> bool:
        """Whether test rows are scored after this round.

        >>> [number for number in range(1, 8) if TrainConfig(rounds=7, evaluate_every=3).evaluates(number)]
        [3, 6, 7]
        """
        if round_number >= self.rounds or self.evaluate_every == 0:
            return round_number >= self.rounds
        return round_number % self.evaluate_every == 0

    @property
    def own_steps(self) -> tuple[str, ...]:
        """The keys by which parties are to take steps of their own within a round.

        >>> TrainConfig(local_epochs=1, momentum=0.5).own_steps, TrainConfig(local_steps=1).own_steps
        (('local_epochs', 'momentum'), ())
        """
        asks = {
            "local_steps": (self.local_steps or 1) != 1,
            "local_epochs": "local_epochs" in self.model_fields_set,
            "optimizer": self.optimizer != "sgd",
            "momentum": self.momentum > 0,
            "proximal_mu": self.proximal_mu > 0,
        }
        return tuple(name for name, asked in asks.items() if asked)

    @property
    def calibration_problem(self) -> str | None:
        """Why rounds that calibrate would move nothing: without columns nobody knows where
        scores lie.
        """
        if not self.calibration_rounds or (self.solver == "second_moment" and self.column_share):
            return None
        return (
            f"train.calibration_rounds={self.calibration_rounds}: needs train.solver: "
            "second_moment and train.column_share above 0, which tell where scores lie; leave "
            "it out"
        )

    @model_validator(mode="wrap")
    @classmethod
    def _fill(cls, given: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(given, dict):
            return check(given)
        filled = dict(given)
        if filled.get("local_epochs") is None and filled.get("local_steps") is None:
            filled["local_epochs"] = 1.0
        if filled.get("batch_size") is None and filled.get("sample_rate") is None:
            filled["batch_size"] = 50
        found = check(filled)
        # train.auto fills only what the user did not set. What is filled in here does not count as
        # set, nor does null.
        found.model_fields_set.intersection_update(
            name for name, value in given.items() if value is not None
        )
        return found

    @model_validator(mode="after")
    def _check(self) -> Self:
        for one, other in (("local_epochs", "local_steps"), ("batch_size", "sample_rate")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise Conflict(
                    f"train.{one}, train.{other}: one follows from the other; leave one of them out"
                )
        if self.schedule.kind == "optimal" and not self.weight_decay:
            raise Conflict(
                "train.schedule=optimal: needs a regularisation to start from; give "
                "train.weight_decay"
            )
        if self.moment_share + self.column_share >= 1:
            raise Conflict(
                f"train.column_share={self.column_share:g}, "
                f"train.moment_share={self.moment_share:g}: must be below 1 together; the rounds "
                "take what is left"
            )
        # may fill in what is needed
        by_rule = self.auto and self.solver in ("auto", "second_moment")
        if self.calibration_problem is not None and not by_rule:
            raise Conflict(self.calibration_problem)
        if self.calibration_rounds >= self.rounds:
            raise Conflict(
                f"train.calibration_rounds={self.calibration_rounds}: must be below "
                f"train.rounds={self.rounds}, of which they are the last"
            )
        if self.momentum == 1:
            raise Conflict("train.momentum=1: must be below 1")
        if self.momentum and self.optimizer != "sgd":
            raise Conflict(
                f"train.momentum={self.momentum:g}: belongs to train.optimizer: sgd; leave it out"
            )
        return self
