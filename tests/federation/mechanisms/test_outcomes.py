"""The release of a sum names the event and the noise of the sum that was asked."""

import torch

from homo_dp.federation.mechanisms.outcomes import Release
from homo_dp.federation.protocol.round_sums import SUM, RoundSum
from homo_dp.privacy.private_sum import NoiseShare, PrivateSum


def test_a_release_of_a_sum_has_its_event_and_the_noise_of_one_party() -> None:
    shared = PrivateSum(2, 1.0, 3.0, 10, share=NoiseShare(5))
    asked = RoundSum("second_moment", shared, "")
    release = Release.of_sum(asked, torch.zeros(2))
    assert (release.event, release.sigma) == (asked.event, shared.party_sigma)
    assert release.relation == shared.relation
    assert list(release.tensors) == [SUM]
