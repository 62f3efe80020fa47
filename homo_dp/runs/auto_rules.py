"""The rules of ``train.auto``: settings from public facts alone, found on generated tables
(benchmarks/auto_rules.py).

Everything goes by two figures. ``row_norm`` b is the length that an encoded row has if numbers are
spread evenly within their bounds: b^2 = numeric / 3 + categorical + 1. ``detail`` rho is how much
of one gradient is left of the noise: rows times mu of the whole target, over the root of how often
noise is added, for each weight of an output. No rule looks at rows, and none was fitted to the
tables of docs/results.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from homo_dp.config.mechanisms import capabilities_of

Settings = Mapping[str, Any]
LARGEST_SAMPLE = 4000  # rows of a network's step
SMALL_CLIP = 0.1  # below every gradient
LEAST_DETAIL = 2.0  # below it a second moment is mostly noise
LEAST_OF_IMAGES = 0.3  # few directions hold most of an image, and these stand out of much noise
COLUMN_SHARE = 0.06
SCALES_DETAIL = 3.0  # below it means and spreads of columns are mostly noise
# below it gradients of two classes are best heard alike: longer steps, and no momentum
MODEST_DETAIL = 10.0
MUCH_DETAIL = 150.0  # from here on more rounds cost no more than their messages
FEW_DETAIL = 20.0  # below it one round must do to mend scores: each is a gradient less
CALIBRATED_DETAIL = 200.0  # above it clip norms are so long that scores need no mending
CALIBRATED_KAPPA = 300.0  # below it noise is much of two numbers, too
# from here on classes that are nearly apart gain by more rounds, and no others lose
MOST_DETAIL = 1000.0
# without privacy: a weight is pulled to 0 as strongly as so many rows would move it
ROWS_OF_PENALTY = 3
# for each output: below it squares and roots of numbers are more noise than they tell
CURVES_DETAIL = 3.0
CURVES_ROWS = 50  # for each weight: with fewer, they are learnt by heart
# encoded columns: above it the moment costs more than it gives, in time and in noise
WIDEST_MOMENT = 1200

# What to expect of two classes by these rules, as benchmarks/auto_rules.py prints it (320 tables):
# up to this rho, the AUC lost against the same model without privacy in points (of ten tables one
# lost less, half of them, one lost more), and by how much half of the log losses rose in percent;
# for classes of 15 % and more of the rows, then of 2 to 5 %.
Lost = tuple[float, float, float, float]
EXPECTED: tuple[tuple[float, Lost, Lost], ...] = (
    (1.0, (15.0, 21.0, 28.0, 35.0), (15.0, 25.0, 35.0, 35.0)),
    (2.0, (9.9, 17.0, 24.0, 26.0), (21.0, 29.0, 42.0, 40.0)),
    (4.0, (8.1, 12.0, 20.0, 19.0), (22.0, 29.0, 38.0, 55.0)),
    (8.0, (4.9, 7.2, 16.0, 15.0), (14.0, 18.0, 27.0, 22.0)),
    (15.0, (1.5, 4.1, 6.7, 6.9), (13.0, 14.0, 17.0, 17.0)),
    (30.0, (0.7, 2.0, 2.6, 4.5), (5.7, 8.3, 18.0, 11.0)),
    (100.0, (0.1, 0.3, 1.3, 0.7), (0.9, 1.8, 6.0, 6.7)),
    (300.0, (0.0, 0.0, 0.2, 0.2), (0.0, 0.6, 2.5, 1.1)),
    (math.inf, (0.0, 0.0, 0.1, 0.0), (0.0, 0.1, 1.2, 0.8)),
)


# The same for images: up to this rho, the points of accuracy lost on training images of
# Fashion-MNIST (held back).
EXPECTED_OF_IMAGES = ((1.7, 10.0), (5.5, 4.8), (17.0, 2.2), (55.0, 0.7), (math.inf, 0.0))

# And for networks: up to this kappa, the least and the most points that an MLP lost on training
# images of Fashion-MNIST and MNIST, 28 x 28 pixels and averaged down to 7 x 7
# (benchmarks/networks.py --models mlp --only rule).
EXPECTED_OF_NETWORKS = (
    (380.0, 16.0, 35.0),
    (1250.0, 7.0, 16.0),
    (15_000.0, 1.0, 6.0),
    (38_000.0, 0.3, 3.6),
    (math.inf, 0.3, 2.3),
)


@dataclass(frozen=True)
class PublicFacts:
    """What is known of a run without its rows."""

    rows: int  # of all parties, declared, public or released with noise
    parties: int
    # parties that share the noise of a sum; None where each adds all of its own
    sharers: int | None
    numeric: int
    categorical: int
    width: int  # numbers of an encoded row, without places for values that are not declared
    outputs: int
    task: Literal["binary", "multiclass", "regression"]
    linear: bool
    mu: float | None  # of one Gaussian release that takes the whole target; None: no privacy
    bias: bool = True
    declared: bool = True  # whether every party's row count is known
    fixed_features: bool = False  # of images: rows are what a fixed front end makes of them
    # sum of 1 / L over columns of L levels: what their places have in common, squared
    even_levels: float = 0.0
    # several classes by numbers that all have the same bounds: pixels, readings of one kind
    alike: bool = False

    @property
    def row_norm(self) -> float:
        """b: the expected length of a row with its bias.

        >>> PublicFacts(100, 1, None, 3, 2, 9, 1, "binary", True, 1.0).row_norm
        2.0
        """
        return math.sqrt(self._row_square)

    @property
    def centred_norm(self) -> float:
        """The same of a row whose places of levels are taken around 1 / L.

        >>> PublicFacts(100, 1, None, 3, 4, 11, 1, "binary", True, 1.0, even_levels=2.0).centred_norm
        2.0
        """
        return math.sqrt(self._row_square - self.even_levels)

    @property
    def _row_square(self) -> float:
        return self.numeric / 3 + self.categorical + self.bias

    @property
    def kappa(self) -> float:
        """Rows times mu over the noise that comes together in a total, in units of one table's."""
        if self.mu is None:
            return math.inf
        times = self.parties if self.sharers is None else self.parties / self.sharers
        return self.rows * self.mu / math.sqrt(times)

    @property
    def detail(self) -> float:
        """rho: kappa for each weight of an output."""
        return self.kappa / (self.width + 1)

    @property
    def modest(self) -> bool:
        """Whether two classes of a table are learnt through noise that is as long as a gradient."""
        return self.task == "binary" and not self.fixed_features and self.detail < MODEST_DETAIL

    @property
    def weighting(self) -> str:
        """Parties count by their rows, where these are known."""
        return "rows" if self.declared else "uniform"

    @property
    def least_detail(self) -> float:
        """From which rho on a second moment is worth its noise."""
        return LEAST_OF_IMAGES if self.fixed_features else LEAST_DETAIL


