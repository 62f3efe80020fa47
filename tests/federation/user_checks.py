"""Checks of a user-level mechanism that know nothing of how it works: they measure what one user
can change and what noise there is, and hold both against the event that it names.

Statistical checks use 20,000 coordinates: the relative error of a measured deviation is 0.5 %, the
tolerance 3 % (six standard errors, a false alarm in 5e8 runs); sources are seeded, so a run that
passes passes again.
"""

import math

import torch
from dp_accounting import DpEvent, GaussianDpEvent
from torch import Tensor

from homo_dp.config.schema import Config
from homo_dp.federation.mechanisms.base import Update
from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.privacy.accounting.events import from_json, parts
from tests.federation.user_parts import mean_of, sent_by, user_mechanism, zeros

SIZE = 20_000
TOLERANCE = 0.03
SEEDS = 25  # over which a move is averaged: rounding to the grid is then below 0.2 % of C


def gaussian_of(event: DpEvent) -> float:
    """The noise multiplier of the one Gaussian inside an event."""
    (text,) = parts(event)
    inner = from_json(text)
    inner = getattr(inner, "event", inner)
    assert isinstance(inner, GaussianDpEvent)
    return float(inner.noise_multiplier)


def measured_sigma(kind: type[DpFedAvg], config: Config, replies: int) -> float:
    """Deviation of the noise on the mean update of a round in which everybody's update is zero."""
    mechanism = user_mechanism(config, kind)
    mean = mean_of(mechanism, sent_by(mechanism, torch.zeros(replies, SIZE)), SIZE)
    return float(mean.double().std())


def check_noise_on_the_mean(kind: type[DpFedAvg], config: Config, replies: int) -> None:
    """The noise on the published mean is z_delta C / m, once, and no less when replies are
    missing.
    """
    numbers, clip_norm = user_mechanism(config).numbers, user_mechanism(config).clip_norm
    wanted = numbers.sum_sigma(clip_norm) / numbers.cohort_size
    if numbers.shares is not None:
        wanted *= math.sqrt(replies / numbers.shares)
    assert abs(measured_sigma(kind, config, replies) / wanted - 1) < TOLERANCE


def moved_by_one(
    kind: type[DpFedAvg], config: Config, before: Tensor | None, after: Tensor, rows: float = 1.0
) -> float:
    """How far the sum moves when the last of three users changes (None: was absent); noise cancels
    by its seed.

    Along the user's own direction, as a mean over seeds: what is released lies on a grid, which
    hides a single move.
    """
    seeds = [_moved(kind, config, before, after, rows, seed) for seed in range(SEEDS)]
    along = torch.stack(seeds).mean(0) @ after.double() / after.double().norm()
    return abs(float(along)) * user_mechanism(config).numbers.cohort_size


def _moved(
    kind: type[DpFedAvg],
    config: Config,
    before: Tensor | None,
    after: Tensor,
    rows: float,
    seed: int,
) -> Tensor:
    others = torch.zeros(2, len(after))
    means = []
    for last in (before, after):
        mechanism = user_mechanism(config, kind, seed)
        users = others if last is None else torch.cat([others, last.unsqueeze(0)])
        sent = sent_by(mechanism, users)
        if last is not None:
            sent[-1] = Update(sent[-1].party, sent[-1].tensors, rows, sent[-1].info)
        means.append(mean_of(mechanism, sent, len(after)).double())
    return means[1] - means[0]


def check_event_covers_one_user(kind: type[DpFedAvg], config: Config) -> None:
    """Sigma over the measured change of one user is at least the multiplier of the Gaussian in the
    event.

    The user is as bad as it can be: a thousand times the clip norm, a hundred times the rows, and
    where one user may be replaced, the opposite before.
    """
    mechanism = user_mechanism(config, kind)
    numbers, clip_norm = mechanism.numbers, mechanism.clip_norm
    far = torch.full((8,), 1000.0 * clip_norm)
    before = -far if numbers.sampler.relation == "replace_one" else None
    sensitivity = moved_by_one(kind, config, before, far, rows=100.0)
    sigma = numbers.sum_sigma(clip_norm)
    bit_share = 0.0
    if numbers.bit_noise is not None:
        bit_share = check_bits(mechanism) / numbers.bit_noise
    cost = math.hypot(sensitivity / sigma, bit_share)
    assert gaussian_of(mechanism.numbers.event) <= (1 + 1e-2) / cost


def check_bits(mechanism: DpFedAvg) -> float:
    """The most that one user changes the sum of bits, by joining or leaving; by being replaced,
    twice its middle.
    """
    clip_norm = mechanism.clip_norm
    rows = torch.tensor([[0.0], [clip_norm * 100], [math.nan]])
    bits = mechanism.bits(rows.norm(dim=1) <= clip_norm)
    if mechanism.numbers.sampler.relation == "replace_one":
        return float(bits.max() - bits.min())
    return float(bits.abs().max())


def check_a_missing_reply_lowers_the_sum_only(kind: type[DpFedAvg], config: Config) -> None:
    """Half the replies give half the mean."""
    means = []
    for replies in (50, 25):
        mechanism = user_mechanism(config, kind)
        means.append(
            mean_of(mechanism, sent_by(mechanism, torch.full((replies, SIZE), 0.01)), SIZE)
            .double()
            .mean()
        )
    assert abs(float(means[1] / means[0]) - 0.5) < 0.05


def clip_norms(kind: type[DpFedAvg], config: Config, norms: Tensor, rounds: int) -> list[float]:
    """The clip norm after each round in which cohorts are drawn from users with these update
    norms.
    """
    mechanism = user_mechanism(config, kind)
    path = []
    for number in range(1, rounds + 1):
        chosen = norms[mechanism.draw()]
        total = mechanism.open_sum(zeros(1))
        everyone = torch.ones(len(chosen), dtype=torch.bool)
        total.add(mechanism.contributions(chosen.unsqueeze(1), mechanism.clip_norm, everyone))
        mechanism.combine(total, zeros(1), number)
        path.append(mechanism.clip_norm)
    return path
