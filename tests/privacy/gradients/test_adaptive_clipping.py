"""Adaptive clipping: the quantile is found, the pair of update and bit costs z, and broken bits
are noticed.
"""

import math

import pytest
import torch

from homo_dp.federation.mechanisms.dp_fedavg import DpFedAvg
from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.adaptive_clipping import (
    QuantileTracker,
    centred_bits,
    smallest_cohort,
    update_multiplier,
)
from homo_dp.privacy.gradients.clipping import LEAST, MOST
from tests.federation.broken_dp_fedavg import InvertedBit, NoiseOfTheNextClipNorm, RawBits
from tests.federation.user_checks import (
    check_event_covers_one_user,
    check_noise_on_the_mean,
    clip_norms,
)
from tests.federation.user_parts import (
    ADAPTIVE,
    EVERYONE,
    FIXED,
    PARTIES,
    POISSON,
    Keys,
    mean_of,
    sent_by,
    user_config,
    user_mechanism,
    zeros,
)

POPULATION = 2000


def tracking_config(start: float, quantile: float = 0.5, learning_rate: float = 0.2) -> Keys:
    return {
        **ADAPTIVE,
        "privacy.population": POPULATION,
        "privacy.cohort_size": 200,
        "privacy.noise_multiplier": 1.0,
        "privacy.adaptive.initial_clip_norm": start,
        "privacy.adaptive.target_quantile": quantile,
        "privacy.adaptive.learning_rate": learning_rate,
        "train.rounds": 60,
    }


def known_norms() -> torch.Tensor:
    """Log-normal norms with median 2: quantiles are exp(ln 2 + 0.5 * the normal's)."""
    return 2.0 * torch.exp(0.5 * torch.special.ndtri((torch.arange(POPULATION) + 0.5) / POPULATION))


@pytest.mark.parametrize("start", [0.1, 100.0])
@pytest.mark.parametrize(("quantile", "learning_rate"), [(0.3, 0.2), (0.5, 0.2), (0.8, 0.6)])
@pytest.mark.parametrize("where", [POISSON, FIXED, PARTIES])
def test_clip_norm_reaches_the_quantile_within_60_rounds(
    start: float, quantile: float, learning_rate: float, where: Keys
) -> None:
    # A round moves ln C by at most eta (1 - gamma), so gamma = 0.8 needs a larger eta to come down
    # from 100. b has a deviation of 0.05 (noise) and 0.035 (cohort of 200); ln C then wanders by up
    # to 0.045, 0.25 is five of it.
    config = user_config(where, tracking_config(start, quantile, learning_rate))
    path = clip_norms(DpFedAvg, config, known_norms(), 60)
    wanted = float(known_norms().quantile(quantile))
    assert abs(math.log(path[-1] / wanted)) < 0.25
    assert all(math.isfinite(value) and value > 0 for value in path)


def test_an_inverted_bit_runs_away() -> None:
    config = user_config(tracking_config(100.0))
    path = clip_norms(InvertedBit, config, known_norms(), 60)
    assert path[-1] > 1000.0


def test_bits_are_centred() -> None:
    assert centred_bits(torch.tensor([True, False])).tolist() == [0.5, -0.5]


@pytest.mark.parametrize("sampling", [POISSON, FIXED, EVERYONE])
def test_update_and_bit_together_cost_z(sampling: Keys) -> None:
    check_event_covers_one_user(
        DpFedAvg, user_config(sampling, ADAPTIVE, {"privacy.population": 100})
    )


def test_raw_bits_cost_more_than_z() -> None:
    # at a bit noise near z / 2 the bits take most of the budget, so what they cost shows
    config = user_config(ADAPTIVE, {"privacy.adaptive.bit_noise": 1.2})
    check_event_covers_one_user(DpFedAvg, config)
    with pytest.raises(AssertionError):
        check_event_covers_one_user(RawBits, config)


