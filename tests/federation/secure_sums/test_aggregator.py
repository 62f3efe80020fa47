"""The total is bit for bit the sum of the survivors' integers, whoever drops out at which
message, after any crash.
"""

import itertools

import numpy as np
import pytest

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums.aggregator import SumDiscarded
from tests.federation.secure_sums.parts import Federation, plain_sum, random_values


@pytest.mark.parametrize("word", [np.uint64, np.uint32])
def test_everybody_there(word: type) -> None:
    federation = Federation(3)
    values = random_values(federation.identities, 70_000, word)
    assert np.array_equal(federation.sum(values).total(), plain_sum(values, federation.identities))


def test_every_set_of_dropouts_at_every_message() -> None:
    """Ten parties, three may be missing: each of the three at the vector, the signature or the
    opening.
    """
    federation = Federation(10, dropouts=3)
    values = random_values(federation.identities, 5)
    sets = itertools.combinations(federation.identities, 3)
    for number, (gone, stages) in enumerate(
        itertools.product(sets, itertools.product(range(3), repeat=3))
    ):
        if number % 53:  # 3240 cases: some sixty of them, in every combination of stages
            continue
        at = [
            {name for name, stage in zip(gone, stages, strict=True) if stage == wanted}
            for wanted in range(3)
        ]
        held = federation.sum(
            values,
            sum_id=f"{number // 53}/update",
            no_vector=at[0],
            no_signature=at[1],
            no_opening=at[2],
        )
        assert np.array_equal(held.total(), plain_sum(values, held.survivors))
        assert set(held.survivors) == set(federation.identities) - at[0]


def test_crashes_at_every_message_change_nothing() -> None:
    federation = Federation(4, dropouts=1, colluders=0)
    values = random_values(federation.identities, 9)
    held = federation.sum(values, no_vector={"p002"}, crashes=True)
    assert np.array_equal(held.total(), plain_sum(values, held.survivors))
    again = federation.sum(values, no_vector={"p002"}, crashes=True)
    assert again.signatures == held.signatures
    assert again.openings == held.openings
    for name, vector in held.vectors.items():
        assert np.array_equal(vector.values, again.vectors[name].values)
        assert vector.sealed_shares == again.vectors[name].sealed_shares


def test_many_parties_mask_with_some_neighbours_only() -> None:
    federation = Federation(60, dropouts=6)
    values = random_values(federation.identities, 3)
    gone = set(list(federation.identities)[10:16])
    held = federation.sum(values, no_vector=gone)
    assert len(federation.roster.neighbours("p000")) == 30
    assert np.array_equal(held.total(), plain_sum(values, held.survivors))


def test_too_few_vectors_discard_the_sum() -> None:
    federation = Federation(5, dropouts=1)
    with pytest.raises(SumDiscarded, match="tolerated_dropouts=1"):
        federation.sum(random_values(federation.identities, 2), no_vector={"p000", "p001"})


def test_too_few_openings_discard_the_sum() -> None:
    federation = Federation(3)
    held = federation.sum(random_values(federation.identities, 2), no_opening={"p001"})
    with pytest.raises(SumDiscarded, match="opened their shares"):
        held.total()


def test_an_altered_share_is_noticed() -> None:
    federation = Federation(3)
    held = federation.sum(random_values(federation.identities, 2))
    own = dict(held.openings["p001"].own)
    own["p000"] = own["p000"][:-1] + bytes([own["p000"][-1] ^ 1])
    held.openings["p001"] = type(held.openings["p001"])(own, {})
    with pytest.raises(SumDiscarded, match="altered"):
        held.total()


def test_a_vector_that_does_not_fit_the_plan_is_refused() -> None:
    federation = Federation(3)
    held = federation.sum(random_values(federation.identities, 2))
    vector = federation.parties["p000"].mask("2/update", np.zeros(3, dtype=np.uint64))
    held.survivors = ()
    with pytest.raises(MessageError, match="plan says"):
        held.receive("p000", vector)


def test_a_late_vector_is_not_added() -> None:
    federation = Federation(4, dropouts=1, colluders=0)
    held = federation.sum(random_values(federation.identities, 2), no_vector={"p003"})
    with pytest.raises(MessageError, match="closed"):
        held.receive(
            "p003", federation.parties["p003"].mask("1/update", np.zeros(2, dtype=np.uint64))
        )
