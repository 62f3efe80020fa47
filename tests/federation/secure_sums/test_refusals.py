"""What a hostile aggregator may try, and what a party answers."""

import numpy as np
import pytest

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums.party import InMemory, SecureSumParty
from homo_dp.federation.secure_sums.roster import Roster
from tests.federation.secure_sums.parts import Federation, random_values


def test_an_aggregator_cannot_put_in_a_key_of_its_own() -> None:
    federation = Federation(3, meet=False)
    stranger = Federation(3, meet=False)  # other identity keys under the same names
    keys = {name: party.keys() for name, party in federation.parties.items()}
    keys["p001"] = stranger.parties["p001"].keys()
    with pytest.raises(MessageError, match="p001 kind=keys: is not signed"):
        federation.parties["p000"].introduce(keys)


def test_keys_of_another_run_or_roster_are_refused() -> None:
    federation = Federation(3, meet=False)
    other = Roster("another run", federation.roster.identities, 0, 1)
    keys = {name: party.keys() for name, party in federation.parties.items()}
    keys["p001"] = SecureSumParty(other, "p001", federation.identities["p001"].sign, InMemory()).keys()
    with pytest.raises(MessageError, match="is not signed"):
        federation.parties["p000"].introduce(keys)


def test_keys_are_taken_once() -> None:
    federation = Federation(3)
    keys = {name: party.keys() for name, party in federation.parties.items()}
    fresh = SecureSumParty(federation.roster, "p001", federation.identities["p001"].sign, InMemory())
    keys["p001"] = fresh.keys()
    with pytest.raises(MessageError, match="swaps keys"):
        federation.start("p000").introduce(keys)


@pytest.mark.parametrize("left_out", ["p000", "p002"])
def test_a_smaller_roster_is_refused(left_out: str) -> None:
    federation = Federation(3, meet=False)
    keys = {name: party.keys() for name, party in federation.parties.items() if name != left_out}
    with pytest.raises(MessageError, match=left_out):
        federation.parties["p001"].introduce(keys)


def test_a_secret_of_one_peer_does_not_pass_for_another() -> None:
    federation = Federation(3, meet=False)
    keys = {name: party.keys() for name, party in federation.parties.items()}
    sealed = {name: party.introduce(keys) for name, party in federation.parties.items()}
    with pytest.raises(MessageError, match="is not signed"):
        federation.parties["p002"].meet({"p000": sealed["p000"]["p001"], "p001": sealed["p001"]["p002"]})


def test_a_second_set_of_survivors_is_refused_also_after_a_crash() -> None:
    federation = Federation(4, dropouts=1, colluders=0)
    federation.sum(random_values(federation.identities, 1))
    for party in (federation.parties["p000"], federation.start("p000")):
        with pytest.raises(MessageError, match="second set"):
            party.agree("1/update", ["p000", "p001", "p002"], {})


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        (["p000", "p001"], "no fewer than 3"),
        (["p001", "p002", "p003"], "not among the survivors"),
        (["p000", "p001", "p001", "p002"], "each once"),
        (["p000", "p001", "p002", "stranger"], "parties of the run"),
    ],
)
def test_a_set_that_cannot_be_is_refused(survivors: list[str], why: str) -> None:
    federation = Federation(4, dropouts=1, colluders=0)
    with pytest.raises(MessageError, match=why):
        federation.parties["p000"].agree("1/update", survivors, {})


def test_shares_are_opened_only_for_a_quorum_under_the_same_set() -> None:
    """The attack that yields two smaller sums: different sets told to different parties.

    Ten parties, three may be missing. Half of them is told of one set, the other half of another; without signatures
    each half would open seeds for its own set, and the aggregator would get two sums of few parties.
    """
    federation = Federation(10, dropouts=3, colluders=1)
    names = list(federation.identities)
    values = random_values(names, 1)
    vectors = {name: federation.parties[name].mask("1/update", values[name]) for name in names}
    sets = {half: [*half, *names[3:7]] for half in (tuple(names[:3]), tuple(names[7:]))}
    signatures: dict[tuple[str, ...], dict[str, bytes]] = {half: {} for half in sets}
    told = {name: half for half in sets for name in half} | {
        name: list(sets)[number % 2] for number, name in enumerate(names[3:7])
    }
    for name, half in told.items():
        shares = {peer: vectors[peer].sealed_shares[name] for peer in sets[half] if peer != name}
        signatures[half][name] = federation.parties[name].agree("1/update", sets[half], shares)
    for name, half in told.items():
        assert len(signatures[half]) < federation.roster.quorum
        with pytest.raises(MessageError, match="6 must have"):
            federation.parties[name].open("1/update", signatures[half])
        everything = {name: made for both in signatures.values() for name, made in both.items()}
        with pytest.raises(MessageError, match="is not signed"):  # signatures under the other set do not count
            federation.parties[name].open("1/update", everything)


def test_one_signature_does_not_count_twice() -> None:
    federation = Federation(4, dropouts=1, colluders=0)
    held = federation.sum(random_values(federation.identities, 1), no_opening=set(federation.identities))
    with pytest.raises(MessageError, match="1 parties signed"):
        federation.parties["p000"].open("1/update", {"p000": held.signatures["p000"]})


def test_nothing_is_masked_before_the_peers_are_met() -> None:
    federation = Federation(3, meet=False)
    with pytest.raises(MessageError, match="has not met"):
        federation.parties["p000"].mask("1/update", np.zeros(1, dtype=np.uint64))


def test_never_both_seeds_of_one_peer() -> None:
    federation = Federation(5, dropouts=1)
    held = federation.sum(random_values(federation.identities, 1), no_vector={"p004"})
    for opening in held.openings.values():
        assert "p004" not in opening.own
        assert all(set(pairs) == {"p004"} for pairs in opening.pairs.values())
