"""Gates: which outcome comparisons have, and that a worse result never opens one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from valkyrie.compare.views import Comparison
from valkyrie.compare.words import Margin, hold_against, is_worse, no_worse_gate, read_margin, worse_gate
from valkyrie.errors import UsageError
from valkyrie.report.statistics.anytime import AnytimeStanding
from valkyrie.report.statistics.paired import NoWorse, paired

ORDER = [NoWorse.NO_WORSE, NoWorse.CANT_TELL, NoWorse.WORSE]


def compared(a: list[float], b: list[float], **changed: object) -> Comparison:
    """The comparison of these scores, one per task."""
    found = paired(a, b)
    one = Comparison(
        a="before",
        b="after",
        a_run="a",
        b_run="b",
        excluded={},
        fraction=True,
        ended=True,
        verdict="unclear",
        tasks=len(a),
        difference=found.difference,
        interval=found.interval,
        p_value=found.p_value,
        p_adjusted=found.p_value,
        limits=(found.lowest, found.highest),
    )
    return replace(one, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("tasks", [6, 25, 100])
def test_a_worse_result_never_has_a_better_outcome(tasks: int, margin: float) -> None:
    outcomes = [
        hold_against(compared([1.0] * tasks, [0.0] * lost + [1.0] * (tasks - lost)), margin).outcome
        for lost in range(tasks + 1)
    ]
    places = [ORDER.index(outcome) for outcome in outcomes]
    assert places == sorted(places) and outcomes[-1] is NoWorse.WORSE


def test_enough_equal_tasks_show_a_margin_and_few_do_not() -> None:
    def outcome(tasks: int) -> NoWorse:
        return hold_against(compared([1.0] * tasks, [1.0] * tasks), 0.05).outcome

    assert (outcome(2), outcome(30), outcome(100)) == (
        NoWorse.CANT_TELL,
        NoWorse.CANT_TELL,
        NoWorse.NO_WORSE,
    )


def test_the_gate_is_as_shut_as_its_worst_comparison() -> None:
    good, bad = compared([1.0] * 100, [1.0] * 100), compared([1.0] * 100, [0.0] * 100)
    gate = no_worse_gate([good, bad, replace(bad, a_run="other")], ["a"], read_margin("5%"))
    assert gate.outcome is NoWorse.WORSE and len(gate.failures) == 1 and len(gate.judgements) == 2
    assert gate.to_json()["comparisons"][0]["outcome"] == "no worse"
    assert not no_worse_gate([good], ["a"], read_margin("5%")).failures


def test_one_sided_is_half_of_two_sided() -> None:
    four_of_eight = compared([1.0] * 8, [0.0] * 4 + [1.0] * 4)
    assert four_of_eight.p_value is not None and 0.05 < four_of_eight.p_value < 0.1
    assert is_worse(four_of_eight) and worse_gate([four_of_eight], ["a"], 50).failures
    assert not worse_gate([four_of_eight], ["a"], 50.1).failures
    assert not is_worse(compared([0.0] * 8, [1.0] * 8))


def test_a_job_that_stopped_when_decided_is_judged_by_what_holds_for_it() -> None:
    standing = AnytimeStanding(8, None, 0.5, (-0.1, 0.9), 3.0)
    stopped = compared([1.0] * 8, [0.0] * 8, anytime=standing, interval=(-0.1, 0.9), verdict="unclear")
    assert not is_worse(stopped)
    assert hold_against(stopped, 0.02).outcome is NoWorse.CANT_TELL
    decided = replace(stopped, verdict="better", interval=(0.1, 0.9))
    assert is_worse(decided) and "(decided, 8 tasks" in worse_gate([decided], ["a"], 0).failures[0]
    assert hold_against(decided, 0.02).outcome is NoWorse.WORSE


def test_a_margin_on_a_scale_of_its_own() -> None:
    assert read_margin("0.5").on_scale(fraction=False) == 0.5
    assert read_margin("5").on_scale(fraction=False) == 5.0
    assert Margin(1.0, False).on_scale(fraction=True) == 0.01
    with pytest.raises(UsageError, match="a scale of its own"):
        read_margin("5%").on_scale(fraction=False)


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "1e3", "2 percent", "%", "2%%", "150%"])
def test_what_is_no_margin(text: str) -> None:
    with pytest.raises(ValueError, match="write 2 or 2%"):
        read_margin(text)
