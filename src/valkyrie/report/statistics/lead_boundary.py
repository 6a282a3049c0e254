"""The lead in wins over losses that decides a plan, at each look: exact, for plans whose last task is known.

Of tasks that only one of two agents passed, each is A's or B's with the same chance if there is no
difference. The boundary follows from how many such tasks there were at each look, never from whose they were,
so the chance that a lead ever crosses it is counted, not estimated. How much of the error is spent when (Lan
and DeMets, 1983) is chosen for gaps that the whole plan just shows: late as by O'Brien and Fleming, evenly
from the beginning where agents agree on most tasks, for then smaller leads say more.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_NORMAL = NormalDist()
_KNEE = 0.6
_SHARES = ((0.95, _KNEE), (0.65, 1.0))
"""The shares of the error that O'Brien and Fleming's boundaries have, and up to which share of the plan."""
_EVEN = 0.5
_EVEN_ELSE = 0.03
"""The share of the error that is spent evenly: where agents agree on most tasks, and where they do not."""
_LAST = 0.98
"""From this share of the plan on all of the error may be spent."""
_NEGLIGIBLE = 1e-15
"""Leads to the other side of a smaller chance are dropped: none of them comes back."""


class LeadBoundary:
    """Follows the lead of one side; `error` is the chance that it ever decides if neither is better."""

    def __init__(self, planned: int, error: float) -> None:
        self.lead = 0
        self.chance = 1.0
        """Of deciding by now, or of at least this lead now, if neither side is better."""
        self.allowed = 0.0
        """The error that could be spent up to now."""
        self._planned = planned
        self._error = error
        self._late = [(-_NORMAL.inv_cdf(share * error / 2), end) for share, end in _SHARES]
        self._looks = 0
        self._differ = 0
        self._spent = 0.0
        self._open = [1.0]
        """The chances of the leads that are not decided: the lowest, and then every second one."""
        self._lowest = 0

    @property
    def needed(self) -> int:
        """The lead from which on it is decided; one that cannot be reached while nothing decides."""
        return self._lowest + 2 * len(self._open)

    def look(self, value: int, *, whole: bool = False) -> bool:
        """Take in one more task, 1 won, -1 lost, 0 neither; return whether the lead decides.

        `whole`: it is the plan's last one.
        """
        self._looks += 1
        if value:
            self._step(value)
        self.allowed = self._error if whole else max(self.allowed, self._spendable())
        first = max(0, (self.lead - self._lowest + 1) // 2)
        self.chance = min(1.0, self._spent + math.fsum(self._open[first:]))
        while self._open and self._spent + self._open[-1] <= self.allowed:
            self._spent += self._open.pop()
        return self.lead >= self.needed

    def _spendable(self) -> float:
        share = self._looks / self._planned
        if share >= _LAST:
            return self._error
        agree = self._differ + 5 <= 0.4 * self._looks
        even = self._error * share * (_EVEN if agree else _EVEN_ELSE)
        return max(even, *(2 * _NORMAL.cdf(-at / math.sqrt(min(share, end))) for at, end in self._late))

    def _step(self, value: int) -> None:
        self.lead += value
        self._differ += 1
        halves = [chance / 2 for chance in self._open]
        self._open = [low + high for low, high in zip([*halves, 0.0], [0.0, *halves], strict=True)]
        self._lowest -= 1
        dropped = 0
        while dropped < len(self._open) and self._open[dropped] < _NEGLIGIBLE:
            dropped += 1
        if dropped:
            del self._open[:dropped]
            self._lowest += 2 * dropped
