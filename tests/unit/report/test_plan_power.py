"""What a run can show before it is run, and what its spread was made of."""

from __future__ import annotations

import pytest

from valkyrie.report.formats import spread_text
from valkyrie.report.run_details import gaps_text
from valkyrie.report.statistics.power import planned_gaps, spread_json


def test_a_plan_says_which_gaps_it_can_show() -> None:
    found = planned_gaps(30, 1)
    assert gaps_text(found) == "30 tasks × 1 trial: gaps of about 16 to 26 points; 100 tasks: 9 to 14"
    assert found["more"]["low"] < found["low"] < found["high"]
    assert planned_gaps(30, 4)["high"] < found["high"]


def test_past_runs_with_several_trials_narrow_the_range() -> None:
    steady = {f"t{number}": [float(number % 2)] * 3 for number in range(20)}
    shaky = {f"t{number}": [1.0, 0.0, 1.0, 0.0] for number in range(20)}
    assert planned_gaps(30, 1, [steady])["high"] < planned_gaps(30, 1, [shaky])["low"]
    assert "(from 2 agents in past runs)" in gaps_text(planned_gaps(30, 1, [steady, shaky]))
    single = {f"t{number}": [1.0] for number in range(20)}
    assert planned_gaps(30, 1, [single]) == planned_gaps(30, 1)


@pytest.mark.parametrize(
    ("by_task", "said"),
    [
        ({"a": [1.0, 1.0], "b": [0.0, 0.0], "c": [1.0, 1.0]}, "more tasks help, more trials do not"),
        (
            {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 0.0]},
            "more trials help nearly as much as more tasks",
        ),
    ],
)
def test_the_spread_says_what_would_help(by_task: dict[str, list[float]], said: str) -> None:
    found = spread_json(by_task)
    assert found is not None
    assert spread_text(found).endswith(said)


def test_one_trial_of_each_task_says_nothing_about_trials() -> None:
    assert spread_json({"a": [1.0], "b": [0.0]}) is None
