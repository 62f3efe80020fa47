"""One run with many canaries: each has inputs of its own and is in or out by its own fair coin.

For networks. The recipe's model is widened until every canary has a place to itself: a column of a
table, or one cell of a larger image. Its gradient is then looked for in those columns of the first
linear layer that no other canary reaches, in the direction that back-propagation gives at the
weights of each step, which the observer knows. The aggregator chooses the weights of every round,
as it may: in convolutions such that a pixel stays where it is, and behind the linear layer such
that its gradient is not zero.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from homo_dp.core.errors import InputError
from homo_dp.data.rows import Table
from homo_dp.evidence.attack import sampled_losses
from homo_dp.evidence.record_attacks import Recipe
from homo_dp.evidence.tradeoff import Claim, claim_of
from homo_dp.federation.mechanisms.base import Weights
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.sessions.build import (
    build_fit,
    build_mechanism,
    federation_facts,
    noise_source,
)
from homo_dp.models.registry import BuiltModel, build_model
from homo_dp.privacy.accounting.events import compose

Floats = NDArray[np.float64]
NAME = "many_canaries"
LENGTH = 1e3
BRIGHT = 4.0  # before an activation, at the canary's own pixels, where it is 0 everywhere else
AT_ONCE = 64  # canaries whose inner layers are in memory


@dataclass(frozen=True)
class OneRun:
    """The scores of one run's canaries, and which of them were in."""

    scores: Floats
    present: NDArray[np.bool_]
    claim: Claim


@dataclass(frozen=True)
class Canaries:
    """Rows that do not meet in ``layer``: each has ``columns`` of its own there, at the weights
    ``start``.
    """

    model: BuiltModel
    features: Tensor
    layer: nn.Linear
    columns: Tensor
    start: Weights


def many_canaries(recipe: Recipe, canaries: int) -> OneRun:
    """Train the recipe's model once, widened to a place for each canary, on those whose coin
    fell heads.
    """
    config, rows = recipe.config, {recipe.party: max(recipe.rows[recipe.party], canaries)}
    if recipe.classes is None:
        raise InputError("data.classes: canaries need classes; audit a model of classes")
    made = (_in_pixels if config.model.name == "cnn" else _in_columns)(recipe, canaries)
    model, features = made.model, made.features
    parameters = sum(p.numel() for p in model.module.parameters())
    mechanism = build_mechanism(
        config, federation_facts(config, rows, parameters), noise_source(config)
    )
    facts = mechanism.facts.parties[recipe.party]
    plan = mechanism.plan(facts)
    features *= max(1.0, plan.clip_norm)
    generator = torch.Generator().manual_seed(0)
    high = 2 if model.task.outputs == 1 else model.task.outputs
    labels = torch.randint(0, high, (canaries,), generator=generator)
    labels = labels.to(torch.float32 if model.task.outputs == 1 else torch.int64)
    present = np.array([secrets.randbelow(2) == 1 for _ in range(canaries)])
    kept = torch.from_numpy(np.flatnonzero(present))
    fit = build_fit(config, model, Table(features[kept], labels[kept]), facts)
    scores = np.zeros(canaries)
    scale, unit = facts.rows * facts.sample_rate, plan.clip_norm
    expected = _Expected(torch.zeros(0), torch.zeros(0), torch.zeros(0))

    def look(_: LocalFit) -> None:
        nonlocal scores, expected
        gradient = made.layer.weight.grad
        if gradient is None:
            raise InputError("a step left no gradient to look at")
        along = expected.along(gradient.detach(), made.columns) * (scale / unit)
        shift = (expected.lengths / unit).double().numpy()
        losses = sampled_losses(
            along.double().numpy(), plan.noise_multiplier, facts.sample_rate, shift
        )
        scores += np.where(shift > 1e-6, losses, 0.0)
        expected = _expected(fit, made, labels, plan.clip_norm)

    mechanism.after_batch = look  # type: ignore[method-assign,assignment]
    for number in range(1, facts.rounds + 1):
        fit.load(made.start)
        expected = _expected(fit, made, labels, plan.clip_norm)
        fit.fit(mechanism, made.start, number, {})
    claim = claim_of(compose(*[plan.events["aggregator"]] * plan.rounds), plan.delta)
    return OneRun(scores, present, claim)


def _in_columns(recipe: Recipe, canaries: int) -> Canaries:
    """A table of one column for each canary, whose first layer is linear and starts at zero:
    nothing saturates.
    """
    config = recipe.config
    model = build_model(config.model, (canaries,), recipe.classes, config.train.seed)
    layers = [layer for layer in model.module.modules() if list(layer.parameters(recurse=False))]
    if not layers or not isinstance(layers[0], nn.Linear):
        raise InputError(
            f"model.name={config.model.name}: its first layer is not linear; no canaries are known "
            "for it"
        )
    _steer(model.module, layers[0])
    columns = torch.arange(canaries).unsqueeze(1)
    return Canaries(model, torch.eye(canaries) * LENGTH, layers[0], columns, _weights(model.module))


