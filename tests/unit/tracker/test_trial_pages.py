"""All trials of a run are read by pages, each once."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, cast

import pytest

from valkyrie.tracker.protocol import Tracker, each_trial
from valkyrie.views import TrialFilter, TrialView


class Pages:
    """A tracker that knows how trials are read by pages: of this version, or of an earlier one."""

    def __init__(self, number: int, *, keyset: bool) -> None:
        self.all = [view(place) if keyset else replace(view(place), position=0) for place in range(number)]
        self.keyset = keyset
        self.asked = 0

    def trials(self, _ref: str, query: TrialFilter) -> tuple[list[TrialView], int]:
        self.asked += 1
        start = query.offset
        if self.keyset and query.after is not None:
            start = query.after + 1
        return self.all[start : start + query.limit], len(self.all)


def view(place: int) -> TrialView:
    values: dict[str, Any] = {field.name: None for field in fields(TrialView)}
    return TrialView(**{**values, "task_id": f"t{place}", "k": 0, "position": place})


@pytest.mark.parametrize("keyset", [True, False])
@pytest.mark.parametrize("number", [0, 1, 999, 1000, 1001, 2000, 2500])
def test_all_trials_are_read_once_also_from_an_earlier_tracker(number: int, keyset: bool) -> None:
    pages = Pages(number, keyset=keyset)
    found = [trial.task_id for trial in each_trial(cast(Tracker, pages), "run")]
    assert found == [f"t{place}" for place in range(number)]
    assert pages.asked <= number // 1000 + 1
