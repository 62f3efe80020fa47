"""Attacks on DP-SGD: one record whose gradient is as long as the clip allows and points its own
way.

The rows are made up: no table is read but for its shape. The canary has one column to itself, so
that no other row has a gradient there, and a column that keeps the model wrong about it, so that
its gradient never fades. The aggregator sends the same weights in every round, as it may: the
guarantee holds whatever it sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError, InputError
from homo_dp.data.rows import Table
from homo_dp.evidence.attack import Attack, repeated_losses, sampled_losses
from homo_dp.evidence.tradeoff import Profile, claim_of
from homo_dp.federation.mechanisms.base import Mechanism, PartyFacts, PartyPlan, Update, Weights
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.sessions.build import (
    build_fit,
    build_mechanism,
    federation_facts,
    noise_source,
)
from homo_dp.models.registry import BuiltModel, build_model
from homo_dp.privacy.accounting.events import compose
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.noise.source import NoiseSource

Floats = NDArray[np.float64]
OTHERS = 8  # made-up rows beside the canary
# of the canary's own column, over the clip norm: all of its gradient lies there but a millionth
LENGTH = 1e3
WRONG = -1e6  # logit that keeps the model certain of the other class
MECHANISM = Callable[[], Mechanism]


@dataclass(frozen=True)
class Recipe:
    """The public facts that an audit takes from a configuration."""

    config: Config
    input_shape: tuple[int, ...]
    classes: tuple[Any, ...] | None
    rows: Mapping[str, int]
    party: str

    @property
    def inputs(self) -> int:
        return int(np.prod(self.input_shape))


def recipe_of(config: Config) -> Recipe:
    """Shape, classes and row counts of a recipe's data; the first party is the one that is
    attacked.
    """
    from homo_dp.data.parties import load_federation

    federation = load_federation(config)
    counts = {
        name: config.data.rows.get(name, len(data.train))
        for name, data in federation.parties.items()
    }
    classes = None if federation.classes is None else tuple(federation.classes)
    return Recipe(config, tuple(federation.input_shape), classes, counts, next(iter(counts)))


class PartyOfAttack:
    """One party of the recipe with made-up rows, with or without the canary."""

    def __init__(
        self, recipe: Recipe, name: str, mechanism: Mechanism, rows: Callable[[float], Table]
    ) -> None:
        self.facts: PartyFacts = mechanism.facts.parties[name]
        self.mechanism = mechanism
        self.plan: PartyPlan = mechanism.run.planned(self.facts)
        model = _model(recipe)
        self.names = sorted(model.module.state_dict())
        weights = canary_weights(model)
        self.start = weights | mechanism.broadcast_tensors(self.plan.all_rounds, weights)
        self.fit: LocalFit = build_fit(recipe.config, model, rows(self.plan.clip_norm), self.facts)

    def round(self, number: int) -> Weights:
        """One round of real local training from the weights of the attack; what leaves."""
        return self.fit.fit(self.mechanism, self.start, number, {}).tensors


class CanaryGradient(Attack):
    """White box: the noisy gradient of every step is seen, which is what the accountant assumes
    of everybody.
    """

    name = "canary_gradient"
    scores_are_losses = True

    def __init__(self, recipe: Recipe, mechanism: MECHANISM | None = None) -> None:
        self.recipe, noise = recipe, noise_source(recipe.config)
        self.observer = "aggregator"
        self._make = mechanism or (lambda: _mechanism(recipe, noise))
        self._parties: dict[bool, PartyOfAttack] = {}
        plan = self.attacked(False).plan
        self.plan, self.facts = plan, self.attacked(False).facts
        events = [plan.events_of(number)["aggregator"] for number in range(1, plan.all_rounds + 1)]
        self.claim = claim_of(compose(*events), plan.delta)

    def scores(self, present: bool, runs: int) -> Floats:
        return self._losses(self.values(self.attacked(present), runs))

    def values(self, party: PartyOfAttack, runs: int) -> Floats:
        """Along the canary, in clip norms: one noisy value for each step of each run."""
        facts, seen = self.facts, list[float]()
        direction = party.fit.model.get_parameter(first_weight(party.fit.model))

        def look(_: LocalFit) -> None:
            gradient = direction.grad
            if gradient is None:
                raise PrivacyError(
                    "a step left no gradient to look at; audit a model that is trained by steps"
                )
            seen.append(along_canary(gradient))

        party.mechanism.after_batch = look  # type: ignore[method-assign,assignment]
        for number in range(1, runs * facts.rounds + 1):
            party.round(number)
        values: Floats = np.array(seen).reshape(runs, -1) * (
            facts.rows * facts.sample_rate / self.plan.clip_norm
        )
        return values

    def _losses(self, values: Floats) -> Floats:
        losses = sampled_losses(values, self.plan.noise_multiplier, self.facts.sample_rate)
        scores: Floats = losses.sum(axis=1)
        return scores

    def attacked(self, present: bool) -> PartyOfAttack:
        """The party that holds the canary, or does not."""
        if present not in self._parties:
            self._parties[present] = self.party(self.recipe.party, canary=present)
        return self._parties[present]

    def party(self, name: str, *, canary: bool = False) -> PartyOfAttack:
        """A party of the recipe with made-up rows."""
        return PartyOfAttack(
            self.recipe, name, self._make(), lambda clip_norm: self.rows(clip_norm, canary=canary)
        )

    def moved(self, weights: Weights, party: PartyOfAttack) -> float:
        """How far the weights went along the canary, in clip norms of a step's sum."""
        name, facts = first_weight(party.fit.model), self.facts
        moved = along_canary(weights[name] - party.start[name])
        return (
            -moved
            * facts.rows
            * facts.sample_rate
            / (self.plan.clip_norm * self.recipe.config.train.learning_rate)
        )

    @property
    def masked(self) -> bool:
        """Whether what is seen is a total of several parties."""
        return self.attacked(False).mechanism.masked_sum is not None

    def rows(self, clip_norm: float, *, canary: bool) -> Table:
        """The rows of a party, with or without the canary."""
        return made_up_rows(self.recipe, clip_norm, canary=canary)


