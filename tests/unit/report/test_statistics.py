"""Intervals against scipy and against hand-worked cases."""

from __future__ import annotations

import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from valkyrie.report.statistics import MANY_TASKS, bootstrap, wilson


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(case: tuple[int, int]) -> None:
    passed, total = case
    expected = scipy.stats.binomtest(passed, total).proportion_ci(method="wilson")
    assert wilson(passed, total) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_wilson_by_hand() -> None:
    assert wilson(12, 12) == pytest.approx((0.7575, 1.0), abs=1e-4)
    assert wilson(0, 12) == pytest.approx((0.0, 0.2425), abs=1e-4)
    assert wilson(0, 0) is None


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_bootstrap_stays_within_the_data_and_repeats(scores: list[float]) -> None:
    by_task = {str(number): [score] for number, score in enumerate(scores)}
    found = bootstrap(by_task)
    assert (found is None) == (len(set(scores)) == 1)
    if found is None:
        return
    low, high = found
    assert min(scores) - 1e-9 <= low <= high <= max(scores) + 1e-9
    assert bootstrap(by_task) == (low, high)


def test_one_task_says_nothing_about_others() -> None:
    assert bootstrap({"a": [0.0, 1.0, 1.0]}) is None


def test_repetitions_of_a_task_are_not_independent() -> None:
    few = {f"t{n}": [float(n % 2)] for n in range(10)}
    repeated = {task: scores * 50 for task, scores in few.items()}
    assert bootstrap(repeated) == bootstrap(few)


def test_many_tasks_agree_with_resampling() -> None:
    few = {f"t{n}": [(n % 7) / 6] for n in range(MANY_TASKS)}
    many = {f"t{n}": [(n % 7) / 6] for n in range(MANY_TASKS + 6)}
    assert bootstrap(many) == pytest.approx(bootstrap(few), abs=0.01)
