"""Results that programs and plugins report as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from valkyrie.errors import GraderError
from valkyrie.grade.base import clipped
from valkyrie.grade.protocol import GraderResult
from valkyrie.specs.model import GraderSpec

KEYS = ("passed", "score", "evidence", "details")
_MOST_DETAILS = 100


def result_of(data: Mapping[str, Any], spec: GraderSpec, *, passed: bool | None = None) -> GraderResult:
    """`passed`, `score` 0..1, `evidence`, `details`; `passed` is what stands in for a missing one.

    A missing score follows from `passed`. Raises GraderError for values of other kinds.
    """
    said = data.get("passed", passed)
    if not isinstance(said, bool):
        raise GraderError(f"it reported passed = {said!r}; true or false is expected.")
    score = data.get("score", float(said))
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise GraderError(f"it reported score = {score!r}; a number from 0 to 1 is expected.")
    if not 0 <= score <= 1:
        raise GraderError(f"it reported score = {score}; a number from 0 to 1 is expected.")
    evidence = data.get("evidence") or f"it reported {'a pass' if said else 'a fail'}, and no evidence"
    details = data.get("details", [])
    if not isinstance(details, list):
        details = [details]
    return GraderResult(
        name=spec.label,
        type=spec.type,
        passed=said,
        score=float(score),
        evidence=clipped(evidence if isinstance(evidence, str) else repr(evidence)),
        kind="llm" if data.get("kind") == "llm" else "code",
        details=[one if isinstance(one, dict) else {"value": one} for one in details[:_MOST_DETAILS]],
    )
