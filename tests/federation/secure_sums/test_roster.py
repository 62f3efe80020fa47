"""Thresholds: two sets cannot both reach a quorum, colluders cannot open a seed, honest
survivors stay connected.
"""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homo_dp.core.errors import ConfigError
from homo_dp.federation.secure_sums.roster import Roster


def roster(parties: int, dropouts: int, colluders: int) -> Roster:
    return Roster(
        "run",
        {f"p{number:03d}": bytes([number % 256]) for number in range(parties)},
        dropouts,
        colluders,
    )


@given(st.integers(2, 200), st.integers(0, 40), st.integers(0, 40))
def test_what_is_accepted_keeps_its_guarantees(parties: int, dropouts: int, colluders: int) -> None:
    try:
        made = roster(parties, dropouts, colluders)
    except ConfigError:
        return
    assert made.quorum + made.quorum - colluders > parties  # two signed sets share an honest signer
    assert made.quorum <= parties - dropouts
    holders = len(made.holders(made.names[0]))
    assert colluders < made.share_threshold <= holders - min(dropouts, holders)
    assert dropouts + colluders < max(len(made.neighbours(made.names[0])), 2) or parties <= 3


@pytest.mark.parametrize("parties", [51, 60, 90])
def test_colluders_and_dropouts_never_take_all_neighbours_of_a_party(parties: int) -> None:
    """Its own seed is opened in every sum, so the mask with one honest survivor is all that
    hides its numbers.
    """
    for dropouts, colluders in itertools.product(range(0, 30, 5), range(parties)):
        with contextlib.suppress(ConfigError):
            made = roster(parties, dropouts, colluders)
            neighbours = len(made.neighbours(made.names[0]))
            assert dropouts + colluders < neighbours or neighbours == parties - 1
            assert made.share_threshold <= len(made.holders(made.names[0])) - dropouts


@given(st.integers(51, 90), st.data())
def test_honest_survivors_stay_connected_on_the_ring(parties: int, data: st.DataObject) -> None:
    made = roster(parties, 9, 6)
    gone = data.draw(st.sets(st.sampled_from(made.names), min_size=15, max_size=15))
    left = set(made.names) - gone
    reached, edge = set(), [min(left)]
    while edge:
        name = edge.pop()
        if name not in reached:
            reached.add(name)
            edge.extend(set(made.neighbours(name)) & left)
    assert reached == left


def test_neighbours_are_mutual() -> None:
    made = roster(100, 10, 1)
    for one, other in itertools.combinations(made.names, 2):
        assert (other in made.neighbours(one)) == (one in made.neighbours(other))


@pytest.mark.parametrize(
    ("parties", "dropouts", "colluders"), [(1, 0, 0), (2, 1, 0), (2, 0, 2), (10, 6, 1), (3, -1, 0)]
)
def test_refuses_what_cannot_hold(parties: int, dropouts: int, colluders: int) -> None:
    with pytest.raises(ConfigError, match="tolerated_dropouts"):
        roster(parties, dropouts, colluders)


def test_one_key_under_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="two names"):
        Roster("run", {"a": b"key", "b": b"other", "c": b"key"})
