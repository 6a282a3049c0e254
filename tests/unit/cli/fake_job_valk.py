"""`valk` on canned jobs, as a program of its own: `fake_job_valk.py SCENE ARGS…`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import valkyrie.tracker
from tests.unit.cli.fake_jobs import FakeJobs, make_job
from tests.unit.cli.fake_tracker import HALFWAY, make_run, make_trial
from valkyrie.cli.main import main
from valkyrie.views.jobs import JobView


class Breaking(FakeJobs):
    """Falls over in the middle of watching."""

    def follow_job(self, ref: str, *, interval: float = 0.2) -> Iterator[JobView]:
        yield self._job(ref)
        time.sleep(0.3)
        raise RuntimeError("a wire came loose")


def scene(name: str) -> FakeJobs:
    now = time.time()
    going = make_run(
        "run-one", agent="codex", model="gpt-5", state="IN_PROGRESS", started_at=now - 65, finished_at=None,
        total=12, score=HALFWAY, counts={"FINISHED": 5, "IN_PROGRESS": 40, "ERROR": 1, "PENDING": 6},
    )  # fmt: skip
    other = replace(make_run("run-two", agent="nop", total=4, counts={"FINISHED": 4}), started_at=now - 60)
    job = make_job(state="running", runs=[going, other])
    tracker = Breaking([job]) if name == "breaking" else FakeJobs([job])
    tracker.by_run["run-one"] = [
        make_trial(
            "broke", state="ERROR", category="infrastructure", cause="sandbox_failed", message="no room"
        ),
        *(
            make_trial(f"task-{n:02d}", state="IN_PROGRESS", started_at=now - 30 + n, finished_at=None)
            for n in range(40)
        ),
    ]
    tracker.endless = name == "endless"
    if name == "ending":
        tracker.job_steps = [job, make_job(version=2)]
    return tracker


if __name__ == "__main__":
    fake = scene(sys.argv.pop(1))
    valkyrie.tracker.open_tracker = lambda **_options: fake  # type: ignore[attr-defined]
    sys.stderr.write(f"pid {os.getpid()}\n")
    sys.exit(main())
