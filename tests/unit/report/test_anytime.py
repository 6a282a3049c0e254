"""Evidence that holds whenever one looks: e-values, confidence sequences, and what they decide."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
from benchmarks.decided import APART, EQUAL, SEED, simulate

from valkyrie.compare.anytime import gather_evidence
from valkyrie.report.statistics.anytime import (
    DECIDED,
    DecidedOutcome,
    LeadBoundary,
    _capital,
    confidence_sequence,
    decide,
    e_value,
    look,
)

WON, LOST, TIE = (1.0, 1.0), (-1.0, -1.0), (0.0, 0.0)


def test_the_e_value_is_the_formula() -> None:
    assert e_value(0, 0) == 1
    for won, lost in ((5, 0), (0, 5), (14, 2), (60, 40)):
        beta = math.gamma(won + 1) * math.gamma(lost + 1) / math.gamma(won + lost + 2)
        assert e_value(won, lost) == pytest.approx(2.0 ** (won + lost) * beta)
        assert e_value(won, lost) == e_value(lost, won)
    assert e_value(10_000, 0) == math.inf
    with pytest.raises(ValueError, match="below 0"):
        e_value(-1, 2)


def test_bets_on_wins_and_losses_are_that_e_value() -> None:
    for won, lost in ((9, 1), (40, 12)):
        found = look([LOST] * lost + [WON] * won + [TIE] * 7, error=1e-9)
        assert found.e_value == pytest.approx(e_value(won, lost), rel=0.01)


def test_eight_wins_in_a_row_decide_and_seven_do_not() -> None:
    assert e_value(7, 0) < DECIDED <= e_value(8, 0)
    found = decide([WON] * 20)
    assert found is not None
    assert (found.units, found.outcome) == (8, DecidedOutcome.A_AHEAD)
    assert decide([WON] * 7) is None
    turned = decide([LOST] * 20)
    assert turned is not None
    assert (turned.units, turned.outcome) == (8, DecidedOutcome.B_AHEAD)


def test_the_decision_is_the_first_one_whatever_came_later() -> None:
    rng = random.Random(1)
    units = [rng.choice((WON, WON, LOST, TIE)) for _ in range(300)]
    first = decide(units)
    assert first is not None
    assert decide([*units[: first.units], *[LOST] * 200]) == first
    assert decide(units[: first.units - 1]) is None


def test_an_interval_excludes_0_when_it_is_decided_and_gets_narrower() -> None:
    found = look([WON, WON, WON, TIE] * 20)
    assert found.interval is not None
    assert 0 < found.interval[0] < (found.difference or 0) < found.interval[1] <= 1
    few, many = (confidence_sequence([WON, LOST, TIE, TIE] * n) for n in (10, 100))
    assert few[0] < many[0] < 0 < many[1] < few[1]
    assert few[0] == pytest.approx(-few[1])


def test_several_comparisons_share_the_error() -> None:
    alone, shared = decide([WON] * 30), decide([WON] * 30, comparisons=10)
    assert alone is not None
    assert shared is not None
    assert alone.units < shared.units


def test_a_margin_decides_that_agents_are_alike() -> None:
    units = [WON, LOST, *[TIE] * 18] * 40
    found = decide(units, margin=0.1)
    assert found is not None
    assert found.outcome is DecidedOutcome.ALIKE
    assert found.interval is not None
    assert -0.1 <= found.interval[0] < found.interval[1] <= 0.1
    assert decide(units) is None


def test_lacking_trials_count_against_whoever_would_be_ahead() -> None:
    whole = decide([WON] * 8 + [TIE] * 20)
    lacking = decide([WON] * 7 + [(-1.0, 1.0)] + [TIE] * 20)
    assert whole is not None
    assert lacking is None


@pytest.mark.parametrize("planned", [False, True])
def test_a_false_decision_on_fair_coins_is_as_rare_as_it_says(planned: bool) -> None:
    """Counted, not simulated: the chance that some look of 150 decides."""
    open_, decided = {(0, 0): 1.0}, 0.0
    for _ in range(150):
        moved: dict[tuple[int, int], float] = defaultdict(float)
        for (won, lost), chance in open_.items():
            moved[won + 1, lost] += chance / 2
            moved[won, lost + 1] += chance / 2
        over = {one for one in moved if _decides(*one, planned)}
        decided += sum(moved[one] for one in over)
        open_ = {one: chance for one, chance in moved.items() if one not in over}
    assert 0.02 < decided <= 0.05


def _decides(won: int, lost: int, planned: bool) -> bool:
    sides = (Counter({1.0: won, -1.0: lost}), Counter({1.0: lost, -1.0: won}))
    return any(_capital(values, 0.0, planned) >= 2 * DECIDED for values in sides)


@pytest.mark.parametrize("planned", [1, 5, 6, 12, 30, 150])
@pytest.mark.parametrize("ties", [0, 1, 4, 19])
def test_a_lead_decides_falsely_as_rarely_as_it_says(planned: int, ties: int) -> None:
    """Counted, not simulated: so many ties after each task that only one of the agents passed."""
    boundary = LeadBoundary(planned, 0.025)
    open_, decided = {0: 1.0}, 0.0
    for number in range(planned):
        differ = number % (ties + 1) == 0
        boundary.look(int(differ), whole=number + 1 == planned)
        moved: dict[int, float] = defaultdict(float)
        for lead, chance in open_.items():
            for step in (-1, 1) if differ else (0,):
                moved[lead + step] += chance / (2 if differ else 1)
        decided += sum(chance for lead, chance in moved.items() if abs(lead) >= boundary.needed)
        open_ = {lead: chance for lead, chance in moved.items() if abs(lead) < boundary.needed}
    assert decided <= 0.05
    if planned == 150 and ties < 2:
        assert decided > 0.04


def test_six_wins_of_six_decide_a_plan_and_a_row_of_wins_a_longer_one_early() -> None:
    assert decide([WON] * 5, planned=5, whole=True) is None
    last = decide([WON] * 6, planned=6, whole=True)
    assert last is not None
    assert (last.units, last.lead, last.needed) == (6, 6, 6)
    assert last.p_value == pytest.approx(2 / 64)
    assert decide([WON] * 6, planned=7) is None
    early = decide([WON] * 40, planned=300)
    assert early is not None
    assert early.units == 15
    turned = decide([LOST] * 40, planned=300)
    assert turned is not None
    assert (turned.units, turned.outcome, turned.lead) == (15, DecidedOutcome.B_AHEAD, 15)


def test_a_plan_is_decided_by_the_same_unit_whenever_one_looks() -> None:
    rng = random.Random(3)
    for half in (0.0, 0.01, 0.3):
        units = [(0.5, 0.5) if rng.random() < half else rng.choice((WON, WON, LOST, TIE)) for _ in range(150)]
        first = decide(units, planned=150, whole=True)
        assert first is not None
        assert decide(units[: first.units - 1], planned=150) is None
        for more in range(first.units, 150):
            assert decide(units[:more], planned=150) == first


def test_the_interval_of_a_lead_excludes_0_exactly_when_it_decides() -> None:
    rng = random.Random(4)
    for _ in range(60):
        units = [rng.choice((WON, WON, WON, LOST, LOST, TIE)) for _ in range(40)]
        found = look(units, planned=40, whole=True)
        assert found.interval is not None
        assert found.interval[0] <= (found.difference or 0.0) <= found.interval[1]
        assert (found.interval[0] > 0) is (found.outcome is DecidedOutcome.A_AHEAD)
        assert (found.interval[1] < 0) is (found.outcome is DecidedOutcome.B_AHEAD)


def test_partial_credit_is_bet_on_and_where_it_comes_late_rounded_against_whom_it_helps() -> None:
    half = (0.5, 0.5)
    early = look([WON, half, *[WON] * 5], planned=30)
    assert (early.lead, early.units) == (None, 7)
    late = look([*[TIE] * 10, half, half, WON], planned=30)
    assert (late.lead, late.units) == (1, 13)
    lacking = look([*[WON] * 3, (-1.0, 0.0), (0.0, 1.0)], planned=30)
    assert lacking.lead == 2


@pytest.mark.parametrize(
    "kind",
    [
        "both pass half",
        pytest.param("partial credit", marks=pytest.mark.slow),
        pytest.param("tasks hard for both", marks=pytest.mark.slow),
    ],
)
def test_a_false_decision_is_rare_although_every_task_is_looked_at(kind: str) -> None:
    rng = random.Random(SEED)
    for margin in (None, 0.2):
        right = (DecidedOutcome.ALIKE,) if margin else ()
        found = simulate(EQUAL[kind], right, rng, tasks=120, jobs=250, margin=margin)
        assert found.wrong <= 0.05


@pytest.mark.parametrize(
    ("kind", "jobs"),
    [
        ("tasks hard for both", 100),
        ("most tasks hard or easy for both", 100),
        pytest.param("independent, 60 and 45 %", 2000, marks=pytest.mark.slow),
    ],
)
def test_a_gap_of_15_points_is_decided_early_and_rightly(kind: str, jobs: int) -> None:
    draw, _ = APART[kind]
    found = simulate(draw, (DecidedOutcome.A_AHEAD,), random.Random(SEED), tasks=300, jobs=jobs)
    assert found.trials <= 0.6
    assert found.right >= 0.95
    assert found.wrong <= 0.05


@dataclass
class Row:
    task_id: str
    state: str = "FINISHED"
    score: float | None = 1.0
    category: str | None = None
    family: str | None = None
    k: int = 0


def test_evidence_goes_as_far_as_all_earlier_tasks_ended_on_both_sides() -> None:
    a = [Row("t1"), Row("t2"), Row("t3"), Row("t4")]
    b = [Row("t1", score=0.0), Row("t2", score=0.5), Row("t3", "PENDING", None), Row("t4", score=0.0)]
    found = gather_evidence(a, b, planned_order=True)
    assert found.units == [(1.0, 1.0), (0.5, 0.5)]
    assert (found.tasks_of(2), found.planned, found.whole) == (["t1", "t2"], 4, False)


def test_an_agents_failure_counts_as_nothing_and_another_one_as_anything() -> None:
    a = [Row("t1", "ERROR", None, "agent"), Row("t2", "ERROR", None, "infrastructure"), Row("t3")]
    b = [Row("t1"), Row("t2"), Row("t3", "ERROR", None, "benchmark")]
    assert gather_evidence(a, b, planned_order=True).units == [(-1.0, -1.0), (-1.0, 0.0), (0.0, 1.0)]
    neither = [Row("t1", "ERROR", None, "infrastructure")]
    found = gather_evidence(neither, neither, planned_order=True)
    assert (found.units, found.whole) == ([], True)


def test_an_order_that_was_not_shuffled_is_put_in_one_that_endings_cannot_change() -> None:
    names = [f"t{number}" for number in range(40)]
    a = [Row(name) for name in names]
    orders = set()
    for unfinished in names[:5]:
        b = [Row(name, "PENDING" if name == unfinished else "FINISHED", 0.0) for name in names]
        orders.add(tuple(gather_evidence(a, b, planned_order=False).tasks_of(40)))
    longest = max(orders, key=len)
    assert all(order == longest[: len(order)] for order in orders)
    assert list(longest) != sorted(longest, key=names.index)


def test_families_are_one_unit_each_and_only_whole() -> None:
    a = [Row("t1", family="x"), Row("t2", family="x"), Row("t3", family="y"), Row("t4")]
    b = [Row("t1", family="x", score=0.0), Row("t2", family="x"), Row("t3", "PENDING", None, family="y")]
    found = gather_evidence(a, [*b, Row("t4")], planned_order=True)
    assert (found.units, found.families) == ([(0.5, 0.5)], 3)
    assert found.scale == pytest.approx(4 / 3 / 2)
    b[1].state = "IN_PROGRESS"
    assert gather_evidence(a, [*b, Row("t4")], planned_order=True).units == []
