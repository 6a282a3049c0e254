"""A run that stops by itself, under kill -9: the same end as its twin that nobody disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

ROOT = Path(__file__).parents[2]
REQUEST = RunRequest(
    agent="tests.integration.scripted:ScriptedAgent",
    benchmark="tests.integration.scripted:ScriptedBenchmark",
    dataset="ungraded*40",
    provider="null",
    concurrency=1,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def executor(home: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "VALKYRIE_HOME": str(home),
        "VALKYRIE_EXECUTOR_IDLE_S": "0",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    return subprocess.Popen([sys.executable, "-m", "valkyrie.executor", str(home)], env=environment)


def ended(tracker: LocalTracker, run_id: str) -> dict[str, Any]:
    """How a run ended, without its own name."""
    run = tracker.fetch(run_id)
    said = (run.note or "").replace(run_id[:8], "RUN")
    final = tracker.results(run_id).get("final_evaluation")
    return {"state": run.state, "counts": dict(run.counts), "note": said, "final": final}


def work_off(home: Path, tracker: LocalTracker, run_id: str, kill_at: list[int]) -> int:
    """Let executors work on the run, killed at so many errors and when it just stopped itself."""
    kills, stopped = 0, not kill_at
    while tracker.fetch(run_id).state not in ("STOPPED", "FINISHED", "ERROR"):
        process = executor(home)
        while process.poll() is None:
            run = tracker.fetch(run_id)
            just_stopped = not stopped and run.state == "STOPPING"
            if just_stopped or (kill_at and run.counts["ERROR"] >= kill_at[0]):
                stopped = stopped or just_stopped
                kill_at[:] = [count for count in kill_at if count > run.counts["ERROR"]]
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            time.sleep(0.002)
        process.wait()
    return kills


def test_kills_do_not_change_how_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    found = []
    for name, kill_at in (("quiet", []), ("disturbed", [3, 11, 18, 19, 20])):
        home = tmp_path / name
        tracker = LocalTracker(home)
        run_id = tracker.enqueue(REQUEST)
        kills = work_off(home, tracker, run_id, kill_at)
        assert kills >= (1 if name == "disturbed" else 0)
        found.append(ended(tracker, run_id))
        tracker.close()
    quiet, disturbed = found
    assert quiet["counts"]["ERROR"] == 20 and quiet["state"] == "STOPPED"
    assert disturbed == quiet
