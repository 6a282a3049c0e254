"""The scales a judge may score on, and how a score becomes a number between 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Scale:
    """From `low`, the worst, to `high`, the best; `whole` has nothing in between."""

    name: str
    low: int
    high: int
    words: str
    """What a judge is told about it."""
    whole: bool = False

    def read(self, value: Any) -> float | None:
        """A score as a judge gave it; None for what is none on this scale."""
        if isinstance(value, bool):
            return float(value) if self.whole else None
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return None
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        if not self.low <= value <= self.high or (self.whole and value not in (self.low, self.high)):
            return None
        return float(value)

    def normal(self, score: float) -> float:
        """The score as 0..1."""
        return (score - self.low) / (self.high - self.low)

    def said(self, score: float) -> str:
        """The score as people write it: `4/5`."""
        if self.whole:
            return "yes" if score == self.high else "no"
        return f"{score:g}/{self.high}"


SCALES: Mapping[str, Scale] = {
    "binary": Scale("binary", 0, 1, "0 (the criterion is not met) or 1 (it is met), nothing else", True),
    "scale_1_5": Scale("scale_1_5", 1, 5, "from 1 (not met at all) to 5 (fully met)"),
    "scale_1_10": Scale("scale_1_10", 1, 10, "from 1 (not met at all) to 10 (fully met)"),
}
DEFAULT = "scale_1_5"
