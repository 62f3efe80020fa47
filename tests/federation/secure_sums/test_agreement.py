"""Keys of a run: only the peers of one's own config, bound to the run, with a secret that needs
both halves.
"""

from typing import Any

import numpy as np
import pytest

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums import agreement
from homo_dp.federation.secure_sums.agreement import RunKeys
from homo_dp.federation.secure_sums.party import InMemory, SecureSumParty
from homo_dp.federation.secure_sums.roster import Roster
from tests.federation.secure_sums.parts import Federation, plain_sum, random_values


@pytest.mark.skipif(not agreement.HAS_MLKEM, reason="this OpenSSL has no ML-KEM")
@pytest.mark.parametrize("without", [(), ("p001",), ("p000", "p001", "p002")])
def test_ml_kem_is_beside_x25519_wherever_both_sides_have_it(
    without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parties with and without it add up; a pair that has it masks with both secrets."""
    used: list[tuple[tuple[str, str], int]] = []
    real = agreement.pair_secret

    def noted(roster: Any, keys: Any, public: Any, pair: tuple[str, str], mlkem: bytes) -> bytes:
        used.append((pair, len(mlkem)))
        return real(roster, keys, public, pair, mlkem)

    monkeypatch.setattr(agreement, "pair_secret", noted)
    federation = Federation(3, meet=False)
    for name in without:
        federation.kept[name].kept["keys"] = RunKeys.new().raw[:64]
        federation.parties[name] = federation.start(name)
    federation.meet()
    assert all(size == (0 if set(pair) & set(without) else 32) for pair, size in used)
    values = random_values(federation.identities, 3)
    assert np.array_equal(federation.sum(values).total(), plain_sum(values, federation.identities))


def test_a_pair_secret_needs_both_halves() -> None:
    federation = Federation(2, meet=False)
    keys = {name: party._keys for name, party in federation.parties.items()}
    public = {name: key.public for name, key in keys.items()}
    made = [
        agreement.pair_secret(federation.roster, keys[name], public, (name, peer), mlkem)
        for name, peer, mlkem in (
            ("p000", "p001", b"a"),
            ("p001", "p000", b"a"),
            ("p000", "p001", b"b"),
        )
    ]
    assert made[0] == made[1] != made[2]


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
    keys["p001"] = SecureSumParty(
        other, "p001", federation.identities["p001"].sign, InMemory()
    ).keys()
    with pytest.raises(MessageError, match="is not signed"):
        federation.parties["p000"].introduce(keys)


def test_a_secret_of_one_peer_does_not_pass_for_another() -> None:
    federation = Federation(3, meet=False)
    keys = {name: party.keys() for name, party in federation.parties.items()}
    sealed = {name: party.introduce(keys) for name, party in federation.parties.items()}
    with pytest.raises(MessageError, match="is not signed"):
        federation.parties["p002"].meet(
            {"p000": sealed["p000"]["p001"], "p001": sealed["p001"]["p002"]}
        )


# seeds of 32 bits would meet 7 times among so many, and never with a chance of 0.0007
MANY = 250_000


@pytest.mark.parametrize("whose", ["own", "pair"])
def test_seeds_are_as_many_as_there_are_sums(whose: str) -> None:
    """No two sums have the same seed, which seeds of 32 bits, however they are spread out, would
    have by chance.
    """
    keys, secret = RunKeys(bytes(range(64))), bytes(range(32))
    sums = (f"{number}/update" for number in range(MANY))
    if whose == "own":
        seeds = {keys.own_seed("mask", name) for name in sums}
    else:
        seeds = {agreement.derived(secret, "mask", name) for name in sums}
    assert len(seeds) == MANY
    # each byte has any value
    assert all(len(set(column)) == 256 for column in zip(*list(seeds)[:5000], strict=True))