class CanaryUpdates(CanaryGradient):
    """What the aggregator is really sent: the weights after every round, with the steps of a
    round added up.
    """

    name = "canary_updates"

    def __init__(self, recipe: Recipe, mechanism: MECHANISM | None = None) -> None:
        super().__init__(recipe, mechanism)
        train = recipe.config.train
        if train.optimizer != "sgd" or train.momentum or train.weight_decay or train.proximal_mu:
            raise ConfigError(
                "train.optimizer: this attack reads plain SGD only; use --attack canary_gradient"
            )
        self.scores_are_losses = self.facts.steps_per_round == 1

    def scores(self, present: bool, runs: int) -> Floats:
        party, facts = self.attacked(present), self.facts
        sums = [self._seen(party, number) for number in range(1, runs * facts.rounds + 1)]
        losses = repeated_losses(
            np.array(sums), self._noise(), facts.sample_rate, facts.steps_per_round
        )
        scores: Floats = losses.reshape(runs, -1).sum(axis=1)
        return scores

    def _noise(self) -> float:
        return self.plan.noise_multiplier

    def _seen(self, party: PartyOfAttack, number: int) -> float:
        return self.moved(party.round(number), party)


class CanaryModel(CanaryUpdates):
    """What a reader of the published models sees: the mean over all parties, round by round."""

    name = "canary_model"

    def __init__(self, recipe: Recipe, mechanism: MECHANISM | None = None) -> None:
        super().__init__(recipe, mechanism)
        self.observer = "model_reader"
        self.scores_are_losses = False
        self.claim = claim_of(
            compose(*[self.plan.events["model_reader"]] * self.plan.rounds), self.plan.delta
        )
        others = [name for name in recipe.rows if name != recipe.party]
        self._others = [self.party(name) for name in others]
        by_rows = recipe.config.train.weighting == "rows"
        self._weights = {
            name: float(count) if by_rows else 1.0 for name, count in recipe.rows.items()
        }

    def law(self) -> Profile | None:
        return self.claim.with_noise(self._noise() / self.plan.noise_multiplier)

    def _noise(self) -> float:
        """The noise of all parties on the mean, in units of this party's share of it."""
        parts = [
            self._weights[party.facts.name]
            / self._weights[self.recipe.party]
            * (self.facts.rows * self.facts.sample_rate)
            / (party.facts.rows * party.facts.sample_rate)
            * party.plan.noise_multiplier
            * np.sqrt(party.facts.steps_per_round / self.facts.steps_per_round)
            for party in self._others
        ]
        return float(np.sqrt(self.plan.noise_multiplier**2 + sum(part**2 for part in parts)))

    def _seen(self, party: PartyOfAttack, number: int) -> float:
        updates = [
            Update(each.facts.name, each.round(number), self._weights[each.facts.name])
            for each in (party, *self._others)
        ]
        published = party.mechanism.on_receive(updates, party.start, number).weights
        share = self._weights[self.recipe.party] / sum(self._weights.values())
        return self.moved(published, party) / share


