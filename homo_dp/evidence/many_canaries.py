"""One run with many canaries: each row has a column to itself and is in or out by its own fair coin.

For networks: the first layer is linear, so that a row's gradient lies in the weights of its own column, and its
direction there is found by back-propagation at the weights of each step, which the observer knows.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from homo_dp.core.errors import InputError
from homo_dp.data.rows import Table
from homo_dp.evidence.attack import sampled_losses
from homo_dp.evidence.profile import Claim, claim_of
from homo_dp.evidence.record_attacks import Recipe
from homo_dp.federation.mechanisms.local_fit import LocalFit
from homo_dp.federation.sessions.build import build_fit, build_mechanism, federation_facts, noise_source
from homo_dp.models.registry import build_model
from homo_dp.privacy.accounting.events import compose

Floats = NDArray[np.float64]
NAME = "many_canaries"
LENGTH = 1e3


@dataclass(frozen=True)
class OneRun:
    """The scores of one run's canaries, and which of them were in."""

    scores: Floats
    present: NDArray[np.bool_]
    claim: Claim


def many_canaries(recipe: Recipe, canaries: int) -> OneRun:
    """Train the recipe's model once, widened to one input a canary, on those whose coin fell heads."""
    config, rows = recipe.config, {recipe.party: max(recipe.rows[recipe.party], canaries)}
    if recipe.classes is None:
        raise InputError("data.classes: canaries need classes; audit a model of classes")
    model = build_model(config.model, (canaries,), recipe.classes, config.train.seed)
    layers = [(name, layer) for name, layer in model.module.named_modules() if list(layer.parameters(recurse=False))]
    if not layers or not isinstance(layers[0][1], nn.Linear):
        raise InputError(f"model.name={config.model.name}: its first layer is not linear; no canaries are known for it")
    first = layers[0][1]
    parameters = sum(p.numel() for p in model.module.parameters())
    mechanism = build_mechanism(config, federation_facts(config, rows, parameters), noise_source(config))
    facts = mechanism.facts.parties[recipe.party]
    plan = mechanism.plan(facts)
    features = torch.eye(canaries) * LENGTH * max(1.0, plan.clip_norm)
    generator = torch.Generator().manual_seed(0)
    high = 2 if model.task.outputs == 1 else model.task.outputs
    labels = torch.randint(0, high, (canaries,), generator=generator)
    labels = labels.to(torch.float32 if model.task.outputs == 1 else torch.int64)
    present = np.array([secrets.randbelow(2) == 1 for _ in range(canaries)])
    kept = torch.from_numpy(np.flatnonzero(present))
    fit = build_fit(config, model, Table(features[kept], labels[kept]), facts)
    start = {name: tensor.detach().clone() for name, tensor in model.module.state_dict().items()}
    start[f"{layers[0][0]}.weight" if layers[0][0] else "weight"].zero_()  # a first layer of zeros saturates nothing
    scores = np.zeros(canaries)
    scale, unit = facts.rows * facts.sample_rate, plan.clip_norm
    expected = torch.zeros(0)

    def look(_: LocalFit) -> None:
        nonlocal scores, expected
        gradient = first.weight.grad
        if gradient is None:
            raise InputError("a step left no gradient to look at")
        lengths = expected.norm(dim=0)
        along = (gradient.detach() * expected).sum(0) / lengths.clamp_min(1e-12) * scale / unit
        shift = (lengths / unit).double().numpy()
        losses = sampled_losses(along.double().numpy(), plan.noise_multiplier, facts.sample_rate, shift)
        scores += np.where(shift > 1e-6, losses, 0.0)
        expected = _columns(fit, first, features, labels, plan.clip_norm)

    mechanism.after_batch = look  # type: ignore[method-assign,assignment]
    for number in range(1, facts.rounds + 1):
        fit.load(start)
        expected = _columns(fit, first, features, labels, plan.clip_norm)
        fit.fit(mechanism, start, number, {})
    claim = claim_of(compose(*[plan.events["aggregator"]] * plan.rounds), plan.delta)
    return OneRun(scores, present, claim)


def _columns(fit: LocalFit, first: nn.Linear, features: Tensor, labels: Tensor, clip_norm: float) -> Tensor:
    """The clipped gradient of every canary in its own column of the first layer: one column each."""
    outputs: list[Tensor] = []
    handle = first.register_forward_hook(lambda *found: outputs.append(found[2]))
    grads = [p.grad for p in fit.model.parameters()]
    try:
        with torch.enable_grad():
            loss = fit.loss(fit.model(features), labels).sum()
            (behind,) = torch.autograd.grad(loss, outputs[-1])
    finally:
        handle.remove()
        for parameter, gradient in zip(fit.model.parameters(), grads, strict=True):
            parameter.grad = gradient
    columns = (behind * features.diagonal().unsqueeze(1)).T.detach()
    norms = columns.norm(dim=0)
    clipped: Tensor = columns * (clip_norm / norms.clamp_min(1e-12)).clamp_max(1.0)
    return clipped