@dataclass(frozen=True)
class Choice:
    """Settings by their keys, why, and what to expect."""

    settings: Settings
    why: tuple[str, ...]
    expected: str | None = None


@dataclass(frozen=True)
class Given:
    """What the user gave of the figures on which the length of a step depends."""

    rounds: int | None = None
    max_grad_norm: float | None = None


NOTHING = Given()


def choose(
    facts: PublicFacts, mechanism: str, solver: str = "auto", given: Given = NOTHING
) -> Choice:
    """The settings for a mechanism.

    Args:
        facts: what is public about the run.
        mechanism: the one that runs.
        solver: the one that is asked for, if any.
        given: figures that the user gave, around which the others are chosen.
    """
    record = capabilities_of(mechanism)
    if not record.private:
        return without_privacy(facts, solver)
    if not facts.linear:
        return network(facts, mechanism, given)
    if not record.one_sum or solver == "sgd":
        return full_batches(facts, mechanism, given)
    wide = facts.width > WIDEST_MOMENT
    if solver == "gradient" or (solver == "auto" and (facts.detail < facts.least_detail or wide)):
        return by_gradient(facts)
    return by_second_moment(facts)


def takes_curves(facts: PublicFacts) -> bool:
    """Whether classes are better told apart with squares and roots of the numbers, which ``facts``
    count already.

    Numbers that are alike (pixels) say what they say together: a curve of each is mostly noise.
    """
    enough = facts.detail >= CURVES_DETAIL * facts.outputs and facts.rows >= CURVES_ROWS * (
        facts.width + 1
    )
    return enough and not facts.alike


