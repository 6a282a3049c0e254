"""A comparison of two results, which one result alone cannot have."""

from __future__ import annotations

from valkyrie.grade.base import BuiltIn
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, GraderResult


class PairwiseGrader(BuiltIn):
    """`pairwise`: says nothing about one trial, so it is skipped and does not count."""

    type = "pairwise"

    def read(self, config: Config) -> None:
        config.known.update(("prompt", "model", "threshold"))

    async def look(self, given: Given) -> GraderResult:
        del given
        return GraderResult(
            name=self.spec.label,
            type=self.type,
            passed=True,
            score=1.0,
            kind="llm",
            status="skipped",
            evidence="skipped: pairwise compares two results; `valkyrie compare` of two result folders does",
        )
