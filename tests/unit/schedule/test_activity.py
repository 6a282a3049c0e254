"""What an executor's log says of the trials it takes and gives back."""

from __future__ import annotations

from valkyrie.schedule.scheduler import TOLD_EVERY_S, Activity


def test_trials_are_told_by_run_and_not_more_often_than_is_read() -> None:
    activity = Activity()
    for _ in range(3):
        activity.add("3f2a9c1e-run", "took")
    activity.add("91bc0000-run", "gave back")
    assert list(activity.lines(100.0, {"3f2a9c1e-run": 3})) == [
        "run 3f2a9c1e: took 3; 3 in hand",
        "run 91bc0000: gave back 1; 0 in hand",
    ]
    activity.add("3f2a9c1e-run", "graded")
    assert list(activity.lines(100.0 + TOLD_EVERY_S / 2, {})) == []
    activity.add("3f2a9c1e-run", "failed")
    assert list(activity.lines(100.0 + TOLD_EVERY_S, {})) == ["run 3f2a9c1e: graded 1, failed 1; 0 in hand"]
    assert list(activity.lines(1e9, {})) == []
