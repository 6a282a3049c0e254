"""Two agents on the same tasks: against scipy, by hand, and what must not change the answer."""

from __future__ import annotations

import random
from itertools import product

import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from valkyrie.report.statistics.paired import (
    NoWorse,
    Paired,
    differences,
    holm,
    mcnemar,
    no_worse_than,
    paired,
    sign_flip,
)
from valkyrie.report.statistics.power import needed

CREDIT = st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.75, 1.0])
SCORE = st.one_of(CREDIT, st.floats(0, 1))
LOW = st.sampled_from([0.1, 0.15, 0.2, 0.35])
PAIRS = st.lists(st.tuples(CREDIT, CREDIT), min_size=1, max_size=30)
FAMILY = st.sampled_from("abcdefg")
NEAR = 1e-6


def excludes_zero(found: Paired) -> bool:
    return found.interval[0] > 0 or found.interval[1] < 0


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemars_mid_p_is_scipys_binomial(won: int, lost: int) -> None:
    total, fewer = won + lost, min(won, lost)
    half = scipy.stats.binom.cdf(fewer - 1, total, 0.5) + scipy.stats.binom.pmf(fewer, total, 0.5) / 2
    assert mcnemar(won, lost) == pytest.approx(min(1.0, 2 * half) if total else 1.0, rel=1e-9)


def test_mcnemar_by_hand() -> None:
    assert mcnemar(5, 0) == 1 / 32
    assert mcnemar(4, 0) == 1 / 16
    assert mcnemar(1, 8) == pytest.approx(2 * (1 + 9 / 2) / 512)
    assert mcnemar(3000, 2000) < 1e-40
    assert mcnemar(0, 0) == mcnemar(4, 4) == 1.0


@given(st.lists(st.sampled_from([-1.0, -0.5, -1 / 3, 0.0, 0.25, 0.5, 0.75]), min_size=1, max_size=9))
def test_sign_flip_goes_through_every_pattern(apart: list[float]) -> None:
    seen = abs(sum(apart))
    sums = [
        abs(sum(s * x for s, x in zip(signs, apart, strict=True)))
        for signs in product((1, -1), repeat=len(apart))
    ]
    further = sum(one > seen + 1e-9 for one in sums)
    as_far = sum(abs(one - seen) <= 1e-9 for one in sums)
    expected = (further + as_far / 2) / len(sums) + 1 / len(sums) if seen > 1e-9 else 1.0
    assert sign_flip(apart)[0] == pytest.approx(min(1.0, expected))


def test_sign_flip_of_odd_numbers_is_the_exact_test() -> None:
    """No two patterns have the same sum, so that nothing counts half."""
    rng = random.Random(3)
    apart = [rng.gauss(0.3, 1) for _ in range(11)]
    seen = abs(sum(apart))
    far = sum(
        abs(sum(s * x for s, x in zip(signs, apart, strict=True))) >= seen - 1e-12
        for signs in product((1, -1), repeat=11)
    )
    assert sign_flip(apart) == (pytest.approx(far / 2**11), "rounded")


def test_few_tasks_cannot_show_a_difference() -> None:
    for tasks in range(1, 6):
        assert paired([1.0] * tasks, [0.0] * tasks).p_value > 0.05
    assert paired([1.0] * 6, [0.0] * 6).p_value == 2 / 64


def test_many_differences_are_judged_by_the_normal_limit() -> None:
    rng = random.Random(5)
    apart = [rng.gauss(0.04, 0.5) for _ in range(1000)]
    p_value, how = sign_flip(apart)
    z = sum(apart) / sum(value**2 for value in apart) ** 0.5
    assert (p_value, how) == (pytest.approx(2 * scipy.stats.norm.sf(abs(z))), "normal")
    counted, way = sign_flip(apart[:200])
    z = sum(apart[:200]) / sum(value**2 for value in apart[:200]) ** 0.5
    assert (counted, way) == (pytest.approx(2 * scipy.stats.norm.sf(abs(z)), abs=0.003), "rounded")


@pytest.mark.parametrize("tasks", [5, 12, 40])
def test_interval_and_test_never_contradict_each_other(tasks: int) -> None:
    """Every outcome of so many tasks that pass or fail."""
    for won in range(tasks + 1):
        for lost in range(0, tasks + 1 - won, 1 if tasks < 40 else 5):
            found = paired([1.0] * won + [0.0] * (tasks - won), [0.0] * (tasks - lost) + [1.0] * lost)
            assert (found.p_value < 0.05) == excludes_zero(found), (won, lost, tasks)
            assert (found.lowest > 0 or found.highest < 0) == (found.p_value / 2 < 0.05)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SCORE, SCORE, FAMILY), min_size=1, max_size=25), st.booleans())