@pytest.mark.parametrize("where", [POISSON, FIXED])
def test_the_noise_is_that_of_the_clip_norm_that_clipped(where: Keys) -> None:
    # eta = 2 moves C by exp(-1) in one round in which nobody is clipped
    config = user_config(where, ADAPTIVE, {"privacy.adaptive.learning_rate": 2.0})
    check_noise_on_the_mean(DpFedAvg, config, 50)
    with pytest.raises(AssertionError):
        check_noise_on_the_mean(NoiseOfTheNextClipNorm, config, 50)


def test_the_split_of_the_noise() -> None:
    # Andrew et al. 2021, theorem 1: z^-2 = z_delta^-2 + (2 sigma_b)^-2
    for noise, bit_noise in ((1.0, 5.0), (2.0, 1.01), (0.3, 50.0)):
        split = update_multiplier(noise, bit_noise)
        assert split > noise
        assert math.isclose(split**-2 + (2 * bit_noise) ** -2, noise**-2)


def test_bit_noise_is_a_twentieth_of_the_cohort() -> None:
    assert user_mechanism(user_config(ADAPTIVE)).numbers.bit_noise == 2.5


def test_too_much_noise_for_the_cohort_names_the_smallest_that_works() -> None:
    with pytest.raises(PrivacyError, match=r"cohort_size that works is 51") as refusal:
        user_mechanism(user_config(ADAPTIVE, {"privacy.noise_multiplier": 5.0}))
    assert "\n" not in str(refusal.value)
    user_mechanism(
        user_config(ADAPTIVE, {"privacy.noise_multiplier": 5.0, "privacy.cohort_size": 51})
    )


def test_with_a_target_the_smallest_cohort_counts_its_own_noise() -> None:
    keys: Keys = {
        "privacy.noise_multiplier": None,
        "privacy.target_epsilon": 0.1,
        "privacy.cohort_size": 5,
    }
    with pytest.raises(PrivacyError, match="that works is") as refusal:
        user_mechanism(user_config(ADAPTIVE, keys))
    smallest = int(str(refusal.value).rsplit(" ", 1)[1])
    user_mechanism(user_config(ADAPTIVE, keys, {"privacy.cohort_size": smallest}))
    with pytest.raises(PrivacyError, match="that works is"):
        user_mechanism(user_config(ADAPTIVE, keys, {"privacy.cohort_size": smallest - 1}))


def test_no_cohort_is_large_enough() -> None:
    with pytest.raises(PrivacyError, match="no cohort of"):
        user_mechanism(user_config(ADAPTIVE, {"privacy.noise_multiplier": 200.0}))
    assert smallest_cohort(lambda cohort: 200.0, 50, 1000) is None


def test_given_bit_noise_too_small_is_refused() -> None:
    with pytest.raises(PrivacyError, match="bit_noise above 1"):
        user_mechanism(user_config(ADAPTIVE, {"privacy.adaptive.bit_noise": 1.0}))


def test_a_missing_reply_counts_as_half_a_bit() -> None:
    tracker = QuantileTracker(0.2, 0.5, cohort_size=100)
    assert tracker.share(0.0) == 0.5
    assert tracker.share(50.0) == 1.0


def test_nan_sends_zero_and_the_bit_of_a_clipped_update() -> None:
    mechanism = user_mechanism(user_config(ADAPTIVE))
    rows = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [1.0, 0.0]])
    sent = mechanism.contributions(rows, 3.0, torch.ones(3, dtype=torch.bool))
    assert sent.bits.tolist() == [-0.5, -0.5, 0.5]
    assert sent.rows.tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    assert mechanism.not_finite == 2