def _in_pixels(recipe: Recipe, canaries: int) -> Canaries:
    """An image with a cell for each canary, of as many pixels as the network's halvings leave one
    place for.

    Convolutions pass a pixel on as it is. Each normalisation is set, from what the canaries
    themselves give, so that the background is 0 behind it and the cell ``BRIGHT``.
    """
    config, channels = recipe.config, recipe.input_shape[0]
    cell = 2 ** len(config.model.channels)
    cells = max(2, math.ceil(math.sqrt(canaries)))  # a side
    side = cell * cells
    model = build_model(config.model, (channels, side, side), recipe.classes, config.train.seed)
    features = torch.zeros(canaries, channels, side, side)
    places = torch.arange(canaries)
    for down in range(cell):  # all of its pixels, so that halving takes nothing away
        for across in range(cell):
            features[places, :, places // cells * cell + down, places % cells * cell + across] = (
                LENGTH
            )
    halvings, one = 0, features[:1]
    first: nn.Linear | None = None
    with torch.no_grad():
        for layer in model.module.children():
            if isinstance(layer, nn.Conv2d):
                layer.weight.zero_()
                layer.weight[:, 0, 1, 1] = 1.0
                if layer.bias is not None:
                    layer.bias.zero_()
            elif isinstance(layer, nn.GroupNorm):
                layer.weight.fill_(1.0)
                layer.bias.zero_()
                normed = layer(one)
                ground, bright = float(normed[0, 0].median()), float(normed[0, 0].max())
                layer.weight.fill_(BRIGHT / (bright - ground))
                layer.bias.fill_(-ground * BRIGHT / (bright - ground))
            elif isinstance(layer, nn.AvgPool2d):
                halvings += 1
            elif isinstance(layer, nn.Linear) and first is None:
                first = layer
                break
            one = layer(one)
    if first is None or halvings != len(config.model.channels):
        raise InputError(
            f"model.name={config.model.name}: no canaries are known for a network of this shape"
        )
    _steer(model.module, first)
    maps = first.in_features // cells**2
    columns = torch.arange(maps).unsqueeze(0) * cells**2 + places.unsqueeze(1)
    return Canaries(model, features, first, columns, _weights(model.module))


def _steer(module: nn.Module, first: nn.Linear) -> None:
    """Zero the layer that is looked at, and let what comes behind it pass a gradient back."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        first.weight.zero_()
        behind = False
        for layer in module.modules():
            if behind and isinstance(layer, nn.Linear):
                layer.weight.normal_(0.0, 2 / math.sqrt(layer.in_features), generator=generator)
            behind = behind or layer is first


def _weights(module: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


@dataclass(frozen=True)
class _Expected:
    """The clipped gradient of every canary in its own columns: outputs' side, inputs' side, and
    length.
    """

    behind: Tensor
    inputs: Tensor
    lengths: Tensor

    def along(self, gradient: Tensor, columns: Tensor) -> Tensor:
        """Of a gradient of the layer, the length along each canary's."""
        own = torch.einsum("no,onk,nk->n", self.behind, gradient[:, columns], self.inputs)
        lengths = self.behind.norm(dim=1) * self.inputs.norm(dim=1)
        found: Tensor = own / lengths.clamp_min(1e-12)
        return found


def _expected(fit: LocalFit, made: Canaries, labels: Tensor, clip_norm: float) -> _Expected:
    """At the weights of now, by back-propagation."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = made.layer.register_forward_hook(
        lambda _, given, result: seen.append((given[0], result))
    )
    grads = [p.grad for p in fit.model.parameters()]
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    try:
        for some in torch.split(torch.arange(len(labels)), AT_ONCE):
            with torch.enable_grad():
                loss = fit.loss(fit.model(made.features[some]), labels[some]).sum()
                given, result = seen.pop()
                (behind,) = torch.autograd.grad(loss, result)
            given = given.detach()
            inputs = given.gather(1, made.columns[some])
            bias = 0.0 if made.layer.bias is None else 1.0
            whole = behind.norm(dim=1) * (given.square().sum(1) + bias).sqrt()
            factor = (clip_norm / whole.clamp_min(1e-12)).clamp_max(1.0)
            parts.append((behind, inputs, behind.norm(dim=1) * inputs.norm(dim=1) * factor))
    finally:
        handle.remove()
        for parameter, gradient in zip(fit.model.parameters(), grads, strict=True):
            parameter.grad = gradient
    return _Expected(*(torch.cat(each) for each in zip(*parts, strict=True)))
