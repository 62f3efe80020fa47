"""What the aggregator holds, minus the total, is noise: each attack works on a broken party and
fails on ours.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import stats

from homo_dp.federation.secure_sums import agreement
from homo_dp.federation.secure_sums.aggregator import SecureSum
from homo_dp.federation.secure_sums.agreement import RunKeys
from homo_dp.federation.secure_sums.masks import Vector, add_mask
from homo_dp.federation.secure_sums.party import SecureSumParty
from homo_dp.federation.secure_sums.roster import Roster
from homo_dp.federation.secure_sums.round_keys import listed_seeds
from homo_dp.federation.secure_sums.shares import combine
from tests.federation.secure_sums.parts import Federation, random_values

NUMBERS = 4096


def same_total(federation: Federation) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Two inputs with the same total: small numbers, and the same moved by 2^40 from one party
    to the next.
    """
    generator = np.random.default_rng(7)
    one = {
        name: generator.integers(0, 100, NUMBERS, dtype=np.uint64) for name in federation.identities
    }
    other = {name: values.copy() for name, values in one.items()}
    other["p000"] += np.uint64(1 << 40)
    other["p001"] -= np.uint64(1 << 40)
    return one, other


def byte_p_values(vectors: dict[str, Vector]) -> list[float]:
    """Chi-squared of the bytes of every vector and of every difference and sum of two."""
    names = list(vectors)
    seen = [vectors[name] for name in names]
    seen += [vectors[one] + vectors[other] for one in names for other in names if one < other]
    seen += [vectors[one] - vectors[other] for one in names for other in names if one < other]
    return [
        float(stats.chisquare(np.bincount(v.view(np.uint8), minlength=256)).pvalue) for v in seen
    ]


def test_inputs_with_the_same_total_look_the_same() -> None:
    """27 statistics for each input: all of them are uniform bytes. False alarm: 54 * 1e-6."""
    federation = Federation(4, dropouts=1, colluders=0)
    for number, values in enumerate(same_total(federation)):
        held = federation.sum(values, sum_id=f"{number}/update")
        # what the aggregator has after it took all own masks off
        for name, vector in held.vectors.items():
            own = federation.parties[name]._keys.own_seed("mask", f"{number}/update")
            add_mask(vector.values, own, subtract=True)
        assert (
            min(byte_p_values({name: vector.values for name, vector in held.vectors.items()}))
            > 1e-6
        )


def test_bytes_without_masks_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homo_dp.federation.secure_sums.party.add_mask", lambda *_, **__: None)
    federation = Federation(3)
    held = federation.sum(same_total(federation)[0])
    assert min(byte_p_values({name: vector.values for name, vector in held.vectors.items()})) < 1e-6


def late_vector_opened(federation: Federation, values: dict[str, Vector]) -> bool:
    """p003's vector comes after the survivors opened their seeds with it: does it show p003's
    numbers?
    """
    held = federation.sum(values, no_vector={"p003"})
    late = federation.parties["p003"].mask("1/update", values["p003"]).values.copy()
    key = combine(held._shares("keys", "p003"))
    neighbours = federation.roster.neighbours("p003")
    for peer, seed in zip(
        neighbours, listed_seeds(key, held.lists["p003"], len(neighbours)), strict=True
    ):
        add_mask(late, seed, subtract=peer > "p003")
    return np.array_equal(late, values["p003"])


def test_a_late_vector_stays_masked() -> None:
    federation = Federation(4, dropouts=1, colluders=0)
    assert not late_vector_opened(federation, random_values(federation.identities, 5))


def test_a_late_vector_without_its_own_mask_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(4, dropouts=1, colluders=0)
    own = {
        name: party._keys.own_seed("mask", "1/update") for name, party in federation.parties.items()
    }

    def no_own_mask(
        values: Vector, seed: bytes, terms: bytes = b"", *, subtract: bool = False
    ) -> None:
        if seed not in own.values():
            add_mask(values, seed, terms, subtract=subtract)

    monkeypatch.setattr("homo_dp.federation.secure_sums.party.add_mask", no_own_mask)
    assert late_vector_opened(federation, random_values(federation.identities, 5))


def difference_of_sums_shown(federation: Federation) -> bool:
    """Whether two vectors of one party, subtracted, show how its numbers changed from one sum to
    the next.
    """
    first, second = (random_values(federation.identities, 5, seed=seed) for seed in (1, 2))
    party = federation.parties["p000"]
    before, after = party.mask("1/update", first["p000"]), party.mask("2/update", second["p000"])
    return np.array_equal(after.values - before.values, second["p000"] - first["p000"])


def test_seeds_are_of_one_sum() -> None:
    assert not difference_of_sums_shown(Federation(3))


def test_reused_seeds_would_show_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    real = agreement.derived
    monkeypatch.setattr(
        agreement, "derived", lambda secret, purpose, _: real(secret, purpose, "every sum")
    )
    own = RunKeys.own_seed
    monkeypatch.setattr(
        RunKeys, "own_seed", lambda keys, purpose, _: own(keys, purpose, "every sum")
    )
    assert difference_of_sums_shown(Federation(3))


def small_seed(secret: bytes, bits: int = 10) -> bytes:
    number = int.from_bytes(hashlib.sha256(secret).digest()[:4]) % (1 << bits)
    return hashlib.sha256(b"small %d" % number).digest()


