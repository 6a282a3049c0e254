"""All trials of a run are read by pages, each once."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

import pytest

from valkyrie.tracker.protocol import Tracker, each_trial
from valkyrie.views import TrialFilter, TrialView


class Pages:
    """A tracker that gives trials by pages."""

    def __init__(self, number: int) -> None:
        self.all = [view(place) for place in range(number)]
        self.asked = 0

    def trials(self, _ref: str, query: TrialFilter) -> tuple[list[TrialView], int]:
        self.asked += 1
        start = query.offset if query.after is None else query.after + 1
        return self.all[start : start + query.limit], len(self.all)


def view(place: int) -> TrialView:
    values: dict[str, Any] = {field.name: None for field in fields(TrialView)}
    return TrialView(**{**values, "task_id": f"t{place}", "k": 0, "position": place})


@pytest.mark.parametrize("number", [0, 1, 999, 1000, 1001, 2000, 2500])
def test_all_trials_are_read_once(number: int) -> None:
    pages = Pages(number)
    found = [trial.task_id for trial in each_trial(cast(Tracker, pages), "run")]
    assert found == [f"t{place}" for place in range(number)]
    assert pages.asked <= number // 1000 + 1
