"""Intervals over tasks: Clopper and Pearson's for passes, never better for a worse result, in any order."""

from __future__ import annotations

import math
import random
from itertools import combinations, product

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from valkyrie.report.statistics.intervals import (
    chance_below,
    counted_interval,
    lower_limit,
    mean_interval,
    means_interval,
    t_95,
    unseen_share,
)
from valkyrie.report.statistics.power import (
    detectable,
    disagreement,
    pass_all,
    pass_all_interval,
    pass_at,
    pass_at_interval,
    spread,
)

CREDIT = st.one_of(st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0]), st.floats(0, 1))
TALLY = st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
FAMILIES = st.sampled_from("abcd")
NEAR = 1e-6


def interval(values: list[float]) -> tuple[float, float]:
    found, _ = mean_interval({str(n): [value] for n, value in enumerate(values)})
    assert found is not None
    return found


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_passes_have_clopper_and_pearsons_interval(case: tuple[int, int]) -> None:
    passed, total = case
    expected = scipy.stats.binomtest(passed, total).proportion_ci(method="exact")
    assert counted_interval(passed, total)[0] == pytest.approx((expected.low, expected.high), abs=1e-5)


def test_counts_and_scores_say_the_same() -> None:
    assert interval([1.0] * 9 + [0.0] * 3) == counted_interval(9, 12)[0]
    assert counted_interval(0, 0) == mean_interval({}) == (None, "nothing was graded")


def test_the_random_weights_are_those_of_a_simulation() -> None:
    values = [random.Random(n).random() for n in range(9)]
    weights = np.random.default_rng(1).dirichlet(np.ones(10), 200_000)
    drawn = weights @ np.array([*values, 0.0])
    for tail in (0.025, 0.05):
        groups = [(value, 1.0, 1) for value in values]
        assert lower_limit(groups, (0.0, 1.0), tail) == pytest.approx(np.quantile(drawn, tail), abs=0.003)


def test_many_values_are_summed_by_a_formula_that_is_as_good() -> None:
    rng = random.Random(2)
    few = [(round(rng.random(), 1), 1.0, 6) for _ in range(12)] + [(0.0, 1.0, 1)]
    many = [(value + n * 1e-9, 1.0, 1) for value, _, count in few for n in range(count)]
    assert chance_below(many, 0.4) == pytest.approx(chance_below(few, 0.4), rel=3e-3)


def test_a_full_score_is_less_sure_than_it_looks_and_monotone() -> None:
    """60 of 60 must not have a lower bound below that of 59 of 60."""
    full, almost = interval([1.0] * 60), interval([1.0] * 59 + [0.0])
    assert full[0] > almost[0] and full == (pytest.approx(0.025 ** (1 / 60), abs=NEAR), 1.0)
    assert interval([1.0]) == (pytest.approx(0.025, abs=NEAR), 1.0), "one task says next to nothing"
    assert interval([0.5]) == pytest.approx((0.0125, 0.9875), abs=NEAR)


@settings(max_examples=80, deadline=None)
@given(st.lists(CREDIT, min_size=1, max_size=25), st.data())
def test_a_worse_result_never_gives_a_better_bound(scores: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(scores) - 1))
    better = [*scores]
    better[place] = data.draw(st.floats(scores[place], 1.0))
    before, after = interval(scores), interval(better)
    assert after[0] >= before[0] - NEAR and after[1] >= before[1] - NEAR
    assert 0 <= before[0] <= sum(scores) / len(scores) + NEAR
    assert sum(scores) / len(scores) - NEAR <= before[1] <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CREDIT, FAMILIES), min_size=1, max_size=15), st.data())
def test_nor_does_it_over_families(scored: list[tuple[float, str]], data: st.DataObject) -> None:
    scores = {str(n): [score] for n, (score, _) in enumerate(scored)}
    families = {str(n): family for n, (_, family) in enumerate(scored)}
    task = data.draw(st.sampled_from(sorted(scores)))
    better = {**scores, task: [data.draw(st.floats(scores[task][0], 1.0))]}
    before, how = mean_interval(scores, families=families)
    after, _ = mean_interval(better, families=families)
    assert before and after and after[0] >= before[0] - NEAR and after[1] >= before[1] - NEAR
    assert how.startswith(f"Gaffke over {len(set(families.values()))} famil")
    assert how.endswith("; fewer than 5 families say little about others")
    turned = {task: scores[task] for task in reversed(scores)}
    assert mean_interval(turned, families=families) == (before, how)


def test_a_family_of_one_task_each_changes_nothing_and_equal_families_count_once() -> None:
    scores = {str(n): [float(n % 3 == 0)] for n in range(20)}
    own = {task: task for task in scores}
    assert mean_interval(scores, families=own)[0] == pytest.approx(mean_interval(scores)[0], abs=NEAR)
    copies = {f"{task}.{n}": own for task, own in scores.items() for n in range(5)}
    families = {copy: copy.partition(".")[0] for copy in copies}
    assert mean_interval(copies, families=families)[0] == pytest.approx(mean_interval(scores)[0], abs=NEAR)
    apart = mean_interval(copies)[0]
    assert apart and apart[0] > (mean_interval(scores)[0] or (1.0, 0.0))[0], "100 tasks would look surer"


def test_repetitions_of_a_task_are_not_independent() -> None:
    few = {f"t{n}": [float(n % 2)] for n in range(10)}
    assert mean_interval({task: scores * 50 for task, scores in few.items()}) == mean_interval(few)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=3), st.lists(CREDIT, max_size=4), max_size=12))