def seeds_guessed(held: SecureSum, candidates: list[bytes]) -> bool:
    """Whether some difference of two candidate keystreams turns the first party's vector into
    small numbers.
    """
    vector = held.vectors["p000"].values[:4]
    streams = []
    for seed in candidates:
        stream = np.zeros(4, dtype=np.uint64)
        add_mask(stream, seed)
        streams.append(stream)
    table = np.array(streams)
    for stream in streams:  # own mask + mask with the one peer
        left = vector - stream
        if ((left[None, :] - table) < 100).all(axis=1).any():
            return True
    return False


def test_few_seeds_would_be_guessed_and_ours_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds of 32 bits take 2^32 guesses and a table; the same attack on 10 bits takes a
    thousand.
    """
    candidates = [hashlib.sha256(b"small %d" % number).digest() for number in range(1 << 10)]
    federation = Federation(2)
    values = {name: np.full(4, 3, dtype=np.uint64) for name in federation.identities}
    assert not seeds_guessed(federation.sum(values), candidates)
    real = agreement.derived
    monkeypatch.setattr(agreement, "derived", lambda *facts: small_seed(real(*facts)))
    own = RunKeys.own_seed
    monkeypatch.setattr(RunKeys, "own_seed", lambda *facts: small_seed(own(*facts)))
    assert seeds_guessed(federation.sum(values), candidates)


def test_every_seed_has_32_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def note(values: Vector, seed: bytes, terms: bytes = b"", *, subtract: bool = False) -> None:
        sizes.append(len(set(seed)) and len(seed))

    monkeypatch.setattr("homo_dp.federation.secure_sums.party.add_mask", note)
    federation = Federation(3)
    federation.sum(random_values(federation.identities, 1))
    assert set(sizes) == {32}
    assert len(sizes) == 9


def shown_by_neighbours(federation: Federation) -> bool:
    """Whether the colluding parties around p000 on the ring, with what everybody opens, have its
    numbers.
    """
    values = random_values(federation.identities, 3)
    held = federation.sum(values)
    found = held.vectors["p000"].values.copy()
    add_mask(found, combine(held._shares("own", "p000")), subtract=True)
    ring = [*federation.roster.names[1:], *federation.roster.names[1:]]
    half, rest = federation.roster.colluders // 2, len(federation.roster.names) - 1
    for peer in ring[rest - half : rest + half]:
        if peer in federation.roster.neighbours("p000"):
            add_mask(
                found,
                agreement.derived(federation.parties[peer]._secrets["p000"], "mask", "1/update"),
                subtract=True,
            )
    return np.array_equal(found, values["p000"])


def test_as_many_colluders_as_tolerated_do_not_surround_a_party(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a ring of 30 neighbours 30 colluders would be all of them."""
    assert not shown_by_neighbours(Federation(51, colluders=30))
    monkeypatch.setattr(Roster, "_reach", 15)
    assert shown_by_neighbours(Federation(51, colluders=30))


def test_colluders_cannot_open_a_seed_alone() -> None:
    """With the threshold that the roster sets; a threshold of the number of colluders would give
    it to them.
    """
    federation = Federation(5, colluders=2)
    assert federation.roster.share_threshold > 2
    party: SecureSumParty = federation.parties["p000"]
    rows = party._own_shares("1/update")
    two = {
        number: rows[name]
        for number, name in enumerate(federation.roster.holders("p000"), 1)
        if name > "p002"
    }
    assert len(two) == 2
    own = party._keys.own_seed("mask", "1/update")
    assert _combined(two) != own
    everybody = {
        number: rows[name] for number, name in enumerate(federation.roster.holders("p000"), 1)
    }
    assert _combined(everybody) == own


def _combined(rows: dict[int, bytes]) -> bytes | None:
    try:
        return combine(rows)
    except ValueError:
        return None


def odd_words_shown(terms: dict[str, bytes]) -> bool:
    """A party masks words of 32 bits and its peer words of 64, which an aggregator gets by telling
    them different figures. One keystream laid over both: the upper half of a peer's word, where its
    small number leaves nothing but a borrow, takes the mask off an odd word of the party.
    """
    federation = Federation(2)
    names = ("p000", "p001")
    values: dict[str, Vector] = {
        "p000": np.arange(100, 140, dtype=np.uint32),
        "p001": np.arange(7, 47, dtype=np.uint64),
    }
    found: dict[str, Vector] = {}
    for name in names:
        party = federation.parties[name]
        found[name] = party.mask("1/update", values[name], terms[name]).values
        own = party._keys.own_seed("mask", "1/update")  # which everybody opens
        add_mask(found[name], own, terms[name], subtract=True)
    upper = (found["p001"][:20] >> np.uint64(32)).astype(np.uint32)
    left = found["p000"][1::2] + upper
    return bool(np.isin(values["p000"][1::2] - left, [0, 1]).all())


def test_words_of_two_sizes_show_numbers_under_one_keystream_and_not_under_terms() -> None:
    assert odd_words_shown(dict.fromkeys(("p000", "p001"), b""))
    assert not odd_words_shown({"p000": b"32 bits", "p001": b"64 bits"})