def by_second_moment(facts: PublicFacts) -> Choice:
    """Scales of the columns, one noisy second moment, then 16 or more gradients in coordinates in
    which rows are alike.

    Columns that are alike already (images, pixels of several classes) keep the one scale that they
    have.
    """
    rho = facts.detail
    regression = facts.task == "regression"
    scales = rho >= SCALES_DETAIL and not facts.alike and not facts.fixed_features
    clip = _clip_of(facts)
    calibrated = _calibration_of(facts) if scales else 0
    settings: dict[str, Any] = {
        "train.solver": "second_moment",
        "train.rounds": _rounds_of(facts) + calibrated,
        **({"train.calibration_rounds": calibrated} if calibrated else {}),
        "train.row_norm": facts.row_norm,
        "train.column_share": COLUMN_SHARE if scales else 0.0,
        "train.moment_share": 0.5 if regression else 0.14 if scales else 0.2,
        "privacy.max_grad_norm": 0.5 * clip if regression else clip * residual(facts),
        "train.learning_rate": 0.5 if regression else _rate_of(facts),
        "train.server_optimizer": "fedavg" if regression else momentum(_momentum_of(facts)),
        "train.averaging": {"kind": "tail", "tail": _tail_of(facts)},
        **FULL_BATCH,
    }
    why = (
        f"second moment first: {rho:.3g} rows times mu for each weight are enough for it (from "
        f"{facts.least_detail:g})"
        + (
            f", and for means and spreads of columns before it (from {SCALES_DETAIL:g})"
            if scales
            else ""
        ),
        (
            f"rows are clipped to {facts.row_norm:.3g}, gradients to {clip:.2g} of a typical row: "
            "less noise hurts less than fewer rows heard, the more so the fewer there are"
        ),
    )
    return Choice(settings, why, expected(facts))


def _clip_of(facts: PublicFacts) -> float:
    """Of a typical row. Images are seldom doubtful, so that few gradients are as long as a row."""
    if facts.fixed_features:
        return min(1.0, 0.25 * math.pow(facts.detail / 10, 0.3))
    if facts.modest:
        return 0.44 * math.pow(facts.detail / 3, 0.2) if facts.detail >= SCALES_DETAIL else 0.33
    if facts.task == "binary":
        return min(2.0, 0.38 * math.pow(facts.detail / 3, 0.26))
    return min(1.5, 0.35 * math.pow(max(1.0, facts.detail / 3), 0.3))


def _rounds_of(facts: PublicFacts) -> int:
    """Features of images are many and say little each: they take longer. So do rare classes, to
    the last percent.
    """
    if facts.task == "regression":
        return 4
    if facts.fixed_features:
        return int(min(96.0, max(32.0, 11 * math.sqrt(facts.detail))))
    if facts.task == "multiclass" or facts.detail <= MUCH_DETAIL:
        return 16
    return 60 if facts.detail > MOST_DETAIL else 36


def _calibration_of(facts: PublicFacts) -> int:
    """How many rounds mend the scores of two classes."""
    fits = facts.task == "binary" and facts.bias and facts.detail <= CALIBRATED_DETAIL
    return (
        (1 if facts.detail < FEW_DETAIL else 2) if fits and facts.kappa >= CALIBRATED_KAPPA else 0
    )


def _rate_of(facts: PublicFacts) -> float:
    """Short steps where noise is much of them: they end closer to zero, where a model knows how
    little it knows.
    """
    if facts.fixed_features:
        return min(2.5, max(1.2, 0.45 * math.pow(facts.detail, 0.35)))
    if facts.task == "multiclass":
        return 3.0 if facts.detail > 60 else 2.0
    if facts.modest:
        return 2.5 * max(1.0, math.pow(facts.detail / 3, 0.33))
    return min(4.0 if facts.detail > MOST_DETAIL else 3.0, math.pow(facts.detail / 3, 0.33))


def _momentum_of(facts: PublicFacts) -> float:
    """Probabilities of many classes are far from one half, where the loss is flatter: more
    momentum makes up for it.
    """
    if facts.fixed_features:
        return 0.85
    if facts.modest:
        return 0.0
    return 0.75 if facts.task == "multiclass" else 0.6