def test_nor_do_they_with_partial_credit_or_families(
    rows: list[tuple[float, float, str]], grouped: bool
) -> None:
    a, b, families = [x for x, _, _ in rows], [y for _, y, _ in rows], [f for _, _, f in rows]
    found = paired(a, b, families=families if grouped else None)
    assert (found.p_value < 0.05) == excludes_zero(found)
    assert -1 <= found.interval[0] <= found.difference + NEAR
    assert found.difference - NEAR <= found.interval[1] <= 1
    assert found.families == (len(set(families)) if grouped else None)
    assert found.interval[0] - NEAR <= found.lowest and found.highest <= found.interval[1] + NEAR
    if found.p_value < 0.05:
        better = no_worse_than(found, 0.0) if found.difference > 0 else NoWorse.NO_WORSE
        assert better is NoWorse.NO_WORSE, "who beats somebody is no worse"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SCORE, SCORE, FAMILY), min_size=1, max_size=18), st.booleans(), st.data())
def test_a_worse_result_never_gives_a_better_bound(
    rows: list[tuple[float, float, str]], grouped: bool, data: st.DataObject
) -> None:
    a, b = [x for x, _, _ in rows], [y for _, y, _ in rows]
    families = [f for _, _, f in rows] if grouped else None
    place = data.draw(st.integers(0, len(a) - 1))
    better = [*a]
    better[place] = data.draw(st.floats(a[place], 1.0))
    before, after = paired(a, b, families=families), paired(better, b, families=families)
    for low, high in (
        (before.interval[0], after.interval[0]),
        (before.interval[1], after.interval[1]),
        (before.lowest, after.lowest),
        (before.highest, after.highest),
    ):
        assert high >= low - 1e-4


def test_alike_everywhere_is_not_certainty() -> None:
    """12 of 12 against 0 of 12, and the same result 12 times: the interval says how few tasks that is."""
    apart = paired([1.0] * 12, [0.0] * 12)
    assert apart.interval == (pytest.approx(0.558, abs=1e-3), 1.0) and apart.p_value == 2 / 4096
    alike = paired([1.0] * 12, [1.0] * 12)
    share = 1 - 0.05 ** (1 / 12)
    assert alike.interval == pytest.approx((-share, share), abs=NEAR) and alike.p_value == 1.0
    assert (alike.lowest, alike.highest) == pytest.approx((-share, share), abs=NEAR)
    one = paired([1.0], [1.0])
    assert one.interval == pytest.approx((-0.95, 0.95), abs=NEAR)


def test_no_worse_worse_and_cannot_tell() -> None:
    alike = paired([1.0] * 100, [1.0] * 100)
    assert no_worse_than(alike, 0.03) is NoWorse.NO_WORSE
    assert no_worse_than(alike, 0.02) is NoWorse.CANT_TELL, "100 tasks may have missed 3 in 100"
    assert no_worse_than(paired([0.0] * 20, [1.0] * 20), 0.5) is NoWorse.WORSE
    assert no_worse_than(paired([0.0] * 3, [1.0] * 3), 0.5) is NoWorse.CANT_TELL
    assert no_worse_than(paired([1.0] * 20, [0.0] * 20), 0.0) is NoWorse.NO_WORSE


def test_families_of_copies_are_one_task_each() -> None:
    a, b = [1.0] * 8 + [0.0] * 4, [0.0] * 6 + [1.0] * 2 + [0.0] * 4
    plain = paired(a, b)
    names = [str(n) for n in range(12) for _ in range(7)]
    copied = paired([x for x in a for _ in range(7)], [x for x in b for _ in range(7)], families=names)
    assert copied.p_value == pytest.approx(plain.p_value)
    assert copied.interval == pytest.approx(plain.interval, abs=NEAR)
    assert copied.test == "sign flip over 12 families" and copied.families == 12
    pooled = paired([x for x in a for _ in range(7)], [x for x in b for _ in range(7)])
    assert pooled.p_value < 1e-6 < copied.p_value


