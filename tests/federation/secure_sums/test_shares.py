"""Any threshold of shares gives the seed back, fewer say nothing about it, and the same key
gives the same shares.
"""

import itertools

import pytest

from homo_dp.core.errors import MessageError
from homo_dp.federation.secure_sums.shares import combine, split

SECRET = bytes(range(32))


def test_every_subset_of_the_threshold_gives_the_secret() -> None:
    shares = split(SECRET, 3, 5, b"k" * 32)
    for chosen in itertools.combinations(range(5), 3):
        assert combine({number + 1: shares[number] for number in chosen}) == SECRET


def test_fewer_shares_fit_every_secret_equally_well() -> None:
    """With one share short of the threshold, a share exists for every candidate, so nothing is
    ruled out.
    """
    shares = split(SECRET, 2, 2, b"k" * 32)
    other = split(bytes(32), 2, 2, b"k" * 32)
    assert shares[0] != SECRET.rjust(33, b"\0")
    assert shares != other


def test_the_largest_secret_survives() -> None:
    shares = split(b"\xff" * 32, 2, 3, b"k" * 32)
    assert combine({2: shares[1], 3: shares[2]}) == b"\xff" * 32


def test_long_polynomials_come_from_the_key() -> None:
    shares = split(SECRET, 400, 401, b"k" * 32)
    assert shares == split(SECRET, 400, 401, b"k" * 32)
    assert combine({number: shares[number - 1] for number in range(2, 402)}) == SECRET


@pytest.mark.parametrize("share", [b"", b"\0" * 32, b"\xff" * 33])
def test_refuses_what_is_no_share(share: bytes) -> None:
    shares = split(SECRET, 2, 3, b"k" * 32)
    with pytest.raises(MessageError, match="share"):
        combine({1: shares[0], 2: share})
