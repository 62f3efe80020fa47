"""Epsilon over the rounds of a plan, found when it is asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

AT_ONCE = 256  # rounds that are found together, so that a short plan is done before its first round


@dataclass(frozen=True)
class Epsilon:
    """Upper bounds on epsilon at one delta.

    ``pld`` is None where no privacy loss distribution is known (fixed-size samples) or where
    floating point cannot resolve delta (below about 1e-12).
    """

    pld: float | None
    rdp: float

    @property
    def quoted(self) -> float:
        """The figure to report: PLD where it exists, else RDP."""
        return self.rdp if self.pld is None else self.pld


class Curve(Sequence[Epsilon]):
    """Epsilon after each of ``rounds`` rounds, each found once, by ``find`` (increasing numbers of
    rounds from 1 on).

    The rounds of a long plan are found a piece at a time, and its last one, which budgets ask for,
    by itself: thousands of rounds take seconds, and a plan that is refused never gets to them.

    >>> asked = []
    >>> curve = Curve(1000, lambda rounds: asked.append(len(rounds)) or [Epsilon(None, float(r)) for r in rounds])
    >>> curve[-1].rdp, curve[0].rdp, curve[1].rdp, asked
    (1000.0, 1.0, 2.0, [1, 256])
    """

    def __init__(self, rounds: int, find: Callable[[Sequence[int]], Sequence[Epsilon]]) -> None:
        self._rounds, self._find = rounds, find
        self._found: dict[int, Epsilon] = {}

    def __len__(self) -> int:
        return self._rounds

    @overload
    def __getitem__(self, index: int) -> Epsilon: ...

    @overload
    def __getitem__(self, index: slice) -> list[Epsilon]: ...

    def __getitem__(self, index: int | slice) -> Epsilon | list[Epsilon]:
        if isinstance(index, slice):
            return [self[place] for place in range(self._rounds)[index]]
        place = range(self._rounds)[index]
        if place not in self._found:
            wanted = [number for number in self._piece(place) if number - 1 not in self._found]
            self._found.update(
                zip((number - 1 for number in wanted), self._find(wanted), strict=True)
            )
        return self._found[place]

    def _piece(self, place: int) -> Sequence[int]:
        if self._rounds > AT_ONCE and place == self._rounds - 1:
            return (self._rounds,)
        first = place - place % AT_ONCE
        return range(first + 1, min(first + AT_ONCE, self._rounds) + 1)
