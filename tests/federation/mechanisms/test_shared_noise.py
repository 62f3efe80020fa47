"""What is said of shared noise: how much of it there is, who adds it, and nothing where nobody
shares.
"""

import math

import pytest

from homo_dp.federation.mechanisms.shared_noise import noise_label, shared_figures, shared_note
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum


def test_figures_of_a_shared_sum() -> None:
    share = NoiseShare(10, dropouts=2, colluders=1)
    found = shared_figures(PrivateSum(100, 2.0, 3.0, 1000, share=share), unit=5.0)
    assert (found["secure_aggregation"], found["noise_shared_by"]) == ("on", 10)
    assert (found["tolerated_dropouts"], found["tolerated_colluders"]) == (2, 1)
    assert found["noise_share_sigma"] == pytest.approx(5.0 * 6.0 / math.sqrt(7))
    total = found["noise_of_total_sigma"]
    assert isinstance(total, float)
    assert total > 5.0 * 6.0  # three more than are needed add theirs too


def test_figures_of_noise_that_nobody_shares() -> None:
    found = shared_figures(PrivateSum(100, 2.0, 3.0, 1000))
    assert (
        found["secure_aggregation"],
        found["noise_shared_by"],
        found["tolerated_colluders"],
    ) == ("off", None, None)
    assert found["noise_share_sigma"] == found["noise_of_total_sigma"] == 6.0


def test_words_name_the_numbers() -> None:
    share = NoiseShare(10, dropouts=2, colluders=3)
    assert noise_label("noise", None) == "noise"
    assert "1/sqrt(5)" in noise_label("noise", share)
    assert "up to 3 of the parties" in shared_note(share)
    assert "up to 2 missing" in shared_note(share)
