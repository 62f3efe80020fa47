"""A private step against a plain torch step and stock Opacus: `python benchmarks/steps.py --model
lr|mlp|cnn|...`.

Prints one JSON line. All contenders run in one process on one thread (`wide`: two), turn by turn,
and each draws and gathers its own batches: plain torch by `torch.randint` and index-select, Opacus
by its DPDataLoader, ours by secure Poisson sampling. Times are medians over the repeats; ratios are
medians of the ratios within a repeat. `ratio_plain` is by the clock; `ratio_plain_cpu` compares the
CPU seconds of the training thread, which neighbours on a busy machine disturb less, and
`noise_cpu_ratio` is what the thread that draws noise ahead costs, in units of a plain step. Ours is the
loop of a party, with the criterion that the engine returned; `..._loop` is the loop that Opacus'
users write, with our engine: autograd of the loss is theirs, as in plain torch.

A size of batch that comes for the first time is tried out (batch_invariance.py), once in a process
for all parties with this model. That is done before the clock starts: `first_sizes` says how many,
`first_size_ratio` what one costs in units of a plain step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arguments import count, parser_for

os.environ.setdefault("OMP_NUM_THREADS", "1")

import opacus
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from homo_dp.privacy.engine.engine import PrivacyEngine
from homo_dp.privacy.gradients.losses import Loss, binary_logistic, softmax_cross_entropy

ROWS, BATCH = 10_000, 256
NOISE_MULTIPLIER, CLIP_NORM, LEARNING_RATE = 1.0, 1.0, 0.05


@dataclass(frozen=True)
class Task:
    """A model, its data shape, its losses (ours, torch) and the steps of a repeat (quick, slow
    contenders).
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Loss
    criterion: Callable[[], nn.Module]
    steps: tuple[int, int]  # none of the slow ones: compared with plain torch alone
    words: int = 0  # rows are so many kinds of words, not numbers
    threads: int = 1

    def data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        if self.words:
            features = torch.randint(0, self.words, (ROWS, *self.shape), generator=generator)
        else:
            features = torch.randn(ROWS, *self.shape, generator=generator)
        if self.loss is binary_logistic:
            return features, (features[:, :1] > 0).float()
        return features, torch.randint(0, 10, (ROWS,), generator=generator)


def mnist_cnn() -> nn.Module:
    """The network of Opacus' own MNIST example."""
    first = [nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)]
    second = [nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)]
    return nn.Sequential(
        *first, *second, nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)
    )


