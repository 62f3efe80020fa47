"""What a private training must do, as checks that run against the real one and against broken ones.

Every check raises AssertionError. Statistical ones state their false-alarm rate: changed code draws
other noise.
"""

from collections.abc import Callable

import torch
from torch import nn

from homo_dp.privacy.gradients.losses import squared_error
from tests.privacy.training_parts import (
    PrivateLoop,
    counting_layer,
    flat,
    rows_of,
    silent_layer,
    step_sum,
    training,
)

Kind = Callable[..., PrivateLoop]


def check_one_record_moves_the_sum_by_at_most_the_clip_norm(kind: Kind) -> None:
    """Forty ordinary rows, with and without one whose gradient is a million times larger; C =
    0.5.
    """
    generator = torch.Generator().manual_seed(1)
    features, labels = torch.randn(41, 6, generator=generator), torch.randn(41, generator=generator)
    features[-1] *= 1000.0
    sums = []
    for rows in (40, 41):
        module = nn.Linear(6, 1)
        with torch.no_grad():
            module.weight.fill_(0.1)
            module.bias.zero_()
        sums.append(
            flat(
                step_sum(
                    training(
                        module,
                        squared_error,
                        features[:rows],
                        labels[:rows],
                        kind=kind,
                        clip_norm=0.5,
                    )
                )
            )
        )
    moved = float((sums[1] - sums[0]).norm())
    assert moved <= 0.5 * (1 + 1e-4), f"one record moved the sum by {moved / 0.5:.3g} C"
    assert moved >= 0.49, f"a record far above the bound moved the sum by {moved / 0.5:.3g} C only"


def check_noise_has_the_accounted_variance(kind: Kind) -> None:
    """20,480 coordinates: the relative error of a variance is 1 %, so 6 sigma raises a false
    alarm once in 5e8.
    """
    private = silent_layer(kind=kind, noise_multiplier=2.0, clip_norm=1.5)
    noise = torch.cat([flat(step_sum(private)) for _ in range(5)])
    expected = (2.0 * 1.5) ** 2
    variance = float(noise.square().mean())
    assert abs(variance / expected - 1) < 6 * (2 / len(noise)) ** 0.5, (
        f"variance {variance}, accounted {expected}"
    )
    assert private.applied_sigma == 3.0


def check_noise_is_never_used_twice(kind: Kind) -> None:
    """Correlations of 4,096 coordinates between 4 steps of 2 trainings: 28 pairs beyond 6 sigma
    once in 2e7.
    """
    steps = [
        flat(step_sum(silent))
        for silent in (silent_layer(kind=kind, noise_multiplier=1.0) for _ in range(2))
    ]
    first, second = (silent_layer(kind=kind, noise_multiplier=1.0) for _ in range(2))
    steps += [flat(step_sum(private)) for private in (first, second, first, second, first, second)]
    correlations = torch.corrcoef(torch.stack(steps)) - torch.eye(len(steps))
    assert float(correlations.abs().max()) < 6 / 4096**0.5, "two steps shared their noise"


def check_empty_batches_step_and_add_noise(kind: Kind) -> None:
    """A rate at which 30 steps draw a row once in 3e5 runs: every step must still move the
    weights by its noise.
    """
    private = silent_layer(kind=kind, noise_multiplier=1.0, sample_rate=1e-8)
    sums = [flat(step_sum(private)) for _ in range(30)]
    assert private.steps_done == 30
    for step in sums:
        # 4,096 squares of normals: 8 sigma of their mean is 0.18; a false alarm is below 1e-12.
        assert abs(float(step.square().mean()) - 1.0) < 0.18, "an empty batch added no noise"


def check_division_by_the_expected_size(kind: Kind) -> None:
    """Batches of 50 of 100 expected: 20 sizes that are all alike happen by chance once in 1e20
    runs.
    """
    private = counting_layer(100, 0.5, kind=kind)
    counts = [rows_of(private) for _ in range(20)]
    assert all(abs(count - round(count)) < 1e-3 for count in counts), (
        "the sum was not divided by the expected size"
    )
    assert len({round(count) for count in counts}) > 1, (
        "every batch counted the same: divided by the drawn size"
    )


def check_rate_used_is_rate_accounted(kind: Kind) -> None:
    """200 batches of 1,000 rows at q = 0.3: the mean rate is within 0.001 (1 sigma); 6 sigma
    once in 5e8.
    """
    private = counting_layer(1000, 0.3, kind=kind)
    accounted = private.event(1).event.sampling_probability
    used = sum(rows_of(private) for _ in range(200)) / 200 / 1000
    assert abs(used - accounted) < 6 * (accounted * (1 - accounted) / 200_000) ** 0.5, (
        f"{used} used, {accounted} accounted"
    )


CHECKS: dict[str, Callable[[Kind], None]] = {
    "bound": check_one_record_moves_the_sum_by_at_most_the_clip_norm,
    "variance": check_noise_has_the_accounted_variance,
    "fresh": check_noise_is_never_used_twice,
    "empty": check_empty_batches_step_and_add_noise,
    "division": check_division_by_the_expected_size,
    "rate": check_rate_used_is_rate_accounted,
}