def _tail_of(facts: PublicFacts) -> float:
    """The share of models in the mean: with long steps or many of them, the last ones have heard
    enough gradients.
    """
    return 0.3 if facts.modest or facts.detail > MUCH_DETAIL or facts.fixed_features else 0.5


def by_gradient(facts: PublicFacts) -> Choice:
    """Gradients in the columns' own coordinates: few and small steps where noise is most of them.

    Then all of them count the same: no momentum, and no mean of models, which hears the last ones
    less.
    """
    rho, norm = facts.detail, facts.row_norm
    little = rho < LEAST_DETAIL
    part = (
        min(0.3, max(0.16, 0.23 * rho**0.35))
        if little
        else min(1.0, 0.35 * (rho / LEAST_DETAIL) ** 0.3)
    )
    step = 0.56 * max(0.4, rho) / part if little else min(3.0, rho / LEAST_DETAIL)
    settings = {
        "train.solver": "gradient",
        "train.rounds": 16 if little else 80,
        "train.row_norm": norm if little else 1.2 * norm,
        "privacy.max_grad_norm": part * facts.centred_norm * residual(facts),
        "train.learning_rate": (
            step
            / facts.centred_norm**2
            / {"binary": 1, "multiclass": 2, "regression": 4}[facts.task]
        ),
        "train.server_optimizer": momentum(0.0 if little else 0.9),
        "train.averaging": {"kind": "none"} if little else {"kind": "tail", "tail": 0.5},
        **FULL_BATCH,
    }
    reason = (
        "too little for a second moment"
        if little
        else "the columns are too many for a second moment"
    )
    why = (
        (
            f"gradients of rows clipped to {settings['train.row_norm']:.3g}: {rho:.3g} rows times "
            f"mu for each weight, {reason}"
        ),
    )
    return Choice(settings, why, expected(facts))


def full_batches(facts: PublicFacts, mechanism: str, given: Given = NOTHING) -> Choice:
    """Steps on all rows with momentum at the aggregator, for mechanisms that clip gradients."""
    kappa, norm = facts.kappa, facts.row_norm
    much = kappa >= 3000
    rounds, clip = (160, norm) if much else (80, 0.5 * norm)
    rounds, clip = given.rounds or rounds, given.max_grad_norm or clip
    step = (
        min(8.0, 0.12 * kappa / rounds)
        / {"binary": 1, "multiclass": 2, "regression": 4}[facts.task]
    )
    settings = {
        "train.rounds": rounds,
        "privacy.max_grad_norm": clip,
        "train.learning_rate": step / (norm * clip),
        "train.server_optimizer": momentum(0.9),
        "train.weighting": facts.weighting,
        **FULL_BATCH,
        **({"train.local_steps": 1} if capabilities_of(mechanism).local_steps else {}),
    }
    why = (f"{rounds} rounds of gradient steps: rows times mu over noise is {kappa:.3g}",)
    return Choice(settings, why, expected(facts))


def without_privacy(facts: PublicFacts, solver: str = "auto") -> Choice:
    """A second moment without noise where rows are enough for it, else full batches with momentum.

    Steps are in units of the curvature that the loss has at most, so that nothing diverges: those
    by the moment lower the loss from any weights, on separable tables too.
    """
    if not facts.linear:
        return Choice(
            {"train.rounds": 40, "train.batch_size": 64, "train.learning_rate": 0.1},
            ("no privacy",),
        )
    least = 1 / {"binary": 1 / 4, "multiclass": 1 / 2, "regression": 2}[facts.task]
    wide = facts.fixed_features or facts.width > WIDEST_MOMENT
    if solver == "second_moment" or (solver == "auto" and not wide):
        squared = facts.task == "regression"
        settings = {
            "train.solver": "second_moment",
            "train.rounds": 4 if squared else 100,
            "train.column_share": 0.0 if facts.alike else COLUMN_SHARE,
            # the step of squared errors is exact
            "train.learning_rate": least if squared else 1.5 * least,
            # rows that nobody declared count little
            "train.weight_decay": min(0.01, ROWS_OF_PENALTY / facts.rows),
            "train.weighting": facts.weighting,
            **FULL_BATCH,
        }
        return Choice(
            settings,
            ("a second moment without noise first; steps that lower the loss from any weights",),
        )
    settings = {
        "train.rounds": 150,
        "train.local_steps": 1,
        "train.learning_rate": 0.75 * least / facts.row_norm**2,
        "train.server_optimizer": momentum(0.9),
        "train.weighting": facts.weighting,
        **FULL_BATCH,
    }
    return Choice(settings, ("steps on all rows; the rate is from the smoothness of the loss",))


