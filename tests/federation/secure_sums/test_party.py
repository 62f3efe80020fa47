"""What a hostile aggregator may try, and what a party answers."""

import contextlib

import numpy as np
import pytest

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums.masks import Vector, add_mask
from homo_dp.federation.secure_sums.party import InMemory, Opening, SecureSumParty
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.federation.secure_sums.round_keys import listed_seeds
from homo_dp.federation.secure_sums.shares import combine
from tests.federation.secure_sums.parts import Federation, random_values


def test_keys_are_taken_once() -> None:
    federation = Federation(3)
    keys = {name: party.keys() for name, party in federation.parties.items()}
    fresh = SecureSumParty(
        federation.roster, "p001", federation.identities["p001"].sign, InMemory()
    )
    keys["p001"] = fresh.keys()
    with pytest.raises(MessageError, match="swaps keys"):
        federation.start("p000").introduce(keys)


@pytest.mark.parametrize("left_out", ["p000", "p002"])
def test_a_smaller_roster_is_refused(left_out: str) -> None:
    federation = Federation(3, meet=False)
    keys = {name: party.keys() for name, party in federation.parties.items() if name != left_out}
    with pytest.raises(MessageError, match=left_out):
        federation.parties["p001"].introduce(keys)


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

    Ten parties, three may be missing. Half of them is told of one set, the other half of another;
    without signatures each half would open seeds for its own set, and the aggregator would get two
    sums of few parties.
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
        # signatures under the other set do not count
        with pytest.raises(MessageError, match="is not signed"):
            federation.parties[name].open("1/update", everything)


def two_sets_told(federation: Federation, values: dict[str, Vector]) -> bool:
    """Ten parties, half told that the last three are missing, half that the first three are:
    whether the aggregator gets the numbers of one of the first. It needs the party's own seed (of
    those told the first set) and its round key (of those told the second).
    """
    names = list(federation.identities)
    vectors = {name: federation.parties[name].mask("1/update", values[name]) for name in names}
    openings: dict[str, Opening] = {}
    for number, name in enumerate(names):
        told = names[:7] if number < 5 else names[3:]
        shares = {peer: vectors[peer].sealed_shares[name] for peer in told if peer != name}
        signature = federation.parties[name].agree("1/update", told, shares)
        with contextlib.suppress(MessageError):
            openings[name] = federation.parties[name].open("1/update", {name: signature})
    # everybody holds a share of every seed and key
    place = {name: number for number, name in enumerate(names, 1)}
    one, others = names[0], names[1:]
    with contextlib.suppress(MessageError):
        found = vectors[one].values.copy()
        add_mask(
            found,
            combine({place[n]: o.own[one] for n, o in openings.items() if one in o.own}),
            subtract=True,
        )
        key = combine({place[n]: o.keys[one] for n, o in openings.items() if one in o.keys})
        for other, seed in zip(
            others, listed_seeds(key, federation.lists[one]["1/update"], 9), strict=True
        ):
            add_mask(found, seed, subtract=one < other)
        return np.array_equal(found, values[one])
    return False


@pytest.mark.parametrize(
    ("signatures", "threshold"), [(True, 6), (True, 5), (False, 6), (False, 5)]
)
def test_without_signatures_and_majorities_two_sets_show_a_partys_numbers(
    signatures: bool, threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not signatures:
        monkeypatch.setattr(SecureSumParty, "_check_quorum", lambda *_: None)
    # of ten holders with a colluder, 6 is the least
    monkeypatch.setattr(Roster, "share_threshold", threshold)
    federation = Federation(10, dropouts=3, colluders=1)
    values = random_values(federation.identities, 5)
    assert two_sets_told(federation, values) is (not signatures and threshold == 5)


def test_one_signature_does_not_count_twice() -> None:
    federation = Federation(4, dropouts=1, colluders=0)
    held = federation.sum(
        random_values(federation.identities, 1), no_opening=set(federation.identities)
    )
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
        assert set(opening.keys) == {"p004"}