def test_the_share_that_moves_the_clip_norm_is_reported() -> None:
    mechanism = user_mechanism(user_config(ADAPTIVE))
    combined = mechanism.on_receive(sent_by(mechanism, torch.zeros(50, 4)), zeros(4), 1)
    assert combined.metrics["clip_norm"] == 3.0
    share = combined.metrics["unclipped_share"]
    assert abs(share - 1.0) < 0.4  # deviation 0.05
    assert math.isclose(mechanism.clip_norm, 3.0 * math.exp(-0.2 * (share - 0.5)))


def test_the_clip_norm_survives_a_restart() -> None:
    config = user_config(ADAPTIVE)
    mechanism = user_mechanism(config)
    mean_of(mechanism, sent_by(mechanism, torch.zeros(50, 4)), 4)
    restarted = user_mechanism(config)
    restarted.restore(mechanism.state())
    assert restarted.clip_norm == mechanism.clip_norm != 3.0


def test_a_clip_norm_that_falls_for_ever_stops_where_float32_still_resolves_it() -> None:
    tracker = QuantileTracker(learning_rate=0.2, target_quantile=0.5, cohort_size=100)
    assert tracker.next_clip_norm(LEAST, tracker.share(50.0)) == LEAST
    assert tracker.next_clip_norm(MOST, tracker.share(-50.0)) == MOST
    assert tracker.next_clip_norm(1.0, tracker.share(-1e9)) == MOST


def test_a_forged_bit_counts_as_one_bit() -> None:
    mechanism = user_mechanism(user_config(ADAPTIVE, {"privacy.adaptive.bit_noise": 1000.0}))
    updates = sent_by(mechanism, torch.zeros(1, 4))
    forged = [type(updates[0])("u0", updates[0].tensors, 1.0, {"clip_bit": 1e9})]
    first = mechanism.on_receive(forged, zeros(4), 1).metrics["unclipped_share"]
    honest = user_mechanism(user_config(ADAPTIVE, {"privacy.adaptive.bit_noise": 1000.0}))
    assert first == honest.on_receive(updates, zeros(4), 1).metrics["unclipped_share"]


@pytest.mark.parametrize("forged", [1e300, -1e300])
def test_a_forged_noisy_bit_counts_as_one_that_noise_could_have_made(forged: float) -> None:
    # noise on b has a deviation of 1/20; six of them, and the one bit
    mechanism = user_mechanism(user_config(PARTIES, FIXED, ADAPTIVE))
    updates = sent_by(mechanism, torch.zeros(50, 1))
    updates[0] = type(updates[0])("u0", updates[0].tensors, 1.0, {"clip_bit": forged})
    share = mechanism.on_receive(updates, zeros(1), 1).metrics["unclipped_share"]
    most = 0.5 + 10 * mechanism.numbers.share_of_bit_noise
    assert abs(share - 1) < (0.5 + most) / 50 + 6 / 20


@pytest.mark.parametrize(
    "where", [POISSON, FIXED, PARTIES, {**PARTIES, "privacy.tolerated_dropouts": 10}]
)
def test_the_noise_on_the_bits_is_added_exactly_once(where: Keys) -> None:
    # 1,000 rounds: the measured deviation is off by 2.2 %, the tolerance 14 % is six of it
    mechanism = user_mechanism(user_config(where, ADAPTIVE))
    shares = []
    for number in range(1000):
        mechanism.clip_norm = 3.0
        total = mechanism.open_sum(zeros(1))
        total.add(
            mechanism.contributions(torch.zeros(50, 1), 3.0, torch.ones(50, dtype=torch.bool))
        )
        shares.append(mechanism.combine(total, zeros(1), number).metrics["unclipped_share"])
    numbers = mechanism.numbers
    parts_of_noise = 1.0 if numbers.shares is None else math.sqrt(50 / numbers.shares)
    assert numbers.bit_noise is not None
    wanted = numbers.bit_noise * parts_of_noise / 50
    assert abs(float(torch.tensor(shares).std()) / wanted - 1) < 0.14
    assert abs(sum(shares) / 1000 - 1.0) < 6 * wanted / math.sqrt(1000)
