"""Who holds which row when one public table is split over parties: positions only, drawn from a
public seed.

Exact shares depend on the number of rows, so private tables are split by a hash of each row
(`hashed_split.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from homo_dp.core.errors import DataError

_DRAWS = 100  # Dirichlet shares are drawn again while some party would be left without a row


def party_names(parties: int) -> list[str]:
    """Names of the parties of a partitioned table.

    >>> party_names(3)
    ['party_1', 'party_2', 'party_3']
    """
    if parties < 1:
        raise DataError(f"data.partition.parties={parties} must be at least 1")
    return [f"party_{number}" for number in range(1, parties + 1)]


def iid(rows: int, parties: int, seed: int) -> list[np.ndarray]:
    """Equal random shares (sizes differ by at most one); every part is sorted, so row order is
    kept.
    """
    _enough(rows, parties, "rows")
    order = _generator(seed, "iid").permutation(rows)
    return [np.sort(part) for part in np.array_split(order, parties)]


def by_label(codes: np.ndarray, parties: int, seed: int) -> list[np.ndarray]:
    """Rows sorted by label and cut into equal shards: the hardest split, most parties see one or
    two classes.
    """
    _enough(len(codes), parties, "rows")
    shuffled = _generator(seed, "by_label").permutation(len(codes))
    order = shuffled[np.argsort(codes[shuffled], kind="stable")]
    return [np.sort(part) for part in np.array_split(order, parties)]


def dirichlet_shares(
    codes: np.ndarray, parties: int, alpha: float, seed: int, classes: int = 0
) -> np.ndarray:
    """Shares (classes x parties) drawn from Dirichlet(alpha) so that no party is left without a
    row.
    """
    _check_alpha(alpha)
    _enough(len(codes), parties, "rows")
    counts = np.bincount(codes, minlength=classes)
    generator = _generator(seed, "dirichlet")
    for _ in range(_DRAWS):
        shares = generator.dirichlet(np.full(parties, alpha), size=len(counts))
        sizes = sum(
            np.diff(_cuts(count, share)) for count, share in zip(counts, shares, strict=True)
        )
        if np.all(sizes > 0):
            return shares
    raise DataError(
        f"data.partition.alpha={alpha} leaves one of {parties} parties without a row in {_DRAWS} "
        "draws; raise alpha, use fewer parties or another train.seed"
    )


def public_shares(classes: int, parties: int, alpha: float, seed: int) -> np.ndarray:
    """Shares (classes x parties) drawn from Dirichlet(alpha) without a look at the rows."""
    _check_alpha(alpha)
    return _generator(seed, "dirichlet").dirichlet(np.full(parties, alpha), size=classes)


def dirichlet(codes: np.ndarray, shares: np.ndarray, seed: int) -> list[np.ndarray]:
    """Rows of every class dealt out in the given shares (Hsu, Qi & Brown 2019)."""
    generator = _generator(seed, "dirichlet-rows")
    parts: list[list[np.ndarray]] = [[] for _ in range(shares.shape[1])]
    for code, share in enumerate(shares):
        rows = generator.permutation(np.flatnonzero(codes == code))
        for part, piece in zip(parts, np.split(rows, _cuts(len(rows), share)[1:-1]), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def by_group(groups: np.ndarray, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """From parts of users (or other groups) to parts of rows: a group is never torn apart."""
    owner = np.empty(sum(len(part) for part in parts), dtype=np.int64)
    for number, part in enumerate(parts):
        owner[part] = number
    return by_code(owner[groups], len(parts))


def by_code(codes: np.ndarray, parties: int) -> list[np.ndarray]:
    """Positions of every code 0, 1, ..., in one pass however many parties there are."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(1, parties)))


def hold_out(rows: int, fraction: float, seed: int, party: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions (train, test) of one party's public rows, an exact share of them."""
    check_fraction(fraction)
    order = _generator(seed, f"test/{party}").permutation(rows)
    tests = min(round(rows * fraction), max(rows - 1, 0))
    return np.sort(order[tests:]), np.sort(order[:tests])


def check_fraction(fraction: float) -> float:
    """The share of rows to hold out, if it is one."""
    if not 0 <= fraction < 1:
        raise DataError(f"data.test_fraction={fraction} must be in [0, 1)")
    return fraction


def _generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def _check_alpha(alpha: float) -> None:
    if not alpha > 0:
        raise DataError(
            f"data.partition.alpha={alpha} must be > 0 (0.1 very uneven, 100 nearly even)"
        )


def _cuts(count: int, share: np.ndarray) -> np.ndarray:
    cuts = np.round(np.concatenate([[0.0], np.cumsum(share)]) * count).astype(np.int64)
    cuts[-1] = count
    return cuts


def _enough(rows: int, parties: int, what: str) -> None:
    if rows < parties:
        raise DataError(
            f"data.partition.parties={parties} is more than the {rows} {what} there are; use fewer "
            "parties"
        )
