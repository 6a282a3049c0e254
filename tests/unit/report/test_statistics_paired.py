"""Two agents on the same tasks: against scipy, by hand, and what must not change the answer."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from valkyrie.report.statistics import holm, mcnemar, paired, sign_flip, tango

CREDIT = st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.75, 1.0])
LOW = st.sampled_from([0.1, 0.15, 0.2, 0.35])
PAIRS = st.lists(st.tuples(CREDIT, CREDIT), min_size=1, max_size=30)


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_scipys_binomial(won: int, lost: int) -> None:
    expected = scipy.stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
    assert mcnemar(won, lost) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_by_hand() -> None:
    assert mcnemar(5, 0) == 2 / 32
    assert mcnemar(6, 0) == 2 / 64
    assert mcnemar(1, 8) == pytest.approx(2 * (1 + 9) / 512)
    assert mcnemar(3000, 2000) < 1e-40
    assert mcnemar(0, 0) == mcnemar(4, 4) == 1.0


@given(st.integers(0, 12), st.integers(0, 12))
def test_sign_flip_of_pass_and_fail_is_mcnemar(won: int, lost: int) -> None:
    p_value, how = sign_flip([1.0] * won + [-1.0] * lost + [0.0] * 5)
    assert (p_value, how) == (pytest.approx(mcnemar(won, lost)), "exact")


@given(st.lists(st.sampled_from([-1.0, -0.5, -1 / 3, 0.0, 0.25, 0.5, 0.75]), min_size=1, max_size=9))
def test_sign_flip_goes_through_every_pattern(apart: list[float]) -> None:
    seen = abs(sum(apart))
    far = sum(
        abs(sum(s * x for s, x in zip(signs, apart, strict=True))) >= seen - 1e-9
        for signs in product((1, -1), repeat=len(apart))
    )
    assert sign_flip(apart)[0] == pytest.approx(far / 2 ** len(apart))


def test_sign_flip_is_scipys_permutation_test() -> None:
    rng = random.Random(3)
    apart = [rng.gauss(0.3, 1) for _ in range(11)]
    expected = scipy.stats.permutation_test(
        (np.array(apart),), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    ).pvalue
    assert sign_flip(apart)[0] == pytest.approx(expected, abs=0.01), "sampled"
    rounded = [round(value, 2) for value in apart]
    expected = scipy.stats.permutation_test(
        (np.array(rounded),), np.mean, permutation_type="samples", n_resamples=np.inf
    ).pvalue
    assert sign_flip(rounded) == (pytest.approx(expected), "exact")


def test_many_tasks_are_judged_by_the_normal_limit() -> None:
    rng = random.Random(5)
    apart = [rng.gauss(0.04, 0.5) for _ in range(1000)]
    p_value, how = sign_flip(apart)
    z = sum(apart) / math.sqrt(sum(value**2 for value in apart))
    assert (p_value, how) == (pytest.approx(2 * scipy.stats.norm.sf(abs(z))), "normal")


def supposed_score(won: int, lost: int, total: int, supposed: float) -> float:
    """The score statistic from its definition: the likelihood is maximised under the supposed difference."""

    def loss(losing: float) -> float:
        winning = losing + supposed
        parts = ((won, winning), (lost, losing), (total - won - lost, 1 - winning - losing))
        return -sum(count * math.log(max(chance, 1e-300)) for count, chance in parts if count)

    low, high = max(0.0, -supposed), (1 - supposed) / 2
    losing = scipy.optimize.minimize_scalar(
        loss, bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    ).x
    return (won - lost - total * supposed) / math.sqrt(total * (2 * losing + supposed * (1 - supposed)))


@pytest.mark.parametrize(
    ("won", "lost", "total"), [(9, 2, 40), (3, 7, 25), (14, 14, 50), (1, 0, 12), (9, 0, 12)]
)
def test_tango_from_its_definition(won: int, lost: int, total: int) -> None:
    seen, z = (won - lost) / total, scipy.stats.norm.ppf(0.975)
    low = scipy.optimize.brentq(lambda d: supposed_score(won, lost, total, d) - z, -0.9999, seen)
    high = scipy.optimize.brentq(lambda d: supposed_score(won, lost, total, d) + z, seen, 0.9999)
    assert tango(won, lost, total) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(0, n))))
def test_tango_holds_what_was_seen_and_is_the_score_test(case: tuple[int, int, int]) -> None:
    total, won, lost = case
    lost = min(lost, total - won)
    low, high = tango(won, lost, total)
    assert -1 <= low <= (won - lost) / total <= high <= 1 and low < high
    assert tango(lost, won, total) == pytest.approx((-high, -low), abs=1e-9)
    differing = won + lost
    z = abs(won - lost) / math.sqrt(differing) if differing else 0.0
    assert (low > 0 or high < 0) == (z > scipy.stats.norm.ppf(0.975))


def test_alike_everywhere_is_not_certainty() -> None:
    """12 of 12 against 0 of 12, and the same result 12 times: the interval says how few tasks that is."""
    apart = paired([1.0] * 12, [0.0] * 12)
    assert apart.interval == (pytest.approx(0.515, abs=1e-3), 1.0) and apart.p_value == 2 / 4096
    alike = paired([1.0] * 12, [1.0] * 12)
    assert alike.interval == pytest.approx((-0.2425, 0.2425), abs=1e-4) and alike.p_value == 1.0
    partial = paired([0.75] * 12, [0.25] * 12)
    assert partial.interval is None and partial.interval_method == "all tasks alike"
    assert partial.p_value == 2 / 4096


def test_paired_bootstrap_is_scipys_but_for_the_correction() -> None:
    rng = random.Random(11)
    a = [rng.betavariate(2, 2) for _ in range(80)]
    b = [min(1.0, max(0.0, value - rng.gauss(0.05, 0.2))) for value in a]
    apart = np.array(a) - np.array(b)
    expected = scipy.stats.bootstrap((apart,), np.mean, method="percentile", rng=np.random.default_rng(1))
    found = paired(a, b)
    assert found.interval_method == "bootstrap over tasks" and found.interval
    assert found.interval == pytest.approx(tuple(expected.confidence_interval), abs=0.006)
    assert found.difference == pytest.approx(apart.mean())


@settings(max_examples=40)
@given(PAIRS, st.randoms(use_true_random=False))
def test_what_must_not_change_the_answer(pairs: list[tuple[float, float]], rng: random.Random) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    found = paired(a, b)
    swapped = paired(b, a)
    assert swapped.difference == pytest.approx(-found.difference, abs=1e-12)
    assert swapped.p_value == found.p_value
    turned = found.interval and (-found.interval[1], -found.interval[0])
    assert swapped.interval == (turned and pytest.approx(turned, abs=1e-9))
    shuffled = rng.sample(pairs, len(pairs))
    again = paired([x for x, _ in shuffled], [y for _, y in shuffled])
    assert (again.p_value, again.interval, again.difference) == (
        found.p_value, found.interval, pytest.approx(found.difference)
    )  # fmt: skip


@settings(max_examples=25)
@given(st.lists(st.tuples(LOW, LOW), min_size=2, max_size=20))
def test_a_shared_constant_changes_nothing(pairs: list[tuple[float, float]]) -> None:
    found = paired([x for x, _ in pairs], [y for _, y in pairs])
    moved = paired([x + 0.5 for x, _ in pairs], [y + 0.5 for _, y in pairs])
    assert (moved.p_value, moved.difference) == (found.p_value, pytest.approx(found.difference))
    assert moved.interval == (found.interval and pytest.approx(found.interval))


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