def test_order_does_not_matter(by_task: dict[str, list[float]]) -> None:
    backwards = {task: by_task[task][::-1] for task in reversed(by_task)}
    found, why = mean_interval(by_task)
    assert mean_interval(backwards) == (found, why)
    assert (found is None) == (not any(by_task.values()))


def test_other_scales() -> None:
    whole = {str(n): [float(n % 5)] for n in range(12)}
    unit = {task: [score / 4 for score in scores] for task, scores in whole.items()}
    found, expected = mean_interval(whole, scale=(0.0, 4.0))[0], mean_interval(unit)[0]
    assert found and expected and found == pytest.approx([4 * end for end in expected], abs=1e-5)
    outside = mean_interval({"a": [-3.0], "b": [7.0]})[0]
    assert outside and -3 <= outside[0] < 2 < outside[1] <= 7, "what was seen is part of the scale"
    assert mean_interval({"a": [5.0], "b": [5.0]})[0] is None, "the ends are not known"
    assert means_interval([1.0, 5.0], (-math.inf, math.inf))[1] == "Student's t over tasks"


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 6, 10, 30, 399])
def test_students_point_is_scipys(freedom: int) -> None:
    assert t_95(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=2e-3)


def test_what_n_tasks_cannot_exclude() -> None:
    assert unseen_share(12) == pytest.approx(1 - 0.025 ** (1 / 12))
    assert (unseen_share(182) > 0.02, unseen_share(183) < 0.02) == (True, True)


@given(st.lists(TALLY, min_size=1, max_size=6), st.integers(1, 6))
def test_pass_at_k_and_pass_all_k_from_all_choices(tallies: list[tuple[int, int]], k: int) -> None:
    at, every = pass_at(tallies, k), pass_all(tallies, k)
    if k > min(count for _, count in tallies):
        assert at is None and every is None and pass_at_interval(tallies, k) is None
        return
    shares = []
    for passed, count in tallies:
        choices = list(combinations([True] * passed + [False] * (count - passed), k))
        shares.append((sum(map(any, choices)) / len(choices), sum(map(all, choices)) / len(choices)))
    assert at == pytest.approx(math.fsum(one for one, _ in shares) / len(shares))
    assert every == pytest.approx(math.fsum(all_ for _, all_ in shares) / len(shares))
    for value, found in ((at, pass_at_interval(tallies, k)), (every, pass_all_interval(tallies, k))):
        assert value is not None and found and found[0] - NEAR <= value <= found[1] + NEAR


def test_pass_at_k_by_hand() -> None:
    assert pass_at([(1, 2)], 1) == pass_all([(1, 2)], 1) == 0.5
    assert pass_at([(1, 2), (0, 4)], 2) == 0.5
    assert pass_at([(2, 4)], 2) == pytest.approx(5 / 6)
    assert pass_all([(2, 4)], 2) == pytest.approx(1 / 6)
    assert pass_at([], 1) is None and pass_at([(1, 1)], 0) is None


@pytest.mark.parametrize("trials", [2, 3, 10])
@pytest.mark.parametrize("chance", [0.1, 0.5])
def test_flakiness_does_not_grow_with_the_number_of_trials(trials: int, chance: float) -> None:
    expected = sum(
        math.comb(trials, passed) * chance**passed * (1 - chance) ** (trials - passed)
        * (disagreement([(passed, trials)]) or 0.0)
        for passed in range(trials + 1)
    )  # fmt: skip
    assert expected == pytest.approx(2 * chance * (1 - chance))
    assert disagreement([(1, 1)]) is None


def test_what_a_run_can_show() -> None:
    assert [round(100 * gap) for gap in detectable(30, 1)] == [16, 26]
    assert [round(100 * gap) for gap in detectable(100, 1)] == [9, 14]
    assert detectable(30, 10) < detectable(30, 1), "trials help as far as it is they that vary"
    low, high = detectable(30, 1, within=0.0, between=0.2)
    assert low == 0 < high, "agents that differ by the same on every task are told apart at once"
    assert detectable(1, 1) == (pytest.approx(0.886, abs=1e-3), 1.0)


def test_where_the_spread_comes_from() -> None:
    rng = random.Random(5)
    chances = [rng.betavariate(2, 2) for _ in range(2000)]
    found = spread({str(n): [float(rng.random() < p) for _ in range(4)] for n, p in enumerate(chances)})
    assert found.within == pytest.approx(0.2, abs=0.01) and found.between == pytest.approx(0.05, abs=0.01)
    assert found.between_share == pytest.approx(0.5, abs=0.05)
    assert spread({"a": [1.0], "b": [0.0]}).between_share is None, "one trial each does not tell"
    steady = spread({"a": [1.0, 1.0], "b": [0.0, 0.0]})
    assert (steady.within, steady.between_share) == (0.0, 1.0), "more tasks help, more trials do not"
    assert spread({}).tasks == 0


def test_pass_at_k_of_many_trials_is_as_good_as_the_exact_one() -> None:
    for passed, k in product((0, 1, 17, 400, 998, 1000), (1, 2, 50, 999, 1000)):
        every = math.comb(passed, k) / math.comb(1000, k)
        one = 1 - math.comb(1000 - passed, k) / math.comb(1000, k)
        assert pass_all([(passed, 1000)], k) == pytest.approx(every, abs=1e-8)
        assert pass_at([(passed, 1000)], k) == pytest.approx(one, abs=1e-8)
