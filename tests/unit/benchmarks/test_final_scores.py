"""A run's scores from its trials: what counts, what is confirmed, and the range of what is missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from valkyrie.benchmarks.catalog import IngestedBenchmark
from valkyrie.benchmarks.protocol import computed, confirmed_score, grades_of

BENCHMARK = IngestedBenchmark("b")


def row(task: str, state: str = "FINISHED", **more: Any) -> Any:
    """A trial's row."""
    empty = dict.fromkeys(("score", "passed", "result", "category", "cause", "confirmed", "score_confirmed"))
    return SimpleNamespace(**{**empty, "evidence": None, "task_id": task, "state": state, **more})


def passed(task: str, **more: Any) -> Any:
    return row(task, score=1.0, passed=True, **{"confirmed": True, "score_confirmed": 1.0, **more})


UNCONFIRMED = passed("u", confirmed=False, score_confirmed=0.0)
AGENT = row("a", "ERROR", category="agent", cause="agent_install_failed")
BROKEN = row("i", "ERROR", category="infrastructure", cause="sandbox_failed")


async def scored(*rows: Any) -> tuple[dict[str, Any], float | None, float | None]:
    grades = grades_of(rows)
    final, graded = await computed(BENCHMARK, grades, "default")
    return final, graded, await confirmed_score(BENCHMARK, grades, "default")


async def test_only_what_a_fresh_sandbox_saw_is_confirmed() -> None:
    final, graded, confirmed = await scored(passed("p"), UNCONFIRMED)
    assert (final["final_score"], graded, confirmed) == (1.0, 1.0, 0.5)
    assert "score_low" not in final


async def test_partial_credit_of_the_fresh_sandbox_counts() -> None:
    _, _, confirmed = await scored(passed("p"), passed("u", confirmed=False, score_confirmed=0.5))
    assert confirmed == 0.75


async def test_what_the_agent_brought_about_counts_zero_and_is_graded() -> None:
    final, graded, confirmed = await scored(passed("p"), AGENT)
    assert (final["final_score"], graded, confirmed) == (0.5, 0.5, 0.5)
    assert final["properties"]["ungraded"] == 0


async def test_no_end_by_the_agents_doing_counts_more_than_a_grade() -> None:
    final, graded, _ = await scored(
        row("n", score=-4.0, passed=False), row("p", score=1.0, passed=True), AGENT
    )
    assert (final["final_score"], graded) == (pytest.approx(-7 / 3), pytest.approx(-7 / 3))


async def test_what_is_missing_for_other_reasons_makes_a_range() -> None:
    final, graded, confirmed = await scored(passed("p"), UNCONFIRMED, AGENT, BROKEN)
    assert graded == pytest.approx(2 / 3)
    assert (final["score_low"], final["score_high"]) == (0.5, 0.75)
    assert confirmed == 0.25


async def test_a_task_of_many_trials_weighs_as_one_in_the_range() -> None:
    many = [passed("p"), passed("p"), passed("p"), row("p", "STOPPED")]
    final, _, _ = await scored(*many, BROKEN)
    assert (final["score_low"], final["score_high"]) == (0.375, 1.0)


@pytest.mark.parametrize(
    ("unknown", "expected"), [(passed("x", confirmed=None, score_confirmed=None), None), (BROKEN, 0.5)]
)
async def test_what_is_not_known_is_not_invented(unknown: Any, expected: float | None) -> None:
    _, _, confirmed = await scored(passed("p"), unknown)
    assert confirmed == expected


async def test_nothing_graded_confirms_nothing() -> None:
    assert (await scored(BROKEN))[2] is None
    assert (await scored(row("z", score=0.0, passed=False)))[2] == 0.0
