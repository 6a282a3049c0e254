"""What is promised: intervals hold the truth 95 times in 100, tests cry wolf at most 5, power is 80 %."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from valkyrie.report.statistics import mean_interval, needed, paired, pass_all, pass_at
from valkyrie.report.statistics.intervals import t_95

MEAN = 1.2 / (1.2 + 0.8)
TALLY = st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
SCORES = st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=4)


def trials(rng: random.Random, chance: float, count: int) -> list[float]:
    return [float(rng.random() < chance) for _ in range(count)]


@pytest.mark.parametrize(
    ("tasks", "repeated", "method"),
    [
        (4, 3, "Student's t over tasks"),
        (8, 4, "bootstrap over tasks"),
        (30, 1, "Wilson"),
        (15, 2, "bootstrap over tasks"),
    ],
)
def test_an_agents_interval_holds_its_true_score(tasks: int, repeated: int, method: str) -> None:
    rng = random.Random(tasks)
    held, made = 0, 0
    for _ in range(120):
        by_task = {str(n): trials(rng, rng.betavariate(1.2, 0.8), repeated) for n in range(tasks)}
        interval, how = mean_interval(by_task)
        if how == method and interval:
            made += 1
            held += interval[0] <= MEAN <= interval[1]
    assert made > 100
    assert held / made > 0.90


@pytest.mark.parametrize(("tasks", "repeated"), [(12, 1), (60, 1), (7, 3)])
def test_a_differences_interval_holds_it_and_chance_rarely_wins(tasks: int, repeated: int) -> None:
    rng = random.Random(7)
    held, false_alarms, rounds = 0, 0, 120
    for _ in range(rounds):
        chances = [rng.betavariate(1.2, 0.8) for _ in range(tasks)]
        a = [sum(trials(rng, 0.8 * chance + 0.2, repeated)) / repeated for chance in chances]
        b, other = ([sum(trials(rng, 0.8 * c, repeated)) / repeated for c in chances] for _ in range(2))
        found = paired(a, b)
        held += found.interval is not None and found.interval[0] <= 0.2 <= found.interval[1]
        false_alarms += paired(b, other).p_value < 0.05
    assert held / rounds > 0.90
    assert false_alarms / rounds < 0.09


def test_as_many_tasks_as_are_said_to_be_needed_give_the_power() -> None:
    """A difference of 15 points, 45 % of tasks differing: what is needed is enough, and half of it is not."""
    rng = random.Random(2)
    seen = [1.0] * 30 + [-1.0] * 15 + [0.0] * 55
    more = needed([[max(0.0, x)] for x in seen], [[max(0.0, -x)] for x in seen], pass_fail=True)
    assert more and more.trials is None
    tasks = 100 + more.more_tasks

    def power(count: int) -> float:
        wins = 0
        for _ in range(300):
            drawn = rng.choices(seen, k=count)
            wins += paired([max(0.0, x) for x in drawn], [max(0.0, -x) for x in drawn]).p_value < 0.05
        return wins / 300

    assert 0.72 < power(tasks) < 0.90
    assert power(tasks // 2) < 0.65


def test_what_is_needed_by_hand() -> None:
    only_wins = ([[1.0]] * 5, [[0.0]] * 5)
    found = needed(*only_wins, pass_fail=True)
    assert found and found.more_tasks == 1, "six of six are needed for p < 0.05"
    three = needed(*only_wins, pass_fail=True, comparisons=3)
    assert three and 2 <= three.more_tasks <= 3, "at least seven of seven for p < 0.05 / 3"
    assert needed([[1.0], [0.0]], [[0.0], [1.0]], pass_fail=True) is None, "no difference"
    assert needed([[1.0]], [[0.0]], pass_fail=True) is None, "one task"


def test_more_trials_help_only_where_trials_vary() -> None:
    noisy = [[0.0, 1.0], [1.0, 1.0]] * 10
    other = [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]] * 5
    found = needed(noisy, other, pass_fail=False)
    assert found and found.trials and found.trials > 2
    steady_a = [[1.0, 1.0], [0.0, 0.0], [0.5, 0.5]] * 4
    steady_b = [[0.0, 0.0], [0.5, 0.5], [0.5, 0.5]] * 4
    steady = needed(steady_a, steady_b, pass_fail=False)
    assert steady and steady.trials is None


@given(st.lists(TALLY, min_size=1, max_size=6), st.integers(1, 6))
def test_pass_at_k_and_pass_all_k_from_all_choices(tallies: list[tuple[int, int]], k: int) -> None:
    at, every = pass_at(tallies, k), pass_all(tallies, k)
    if k > min(count for _, count in tallies):
        assert at is None and every is None
        return
    shares = []
    for passed, count in tallies:
        choices = list(combinations([True] * passed + [False] * (count - passed), k))
        shares.append((sum(map(any, choices)) / len(choices), sum(map(all, choices)) / len(choices)))
    assert at == pytest.approx(math.fsum(one for one, _ in shares) / len(shares))
    assert every == pytest.approx(math.fsum(all_ for _, all_ in shares) / len(shares))


def test_pass_at_k_by_hand() -> None:
    assert pass_at([(1, 2)], 1) == pass_all([(1, 2)], 1) == 0.5
    assert pass_at([(1, 2), (0, 4)], 2) == 0.5
    assert pass_at([(2, 4)], 2) == pytest.approx(5 / 6)
    assert pass_all([(2, 4)], 2) == pytest.approx(1 / 6)
    assert pass_at([], 1) is None and pass_at([(1, 1)], 0) is None


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 6, 10, 30, 399])
def test_students_point_is_scipys(freedom: int) -> None:
    assert t_95(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=2e-3)


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=3), SCORES, max_size=12))
def test_every_case_has_an_interval_or_says_why_not(by_task: dict[str, list[float]]) -> None:
    interval, why = mean_interval(by_task)
    means = [sum(scores) / len(scores) for scores in by_task.values() if scores]
    if interval is None:
        assert why in ("nothing was graded", "one task says nothing about others", "all tasks alike")
        assert len(set(means)) < 2
        return
    assert 0 <= interval[0] <= sum(means) / len(means) + 1e-9 and interval[1] <= 1
    assert interval[0] < interval[1] and interval[1] >= sum(means) / len(means) - 1e-9
    backwards = {task: by_task[task][::-1] for task in reversed(by_task)}
    assert mean_interval(backwards) == (interval, why)
