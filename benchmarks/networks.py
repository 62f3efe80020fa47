"""Networks by the rules of train.auto beside settings by hand, on training images that are held
back.

python benchmarks/networks.py --data FOLDER [--models mlp cnn] [--rows 60000] [--epsilon 3]
[--shrink 1] [--used 400]

FOLDER holds images/train-images-idx3-ubyte and its labels (docs/results.md). A sixth of the images,
10,000 at most, is held back and scored; the test images are not opened. The noise is that of
``--rows`` rows in ``--parties`` silos, each with all of its own, at the true sample rate. A step
takes the gradients of ``--used`` rows only: their sampling error is a quarter of that noise or
less, and a run costs a tenth. ``--shrink 2`` averages pixels two by two, to see rows of other
lengths. By hand: one setting of the rule at a time is moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from arguments import count, parser_for
from torch import Tensor, nn

from homo_dp.config.model import ModelConfig
from homo_dp.data.images import read_images
from homo_dp.federation.protocol.round_sums import calibrated_noise, noise_of_share
from homo_dp.models.registry import build_model
from homo_dp.privacy.engine.loader import CurrentBlock
from homo_dp.privacy.engine.passes import ChainPasses
from homo_dp.privacy.engine.release import ClippedSum
from homo_dp.privacy.gradients.fast.chain import chain_of
from homo_dp.privacy.gradients.losses import softmax_cross_entropy
from homo_dp.runs.auto_rules import PublicFacts, choose

CLASSES = list(range(10))


@dataclass(frozen=True)
class Setting:
    """One way to train; the rate in clip norms."""

    rounds: int
    step: float
    clip: float
    momentum: float
    sample: float
    tail: float = 0.3
    adam: float | None = None  # rate of Adam (0.9, 0.99), instead of step and momentum


@dataclass(frozen=True)
class Held:
    """Images to train on and images to score."""

    images: Tensor
    labels: Tensor
    held: Tensor
    held_labels: Tensor


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with images/")
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--rows", type=count, default=60_000)
    parser.add_argument("--parties", type=count, default=3)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--shrink", type=count, default=1)
    parser.add_argument("--used", type=count, default=400)
    parser.add_argument("--runs", type=count, default=1)
    parser.add_argument("--only", nargs="+", help="settings, by their names in the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = held_back(given.data, given.shrink, given.rows)
    rule = by_rule(data, given.rows, given.parties, given.epsilon, given.delta)
    print(
        "| model | setting | rounds | step in clip norms | clip norm | momentum | sample | "
        "accuracy | log loss |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for model in given.models:
        accuracy, loss = without_privacy(model, data)
        print(
            f"| {model} | no privacy | - | - | - | 0.9 | 64 | {accuracy:.4f} | {loss:.3f} |",
            flush=True,
        )
        for name, setting in {"rule": rule, **by_hand(rule)}.items():
            if given.only and name not in given.only:
                continue
            rate = min(1.0, setting.sample / given.rows)
            noise = calibrated_noise(rate, setting.rounds, given.epsilon, given.delta) * math.sqrt(
                given.parties
            )
            scores = [
                trained(model, data, setting, noise / (rate * given.rows), given.used, n)
                for n in range(given.runs)
            ]
            accuracy, loss = (sum(score[part] for score in scores) / given.runs for part in (0, 1))
            cells = [
                model,
                name,
                setting.rounds,
                f"{setting.step:.2g}",
                f"{setting.clip:.2g}",
                setting.momentum,
            ]
            cells += [f"{setting.sample:.0f}", f"{accuracy:.4f}", f"{loss:.3f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def held_back(folder: Path, shrink: int, rows: int) -> Held:
    """The training images, pixels in [-1, 1], in two parts."""
    found = read_images(next((folder / "images").glob("train-images-idx3-ubyte*")))
    pixels = torch.tensor(found.pixels).float().reshape(-1, *found.shape) / 127.5 - 1
    pixels, labels = (
        nn.functional.avg_pool2d(pixels, shrink),
        torch.tensor(found.frame["y"].to_numpy()).long(),
    )
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(5))
    held = min(10_000, len(pixels) // 6)
    here, there = order[held:][:rows], order[:held]
    return Held(pixels[here], labels[here], pixels[there], labels[there])


def by_rule(data: Held, rows: int, parties: int, epsilon: float, delta: float) -> Setting:
    """What train.auto chooses."""
    width, mu = data.images[0].numel(), 1.0 / noise_of_share(1.0, epsilon, delta)
    facts = PublicFacts(
        rows, parties, None, width, 0, width, len(CLASSES), "multiclass", linear=False, mu=mu
    )
    found = choose(facts, "dp_fedsgd").settings
    clip = found["privacy.max_grad_norm"]
    step, momentum = (
        found["train.learning_rate"] * clip,
        found["train.server_optimizer"]["momentum"],
    )
    sample = found["train.sample_rate"] * rows
    return Setting(
        found["train.rounds"], step, clip, momentum, sample, found["train.averaging"]["tail"]
    )


def by_hand(rule: Setting) -> dict[str, Setting]:
    """What a patient person would try: one thing at a time."""
    step, rounds, still = rule.step, rule.rounds, 1 - rule.momentum
    return {
        "half the rate": replace(rule, step=step / 2),
        "rate x 1.5": replace(rule, step=step * 1.5),
        "rate x 2.5": replace(rule, step=step * 2.5),
        "half the rounds": replace(rule, rounds=rounds // 2, step=2 * step),
        "half the rounds, same rate": replace(rule, rounds=rounds // 2),
        "rounds x 1.5": replace(rule, rounds=rounds * 3 // 2, step=step / 1.5),
        "clip norm / 3": replace(rule, clip=rule.clip / 3),
        "clip norm x 2": replace(rule, clip=rule.clip * 2),
        "automatic clipping": replace(rule, clip=0.01),
        "no momentum": replace(rule, momentum=0.0, step=step / still),
        "momentum 0.9": replace(rule, momentum=0.9, step=step * 0.1 / still),
        "half the sample": replace(rule, sample=rule.sample / 2),
        "twice the sample": replace(rule, sample=rule.sample * 2),
        "last model": replace(rule, tail=1 / rounds),
        "Adam, rate 0.004": replace(rule, adam=0.004),
        "Adam, rate 0.008": replace(rule, adam=0.008),
    }


def trained(
    model: str, data: Held, setting: Setting, noise: float, used: int, seed: int
) -> tuple[float, float]:
    """Accuracy and log loss on the images held back; ``noise`` is that of a mean gradient, in
    clip norms.
    """
    module = build_model(
        ModelConfig.model_validate({"name": model}), data.images.shape[1:], CLASSES, seed
    ).module
    chain, _ = chain_of(module)
    if chain is None:
        raise ValueError(f"--models {model}: has no fast gradients; choose mlp or cnn")
    passes, weights = ChainPasses(chain, CurrentBlock(), exact=True), list(module.parameters())
    clipped = ClippedSum(weights, passes.columns)
    sums = clipped.parts
    first, second, mean = ([torch.zeros_like(total) for total in sums] for _ in range(3))
    generator = torch.Generator().manual_seed(1000 + seed)
    last = math.ceil(setting.rounds * setting.tail)
    for number in range(setting.rounds):
        rows = torch.randint(len(data.images), (used,), generator=generator)
        of_pass, _ = passes.forward(data.images[rows])
        passes.backward_of(of_pass, softmax_cross_entropy, data.labels[rows])
        passes.take_clipped_sum(setting.clip, clipped, accumulate=False)
        for weight, total, one, two, kept in zip(weights, sums, first, second, mean, strict=True):
            blurred = total / used + noise * setting.clip * torch.randn(
                weight.shape, generator=generator
            )
            weight.data -= step_of(setting, number + 1, blurred, one, two).float()
            if number >= setting.rounds - last:
                kept += weight.data / last
    for weight, kept in zip(weights, mean, strict=True):
        weight.data = kept.float()
    return scores(module, data)


def step_of(
    setting: Setting, number: int, gradient: Tensor, first: Tensor, second: Tensor
) -> Tensor:
    """What is taken off a weight; the moments are kept in place."""
    if setting.adam is None:
        return setting.step / setting.clip * first.mul_(setting.momentum).add_(gradient)
    first.mul_(0.9).add_(gradient, alpha=0.1)
    second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    return setting.adam * first / (1 - 0.9**number) / (second / (1 - 0.99**number)).sqrt()


def without_privacy(model: str, data: Held) -> tuple[float, float]:
    """The same network by plain SGD, the rate falling to zero: 5 passes, or 1,500 steps where
    that is more.
    """
    module = build_model(
        ModelConfig.model_validate({"name": model}), data.images.shape[1:], CLASSES, 0
    ).module
    steps, generator = max(1500, 5 * len(data.images) // 64), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(data.images), (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(data.images[rows]), data.labels[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return scores(module, data)


def scores(module: nn.Module, data: Held) -> tuple[float, float]:
    """Accuracy and log loss."""
    with torch.no_grad():
        outputs = torch.cat([module(piece) for piece in torch.split(data.held, 500)])
    accuracy = (outputs.argmax(1) == data.held_labels).double().mean()
    return float(accuracy), float(nn.functional.cross_entropy(outputs, data.held_labels))


if __name__ == "__main__":
    main()