class Sentences(nn.Module):
    """Words, an LSTM over them, and a classifier of its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.recurrent, self.last = (
            nn.Embedding(1000, 32),
            nn.LSTM(32, 64, batch_first=True),
            nn.Linear(64, 10),
        )

    def forward(self, rows: Tensor) -> Tensor:
        answers: Tensor = self.last(self.recurrent(self.words(rows))[0][:, -1])
        return answers


def wide_mlp() -> nn.Module:
    """10.7 million weights."""
    return nn.Sequential(
        nn.Linear(784, 2900), nn.ReLU(), nn.Linear(2900, 2900), nn.ReLU(), nn.Linear(2900, 10)
    )


TASKS = {
    "lr": Task(
        lambda: nn.Linear(100, 1), (100,), binary_logistic, nn.BCEWithLogitsLoss, (1000, 40)
    ),
    "mlp": Task(
        lambda: nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)),
        (784,),
        softmax_cross_entropy,
        nn.CrossEntropyLoss,
        (60, 6),
    ),
    "cnn": Task(mnist_cnn, (1, 28, 28), softmax_cross_entropy, nn.CrossEntropyLoss, (8, 4)),
    "embedding": Task(
        lambda: nn.Sequential(nn.EmbeddingBag(10_000, 32), nn.Linear(32, 10)),
        (32,),
        softmax_cross_entropy,
        nn.CrossEntropyLoss,
        (60, 0),
        words=10_000,
    ),
    "lstm": Task(Sentences, (32,), softmax_cross_entropy, nn.CrossEntropyLoss, (8, 0), words=1000),
    "wide": Task(wide_mlp, (784,), softmax_cross_entropy, nn.CrossEntropyLoss, (4, 0), threads=2),
}


def plain_steps(task: Task, features: Tensor, labels: Tensor) -> Callable[[int], None]:
    """Ordinary SGD with autograd."""
    module, criterion = task.build(), task.criterion()
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)

    def run(steps: int) -> None:
        for _ in range(steps):
            rows = torch.randint(0, ROWS, (BATCH,))
            optimizer.zero_grad()
            criterion(
                module(features.index_select(0, rows)), labels.index_select(0, rows)
            ).backward()
            optimizer.step()

    return run


class OurLoop:
    """The loop of a party: what ``make_private`` returns, with secure mode on."""

    def __init__(self, task: Task, features: Tensor, labels: Tensor) -> None:
        module = task.build()
        self.engine = PrivacyEngine()
        self.module, self.optimizer, self.criterion, self.loader = self.engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
            criterion=task.loss,
            data_loader=DataLoader(TensorDataset(features, labels)),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=CLIP_NORM,
            sample_rate=BATCH / ROWS,
            expected_batch_size=float(BATCH),
            steps=1,
        )

    def run(self, steps: int) -> None:
        """So many steps."""
        self.loader.batch_sampler.steps = steps
        for features, labels in self.loader:
            self.optimizer.zero_grad()
            self.criterion(self.module(features), labels).backward()
            self.optimizer.step()

    def try_sizes(self) -> tuple[int, float]:
        """Find out block sizes for every size of batch that is likely to come; how many there are,
        and the CPU seconds of all.
        """
        started = time.thread_time()
        sizes = range(BATCH - 5 * 16, BATCH + 5 * 16 + 1)  # within five standard deviations
        found = {self.loader.sizes.of(size)[1] for size in sizes}
        return len(found), time.thread_time() - started


def opacus_steps(
    task: Task, features: Tensor, labels: Tensor, mode: str, engine: opacus.PrivacyEngine
) -> Callable[[int], None]:
    """A training loop as Opacus' users write it, with its engine (which has no secure mode to
    turn on) or with ours.
    """
    module, criterion = task.build(), task.criterion()
    made: Any = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
        data_loader=DataLoader(
            TensorDataset(features, _labels_for(mode, labels)), batch_size=BATCH
        ),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        grad_sample_mode=mode,
        **({"criterion": criterion} if mode == "ghost" else {}),
    )
    private, optimizer, loader = made[0], made[1], made[-1]
    loss = made[2] if mode == "ghost" else criterion
    batches = _endless(loader)

    def run(steps: int) -> None:
        for _ in range(steps):
            batch, answers = next(batches)
            optimizer.zero_grad()
            outputs = private(batch)
            loss(
                outputs.squeeze(1) if outputs.shape[1] == 1 and mode == "ghost" else outputs,
                answers,
            ).backward()
            optimizer.step()

    return run


def measure(model: str, repeats: int) -> dict[str, Any]:
    """Run all contenders turn by turn and compare them."""
    task = TASKS[model]
    features, labels = task.data()
    training = OurLoop(task, features, labels)
    contenders: dict[str, tuple[Callable[[int], None], int]] = {
        "plain": (plain_steps(task, features, labels), task.steps[0]),
        "ours": (training.run, task.steps[0]),
    }
    others: dict[str, tuple[Callable[[int], None], int]] = (
        {}
        if not task.steps[1]
        else {
            "ours_loop": (
                opacus_steps(task, features, labels, "auto", PrivacyEngine()),
                task.steps[0],
            ),
            "opacus_hooks": (
                opacus_steps(task, features, labels, "hooks", opacus.PrivacyEngine()),
                task.steps[1],
            ),
            "opacus_ghost": (
                opacus_steps(task, features, labels, "ghost", opacus.PrivacyEngine()),
                task.steps[1],
            ),
        }
    )
    contenders |= others
    tried, trials = training.try_sizes()
    for run, steps in contenders.values():
        run(max(3, steps // 4))
    drawn = training.optimizer.noise_cpu_seconds
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, (run, steps) in contenders.items():
            started, busy = time.perf_counter(), time.thread_time()
            run(steps)
            cpu[name].append((time.thread_time() - busy) / steps)
            wall[name].append((time.perf_counter() - started) / steps)
    noise = (training.optimizer.noise_cpu_seconds - drawn) / (repeats * task.steps[0])
    first = {
        "first_sizes": tried,
        "first_size_ratio": round(trials / tried / statistics.median(cpu["plain"]), 3),
    }
    return _report(model, training, wall, cpu, noise) | first


def _report(
    model: str,
    training: OurLoop,
    seconds: dict[str, list[float]],
    cpu: dict[str, list[float]],
    noise: float,
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "benchmark": "steps",
        "model": model,
        "grad_sample_mode": training.engine.grad_sample_mode,
        "secure_mode": training.engine.noise.private,
        "repeats": len(seconds["ours"]),
        "ratio_plain": _ratio(seconds["ours"], seconds["plain"]),
        "noise_cpu_ratio": round(noise / statistics.median(cpu["plain"]), 3),
        "total_cpu_ratio": round(
            (statistics.median(cpu["ours"]) + noise) / statistics.median(cpu["plain"]), 3
        ),
        "ratio_plain_cpu": _ratio(cpu["ours"], cpu["plain"]),
        "ms": {name: round(statistics.median(values) * 1e3, 4) for name, values in seconds.items()},
    }
    if "opacus_hooks" in seconds:
        result |= {
            "speedup_opacus": _ratio(seconds["opacus_hooks"], seconds["ours"]),
            "speedup_ghost": _ratio(seconds["opacus_ghost"], seconds["ours"]),
            "ratio_plain_loop": _ratio(seconds["ours_loop"], seconds["plain"]),
            "speedup_opacus_loop": _ratio(seconds["opacus_hooks"], seconds["ours_loop"]),
        }
        result["speedup_best_opacus"] = min(result["speedup_opacus"], result["speedup_ghost"])
    peaks = {name: _peak_of(model, name) for name in ("plain", "ours")}
    result["peak_memory_ratio"] = round(peaks["ours"] / peaks["plain"], 3)
    result["peak_mib"] = {name: round(value / 1024, 1) for name, value in peaks.items()}
    return result


def peak(model: str, contender: str) -> int:
    """Highest resident memory in KiB of this process after the steps of one contender; imports
    are the same for all.
    """
    task = TASKS[model]
    features, labels = task.data()
    run = (
        plain_steps(task, features, labels)
        if contender == "plain"
        else OurLoop(task, features, labels).run
    )
    run(task.steps[0])
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def _peak_of(model: str, contender: str) -> int:
    command = [sys.executable, __file__, "--model", model, "--peak", contender]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _ratio(above: list[float], below: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(above, below, strict=True)), 3)


def _labels_for(mode: str, labels: Tensor) -> Tensor:
    return labels.squeeze(1) if labels.dim() == 2 and mode == "ghost" else labels


def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--model", choices=sorted(TASKS), default="lr", help="what is trained; lr unless told"
    )
    parser.add_argument(
        "--repeats", type=count, default=9, help="runs that the medians are of, 5 at least"
    )
    parser.add_argument("--peak", choices=["plain", "ours"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(TASKS[arguments.model].threads)
    warnings.simplefilter("ignore")
    if arguments.peak:
        print(peak(arguments.model, arguments.peak))
    else:
        print(json.dumps(measure(arguments.model, max(5, arguments.repeats))))


if __name__ == "__main__":
    main()
