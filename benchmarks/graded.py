"""Whole graded trials on `local`: in a fresh sandbox against the sandbox the agent left, in the same run."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from benchmarks.engine import line, scratch_home, work_off
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

TRIALS, FEW = 240, 40
AT_ONCE = 8
ROUNDS = 3
FILES = {
    "task.toml": '[environment]\nnetwork_mode = "no-network"\nmemory_mb = 512\n',
    "instruction.md": "Write done to out.txt.",
    "environment/data.txt": "some data\n",
    "solution/solve.sh": "echo done > out.txt\n",
    "tests/test.sh": "read -r word < out.txt\n[ $word = done ]; echo $((1 - $?)) > $VERIFIER_DIR/reward.txt",
}
Mode = Literal["fresh", "shared"]


def measure() -> Iterator[dict[str, Any]]:
    """Interleaved rounds, medians; start-up taken out."""
    if not shutil.which("bwrap"):
        yield line("graded_trials_per_s", 0.0, None, "1/s", "skipped: bubblewrap is not installed")
        return
    rates: dict[Mode, list[float]] = {"fresh": [], "shared": []}
    for _ in range(ROUNDS):
        for mode, found in rates.items():
            found.append(marginal_rate(mode))
    fresh, shared = (statistics.median(rates[mode]) for mode in ("fresh", "shared"))
    about = f"one small task, {AT_ONCE} at once, marginal, median of {ROUNDS}"
    yield line("graded_trials_per_s", fresh, shared, "1/s", f"{about}; the peer is our own shared mode")
    yield line("fresh_time_of_shared", shared / fresh, None, "×", "bar: 1.6")


def marginal_rate(mode: Mode) -> float:
    """Trials a second, start-up taken out."""
    small, large = (timed(mode, trials) for trials in (FEW, FEW + TRIALS))
    return TRIALS / (large - small)


def timed(mode: Mode, trials: int) -> float:
    """Seconds one executor takes for so many trials of one task."""
    with scratch_home() as home:
        for name, text in FILES.items():
            place = home / "tasks" / "write-a-word" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        return _run(home / "home", home / "tasks", mode, trials)


def _run(home: Path, tasks: Path, mode: Mode, trials: int) -> float:
    tracker = LocalTracker(home)
    request = RunRequest(
        agent="oracle",
        benchmark=str(tasks),
        provider="local",
        concurrency=AT_ONCE,
        trials=trials,
        verify=mode,
    )
    run_id = tracker.enqueue(request)
    wall, _, _ = work_off(home)
    view = tracker.fetch(run_id)
    tracker.close()
    if view.score.final_score != 1.0:
        raise RuntimeError(f"the measured run ended as {view.state} with {view.score}")
    return wall