def network(facts: PublicFacts, mechanism: str, given: Given = NOTHING) -> Choice:
    """Large samples, a path as long as the noise allows, momentum, and the mean of the last models.

    With steps of s clip norms, noise moves a weight by about s * rounds / kappa in all, however
    many rounds there are, and an output by as much times the length of a row. So that product is
    settled, and rounds only make steps shorter. The clip norm is a part of a row's length. One far
    below every gradient (automatic clipping, Bu et al. 2022) reaches the same accuracy, but lets
    sure rows count as much as doubtful ones, which doubles the log loss. Errors of a number are a
    small part of its range: there the clip norm is below every gradient, and steps are short. Found
    on training images of Fashion-MNIST and MNIST of several sizes (benchmarks/networks.py).
    """
    kappa, norm = min(facts.kappa, 1e6), facts.row_norm
    rounds = given.rounds or int(min(400.0, max(30.0, 3 * math.sqrt(kappa))))
    if facts.task == "regression":
        clip, step = SMALL_CLIP, min(0.3, max(0.1, 0.3 * math.sqrt(kappa / 700)))
    else:
        clip = norm * min(0.6, 0.2 * math.pow(kappa / 600, 0.25))
        step = min(2.0, 0.256 * math.pow(kappa, 0.96) / math.pow(norm, 0.75) / rounds)
    clip = given.max_grad_norm or clip
    settings = {
        "train.rounds": rounds,
        "train.sample_rate": min(1.0, LARGEST_SAMPLE / facts.rows),
        "train.learning_rate": step / clip,
        "privacy.max_grad_norm": clip,
        "train.server_optimizer": momentum(0.8),
        "train.averaging": {"kind": "tail", "tail": 0.3},
        **(
            {"train.local_steps": 1, "train.weighting": facts.weighting}
            if capabilities_of(mechanism).local_steps
            else {}
        ),
    }
    why = (
        (
            f"{rounds} steps of samples as large as time allows: rows times mu over noise is "
            f"{kappa:.3g}"
        ),
        (
            f"clip norm {clip:.3g}, of rows that are about {norm:.3g} long; steps of {step:.2g} "
            "clip norms"
        ),
    )
    return Choice(settings, why, expected(facts))


FULL_BATCH: Settings = {"train.sample_rate": 1.0}


def momentum(value: float) -> Settings:
    """Server momentum: post-processing, so it is free."""
    return {"name": "fedavgm", "momentum": value}


def residual(facts: PublicFacts) -> float:
    """How much longer the residual of several classes is than that of two."""
    return math.sqrt(2.0) if facts.task == "multiclass" else 1.0


def expected(facts: PublicFacts) -> str | None:
    """What generated tables of this kind, or images, lost."""
    if facts.task == "regression" or not (facts.linear or facts.alike):
        return None
    if not facts.linear:
        _, least, most = next(row for row in EXPECTED_OF_NETWORKS if facts.kappa <= row[0])
        return (
            f"on images of clothes and of digits an MLP was {least:g} to {most:g} points of "
            "accuracy below itself without privacy"
        )
    if facts.fixed_features:
        lost = next(points for rho, points in EXPECTED_OF_IMAGES if facts.detail <= rho)
        return (
            f"on images of clothes accuracy was {lost:.2g} points below the same model without "
            "privacy"
        )
    _, usual, rare = next(row for row in EXPECTED if facts.detail <= row[0])
    return (
        f"generated tables of this kind ({facts.detail:.3g} rows times mu for each weight) lost "
        f"{_lost(usual)} against the same model without privacy; with rare classes (2 to 5 % of "
        f"the rows) {_lost(rare)}"
    )


def _lost(figures: Lost) -> str:
    least, middle, most, loss = figures
    return (
        f"{middle:g} points of AUC in the middle (eight in ten {least:g} to {most:g}) and {loss:g} "
        "% of log loss"
    )