def made_up_rows(recipe: Recipe, clip_norm: float, *, canary: bool) -> Table:
    """Rows that have nothing in the canary's column, and the canary as the last one."""
    generator = torch.Generator().manual_seed(0)
    rows = OTHERS + canary
    features = torch.rand(rows, recipe.inputs, generator=generator)
    features[:, 0] = 0.0
    if recipe.inputs > 1:
        features[:, 1] = 0.0
    labels = _labels(recipe, rows)
    if canary:
        features[-1] = 0.0
        features[-1, 0] = LENGTH * max(1.0, clip_norm)
        if recipe.inputs > 1:
            features[-1, 1] = 1.0
        labels[-1] = 1
    return Table(features.reshape(rows, *recipe.input_shape), labels)


def _labels(recipe: Recipe, rows: int) -> Tensor:
    from homo_dp.models.task import task_for

    task = task_for(recipe.classes)
    if task.kind == "regression":
        raise ConfigError(
            "data.classes: this attack needs classes; audit logistic regression or a network of "
            "classes"
        )
    return torch.zeros(rows, dtype=torch.int64 if task.outputs > 1 else torch.float32)


def canary_weights(model: BuiltModel) -> Weights:
    """First weights at which the model is certain that the canary is of the other class."""
    weights = {name: tensor.detach().clone() for name, tensor in model.module.state_dict().items()}
    first = weights[first_weight(model.module)]
    first.zero_()
    if first.shape[1] > 1:
        first[0, 1] = WRONG if len(first) == 1 else -WRONG
    else:
        bias = first_weight(model.module).removesuffix("weight") + "bias"
        if bias not in weights:
            raise ConfigError(
                "model.bias=false: with one column there is nothing to hold the canary's gradient "
                "with"
            )
        weights[bias][0] = WRONG if len(first) == 1 else -WRONG
    return weights


def first_weight(module: nn.Module) -> str:
    """The name of the weights of the only linear layer."""
    names = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    weighted = [
        name for name, layer in module.named_modules() if list(layer.parameters(recurse=False))
    ]
    if len(names) != 1 or weighted != names:
        raise InputError(
            "model: many runs are for a model of one linear layer; use --canaries for a network"
        )
    return f"{names[0]}.weight" if names[0] else "weight"


def along_canary(gradient: Tensor) -> float:
    """Of a gradient of the linear layer, the length along the canary's: minus its column (of
    classes: 0 minus 1).
    """
    column = gradient[:, 0].detach()
    return float(-column[0]) if len(column) == 1 else float((column[0] - column[1]) / 2**0.5)


def _model(recipe: Recipe) -> BuiltModel:
    config = recipe.config
    return build_model(
        config.model,
        recipe.input_shape,
        recipe.classes,
        config.train.seed,
        config.data.target_bounds,
        (),
    )


def _mechanism(recipe: Recipe, noise: NoiseSource) -> Mechanism:
    model = _model(recipe)
    parameters = sum(p.numel() for p in model.module.parameters())
    facts = federation_facts(recipe.config, recipe.rows, parameters, model.task.outputs)
    return build_mechanism(recipe.config, facts, noise)
