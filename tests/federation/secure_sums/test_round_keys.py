"""Keys of single sums: opened for one sum only, kept before anybody masks, and garbage costs no
more than a round.
"""

import numpy as np
import pytest

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums import agreement
from homo_dp.federation.secure_sums.aggregator import SumDiscarded
from homo_dp.federation.secure_sums.round_keys import listed_seeds
from homo_dp.federation.secure_sums.shares import combine
from tests.federation.secure_sums.parts import SUMS, Federation, random_values


def test_round_keys_are_of_one_sum_and_taken_once() -> None:
    federation = Federation(4, dropouts=1, colluders=0)
    values = random_values(federation.identities, 2)
    held = federation.sum(values, no_vector={"p003"})
    key = combine(held._shares("keys", "p003"))
    party = federation.parties["p003"]
    assert key == party._keys.own_seed("round key", "1/update")
    other = listed_seeds(key, federation.lists["p003"]["2/update"], 3)  # opens no other list
    assert not {
        agreement.derived(secret, "mask", "2/update") for secret in party._secrets.values()
    } & set(other)
    again = dict.fromkeys(federation.roster.neighbours("p000"), b"x" * 50)
    with pytest.raises(MessageError, match="changed"):
        federation.parties["p000"].keep_round_keys(SUMS, again)


def test_nobody_masks_before_the_round_keys_of_others_are_kept() -> None:
    federation = Federation(4, dropouts=1, colluders=0, meet=False)
    keys = {name: party.keys() for name, party in federation.parties.items()}
    sealed = {name: party.introduce(keys) for name, party in federation.parties.items()}
    federation.parties["p003"].meet(
        {peer: made["p003"] for peer, made in sealed.items() if "p003" in made}
    )
    with pytest.raises(MessageError, match="has not met"):
        federation.parties["p003"].mask("1/update", np.zeros(1, dtype=np.uint64))
    with pytest.raises(MessageError, match="shares of round keys"):
        federation.parties["p003"].keep_round_keys(SUMS, {})


@pytest.mark.parametrize("what", ["list", "row"])
def test_a_missing_party_that_left_garbage_costs_the_round_and_nothing_else(what: str) -> None:
    """A list that names other seeds does not fit the commitments; shares that cannot be unsealed
    are too few.
    """
    federation = Federation(4, dropouts=1, colluders=0)
    if what == "list":
        federation.lists["p003"] = dict.fromkeys(SUMS, bytes(96))
        held = federation.sum(random_values(federation.identities, 2), no_vector={"p003"})
    else:
        for name in ("p000", "p001"):
            federation.parties[name]._held_keys.pop("p003")
        held = federation.sum(random_values(federation.identities, 2), no_vector={"p003"})
        assert not held.can_open
    with pytest.raises(SumDiscarded):
        held.total()