@settings(max_examples=40, deadline=None)
@given(PAIRS, st.randoms(use_true_random=False))
def test_what_must_not_change_the_answer(pairs: list[tuple[float, float]], rng: random.Random) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    found = paired(a, b)
    swapped = paired(b, a)
    assert swapped.difference == pytest.approx(-found.difference, abs=1e-12)
    assert swapped.p_value == found.p_value
    assert swapped.interval == pytest.approx((-found.interval[1], -found.interval[0]), abs=1e-9)
    assert (swapped.lowest, swapped.highest) == pytest.approx((-found.highest, -found.lowest), abs=1e-9)
    shuffled = rng.sample(pairs, len(pairs))
    again = paired([x for x, _ in shuffled], [y for _, y in shuffled])
    assert (again.p_value, again.interval, again.difference) == (
        found.p_value, pytest.approx(found.interval, abs=1e-9), pytest.approx(found.difference)
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(LOW, LOW), min_size=2, max_size=20))
def test_a_shared_constant_changes_nothing(pairs: list[tuple[float, float]]) -> None:
    found = paired([x for x, _ in pairs], [y for _, y in pairs])
    moved = paired([x + 0.5 for x, _ in pairs], [y + 0.5 for _, y in pairs])
    assert (moved.p_value, moved.difference) == (found.p_value, pytest.approx(found.difference))
    assert moved.interval == pytest.approx(found.interval)


def test_differences_on_a_scale_of_their_own() -> None:
    judged = differences([-1.0] * 20)
    assert judged.p_value < 0.001 and judged.interval[1] < 0, "20 losses and no win"
    wide = paired([30.0, 50.0, 20.0] * 4, [10.0] * 12, scale=(0.0, 50.0))
    unit = paired([0.6, 1.0, 0.4] * 4, [0.2] * 12)
    assert wide.interval == pytest.approx([50 * end for end in unit.interval], abs=1e-5)
    assert wide.p_value == unit.p_value


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_by_its_definition(p_values: list[float]) -> None:
    found = holm(p_values)
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    for rank, number in enumerate(order):
        steps = [(len(p_values) - i) * p_values[order[i]] for i in range(rank + 1)]
        assert found[number] == pytest.approx(min(1.0, max(steps)))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02]) == [0.02]


def test_as_many_tasks_as_are_said_to_be_needed_give_the_power() -> None:
    """A difference of 15 points, 45 % of tasks differing: what is needed is enough, and half of it is not."""
    rng = random.Random(2)
    seen = [1.0] * 30 + [-1.0] * 15 + [0.0] * 55
    more = needed([[max(0.0, x)] for x in seen], [[max(0.0, -x)] for x in seen], pass_fail=True)
    assert more and more.trials is None and more.tasks == 100 + more.more_tasks

    def power(count: int) -> float:
        return sum(sign_flip(rng.choices(seen, k=count))[0] < 0.05 for _ in range(300)) / 300

    assert 0.72 < power(more.tasks) < 0.90
    assert power(more.tasks // 2) < 0.65


def test_what_is_needed_by_hand() -> None:
    four = ([[1.0]] * 4 + [[0.0]] * 6, [[0.0]] * 10)
    found = needed(*four, pass_fail=True, interval=(-0.1, 0.7))
    assert found and found.tasks == 18 and found.gap == 0.4, "4 of 10 is not enough"
    assert (found.least, found.most) == (0.0, 0.7)
    three = needed(*four, pass_fail=True, comparisons=3)
    assert three and three.tasks > found.tasks
    assert needed([[1.0], [0.0]], [[0.0], [1.0]], pass_fail=True) is None, "no difference"
    assert needed([[1.0]], [[0.0]], pass_fail=True) is None, "one task"
    small = needed([[0.51]] * 30 + [[0.2]] * 30, [[0.5]] * 30 + [[0.203]] * 30, pass_fail=False)
    assert small and len(str(small.tasks).rstrip("0")) <= 2, "rounded to what is known"


def test_more_trials_help_only_where_trials_vary() -> None:
    noisy = [[0.0, 1.0], [1.0, 1.0]] * 10
    other = [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]] * 5
    found = needed(noisy, other, pass_fail=False)
    assert found and found.trials and found.trials > 2
    steady_a = [[1.0, 1.0], [0.0, 0.0], [0.5, 0.5]] * 4
    steady_b = [[0.0, 0.0], [0.5, 0.5], [0.5, 0.5]] * 4
    steady = needed(steady_a, steady_b, pass_fail=False)
    assert steady and steady.trials is None
