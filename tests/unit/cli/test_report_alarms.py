"""When a run that goes on looks wrong, and when it does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.sample_views import HALFWAY, make_run, make_trial
from valkyrie.report.run_details import alarms
from valkyrie.views import RunView, TrialView

NOW = 1_700_010_000.0


def going(pending: int = 0, active: int = 0, **changed: Any) -> RunView:
    counts = {"PENDING": pending, "IN_PROGRESS": active, "FINISHED": 12 - pending - active}
    made = {"state": "IN_PROGRESS", "score": HALFWAY, "finished_at": None, "counts": counts, **changed}
    return make_run(**made)


def active(name: str, minutes: float) -> TrialView:
    return make_trial(name, state="EVALUATING", started_at=NOW - 60 * minutes, finished_at=None)


def test_long_trials_are_named_longest_first() -> None:
    trials = [active("a", 31), active("b", 29), active("c", 45), active("d", 90), active("e", 40)]
    (said,) = alarms(going(active=5), trials, NOW)
    assert said.startswith("4 trials are under way for more than 30 min: ")
    assert said.endswith("d (1 h 30 min), c (45 min 00 s), e (40 min 00 s) and 1 more")


def test_when_only_some_were_looked_at_it_says_at_least() -> None:
    (said,) = alarms(going(active=5), [active("a", 31), active("b", 32)], NOW)
    assert said.startswith("at least 2 trials are under way")


def of_late(failed: int, total: int = 20) -> list[TrialView]:
    return [make_trial(f"e{n}", state="ERROR" if n < failed else "FINISHED") for n in range(total)]


def test_a_rising_share_of_errors() -> None:
    counts = {"IN_PROGRESS": 5, "FINISHED": 90, "ERROR": 20}
    (said,) = alarms(going(counts=counts), of_late(15), NOW)
    assert said == "15 of the last 20 trials that ended failed, 5 of 90 before; valk run errors says why"
    (said,) = alarms(going(counts={"IN_PROGRESS": 5, "FINISHED": 2, "ERROR": 18}), of_late(18), NOW)
    assert said == "18 of the last 20 trials that ended failed; valk run errors says why"


@pytest.mark.parametrize(
    ("counts", "last"),
    [
        ({"FINISHED": 90, "ERROR": 20}, of_late(9)),
        ({"FINISHED": 50, "ERROR": 50}, of_late(12)),
        ({"FINISHED": 2, "ERROR": 8}, of_late(8, 10)),
    ],
    ids=["few", "no more than before", "too early to tell"],
)
def test_errors_that_are_no_alarm(counts: dict[str, int], last: list[TrialView]) -> None:
    assert alarms(going(counts={"IN_PROGRESS": 5, **counts}), last, NOW) == []


def test_nothing_active_with_work_waiting() -> None:
    (said,) = alarms(going(pending=7), [make_trial("p", state="PENDING")], NOW)
    assert "7 trials pending and none in progress, although an executor is alive" in said


def test_less_at_once_than_allowed() -> None:
    (said,) = alarms(going(pending=7, active=3), [active("a", 1), make_trial("p", state="PENDING")], NOW)
    assert said.startswith("3 of 5 trials at once, although 7 are pending")


@pytest.mark.parametrize(
    "run",
    [
        going(pending=7, executor="none"),
        going(pending=7, note="waits for its secrets"),
        going(pending=7, created_at=NOW - 5),
        going(pending=7, active=5),
        going(active=3),
        going(pending=7, state="STOPPING"),
        make_run(),
    ],
    ids=["no executor", "its note says why", "just started", "full", "nothing waits", "stopping", "ended"],
)
def test_no_alarm(run: RunView) -> None:
    assert alarms(run, [make_trial("p", state="PENDING"), active("a", 1)], NOW) == []


def test_trials_that_wait_for_their_next_attempt_are_no_alarm() -> None:
    waiting = make_trial("p", state="PENDING", retry_at=NOW + 30)
    assert alarms(going(pending=7), [waiting], NOW) == []
    assert alarms(going(pending=7), [waiting, make_trial("q", state="PENDING")], NOW) != []
