"""`valk` on a fake tracker, as a program of its own: `fake_valk.py SCENE ARGS…`."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import valkyrie.tracker
from tests.unit.cli.fake_tracker import HALFWAY, FakeTracker, make_run, make_trial
from valkyrie.cli.main import main
from valkyrie.views import LogLine, ResultsLink


def scene(name: str) -> FakeTracker:
    if name == "many":
        return FakeTracker([make_run(f"run-{number:04d}", agent=f"agent-{number}") for number in range(60)])
    going = make_run(
        state="IN_PROGRESS", finished_at=None, started_at=time.time() - 65, score=HALFWAY,
        counts={"FINISHED": 5, "IN_PROGRESS": 1, "PENDING": 6},
    )  # fmt: skip
    tracker = FakeTracker([going])
    tracker.trial_views = [
        make_trial("solve-it", state="IN_PROGRESS", started_at=time.time() - 3, finished_at=None),
        make_trial(
            "broke", state="ERROR", category="infrastructure", cause="sandbox_failed", message="no room"
        ),
    ]
    tracker.link = ResultsLink("s3://bucket/key.json", "https://bucket/key.json?signature=abc")
    tracker.lines = [LogLine("solve-it", 0, 1, "one\x1b]0;owned\x07 line")]
    if name == "wordy":
        tracker.lines *= 5_000
    if name == "ending":
        tracker.steps = [going, replace(make_run(), version=2)]
    tracker.endless = name == "endless"
    return tracker


if __name__ == "__main__":
    fake = scene(sys.argv.pop(1))
    valkyrie.tracker.open_tracker = lambda **_options: fake  # type: ignore[attr-defined]
    sys.exit(main())
