"""How good released metrics are: the error of AUC and accuracy of some test rows, and how often
their bars hold.

python benchmarks/released_metrics.py [--rows 1000] [--epsilon 0.5] [--releases 300]

Scores of a fixed made-up model; one release that has this epsilon for itself, again and again with
new noise. Errors are 95 %: twice the root mean square of (released - exact).
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from homo_dp.federation.protocol.round_sums import noise_of_share
from homo_dp.models.task import task_for
from homo_dp.privacy.noise.source import secure_noise
from homo_dp.statistics.released_metrics import ReleasedMetrics

_DISTANCE = 2.0  # between the classes' logits, in standard deviations: an AUC of 0.92
_DELTA = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--epsilon", type=float, default=0.5)
    parser.add_argument("--releases", type=int, default=300)
    options = parser.parse_args()
    print(
        f"{options.rows} test rows, epsilon {options.epsilon:g}, delta {_DELTA:g}, "
        f"{options.releases} releases"
    )
    print(
        "positive  noise                        AUC    error  bars hold | accuracy  error  bars "
        "hold"
    )
    for positive in (0.5, 0.1):
        for name, parties in (("one table, or shared", 1), ("three parties, each its own", 3)):
            auc, acc = measured(options.rows, positive, options.epsilon, options.releases, parties)
            told = [f"{exact:.3f}  {error:.3f}  {held:9.1%}" for exact, error, held in (auc, acc)]
            print(f"{positive:8.0%}  {name:27s}  {'  | '.join(told)}")


def measured(
    rows: int, positive: float, epsilon: float, releases: int, parties: int
) -> tuple[tuple[float, float, float], ...]:
    """For AUC and accuracy: the exact figure, the error of a released one, and how often its bar
    holds the exact.
    """
    asked, task = ReleasedMetrics("binary", 2), task_for([0, 1])
    generator = torch.Generator().manual_seed(1)
    labels = (torch.arange(rows) < positive * rows).long()
    logits = _DISTANCE * (labels - 0.5) * math.sqrt(2) + math.sqrt(2) * torch.randn(
        rows, generator=generator
    )
    parts = asked.parts(task, logits[:, None], labels)
    noise = noise_of_share(1.0, epsilon, _DELTA)
    sigma = noise * math.sqrt(parties)
    exact, _ = asked.read(parts.sum(0), 1e-9)
    away: dict[str, list[float]] = {"auc": [], "acc": []}
    held: dict[str, list[bool]] = {"auc": [], "acc": []}
    source = secure_noise()
    for number in range(releases):
        total = parts.sum(0) + source.normal((asked.dimension,), sigma, torch.float64)
        found, bars = asked.read(total, sigma, seed=number)
        for name in away:
            away[name].append(found[name] - exact[name])
            held[name].append(abs(found[name] - exact[name]) <= bars[name])
    return tuple(
        (exact[name], 2 * float(np.sqrt(np.square(away[name]).mean())), float(np.mean(held[name])))
        for name in away
    )


if __name__ == "__main__":
    main()
