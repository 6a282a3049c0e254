"""Runs of the real executor process on a real store, timed from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, RunView

NULL = "valkyrie.testing.null:NullBenchmark"
NAP = "valkyrie.testing.null:NapAgent"
ONE_COMMAND = "valkyrie.testing.null:OneCommandAgent"


@dataclass(frozen=True, slots=True)
class Timed:
    """One run, worked off by one executor process."""

    wall_s: float
    """From starting the executor to its end."""
    cpu_s: float
    peak_rss_mb: float
    run: RunView

    @property
    def work_s(self) -> float:
        """From the first lease to the score."""
        return (self.run.finished_at or 0.0) - (self.run.started_at or 0.0)


@contextmanager
def scratch_home() -> Iterator[Path]:
    """A data folder of its own, on disk, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="valkyrie-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def timed_run(dataset: str, concurrency: int, agent: str = NAP, provider: str = "null") -> Timed:
    """Store a run, then let one executor work it off."""
    with scratch_home() as home:
        tracker = LocalTracker(home)
        request = RunRequest(
            agent=agent, benchmark=NULL, dataset=dataset, concurrency=concurrency, provider=provider
        )
        run_id = tracker.enqueue(request)
        wall, cpu, rss = work_off(home)
        view = tracker.fetch(run_id)
        tracker.close()
    if view.state != "FINISHED" or view.counts["FINISHED"] != view.total:
        raise RuntimeError(f"the measured run ended as {view.state}: {view.counts} {view.error}")
    return Timed(wall, cpu, rss, view)


def work_off(home: Path) -> tuple[float, float, float]:
    """One executor process until nothing is left: wall and CPU seconds, peak memory."""
    environment = {**os.environ, "VALKYRIE_EXECUTOR_IDLE_S": "0"}
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "valkyrie.executor", str(home)], env=environment)
    _pid, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the executor ended with {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def line(name: str, ours: float, peer: float | None, unit: str, note: str, **more: Any) -> dict[str, Any]:
    """One row of the report."""
    ratio = ours / peer if peer else None
    return {
        "name": name,
        "ours": round(ours, 4),
        "peer": None if peer is None else round(peer, 4),
        "ratio": None if ratio is None else round(ratio, 3),
        "unit": unit,
        "note": note,
        **more,
    }
