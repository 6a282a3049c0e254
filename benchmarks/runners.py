"""What a standalone runner costs: its import, and many tasks of a model that answers after a while."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import line, scratch_home
from benchmarks.services import ROUNDS as IMPORTS
from benchmarks.services import import_s

TASKS, AT_ONCE, ANSWER_S = 2000, 100, 0.05
FEWER = 500
ROUNDS = 3
IDEAL_S = TASKS / AT_ONCE * ANSWER_S
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Timed:
    """One `run`."""

    wall_s: float
    """Of the whole command, process start included."""
    phase_s: float
    """From the run's configuration on disk to the last answer on disk."""
    cpu_s: float
    peak_rss_mb: float


def imports() -> Iterator[dict[str, Any]]:
    """What authors pay for the package, beside pydantic."""
    rounds = [
        (import_s("import pydantic, benchmark_runner"), import_s("import pydantic")) for _ in range(IMPORTS)
    ]
    over = statistics.median(with_it for with_it, _ in rounds) - statistics.median(bare for _, bare in rounds)
    yield line("import_benchmark_runner_ms", over * 1000, None, "ms", "over import pydantic; bar: 60")


def tasks() -> Iterator[dict[str, Any]]:
    """Many tasks at once against a loopback model.

    Each task makes a file and two folders. ext4 passes over what was deleted in the last minutes whenever it
    makes one: measure when nothing of size was deleted before, also not by this, or with BENCH_DIR elsewhere.
    """
    with scratch_home() as home, model_server(home) as url:
        fewer = [timed(home, f"fewer-{number}", url, FEWER) for number in range(ROUNDS)]
        runs = [timed(home, f"all-{number}", url, TASKS) for number in range(ROUNDS)]
    what = f"{TASKS} tasks, {AT_ONCE} at once, a model that takes {ANSWER_S * 1000:g} ms, best of {ROUNDS}"
    cpu = round(min(one.cpu_s for one in runs), 2)
    phase = min(one.phase_s for one in runs)
    yield line("runner_tasks_s", phase, IDEAL_S, "s", f"{what}; bar: 1.5 of the ideal", cpu_s=cpu)
    note = "whole command, process start, reading back and report included"
    yield line("runner_command_s", min(one.wall_s for one in runs), IDEAL_S, "s", note)
    small, large = (min(one.peak_rss_mb for one in some) for some in (fewer, runs))
    yield line("runner_peak_rss_mb", large, small, "MB", f"{TASKS} tasks to {FEWER}; bar: flat")


def timed(home: Path, name: str, url: str, count: int) -> Timed:
    """Generate so many answers in a folder of their own, and see that all are there."""
    folder = home / name
    folder.mkdir()
    (folder / "count").write_text(str(count))
    command = [sys.executable, str(HERE / "measured_runner.py"), "run", "--model", "m", "--run-id", "r"]
    command += ["--skip-eval", "--dataset-file", "count", "--parallelism", str(AT_ONCE)]
    command += [
        "--custom-endpoint",
        url,
        "--custom-api-key",
        "k",
        "--chat-completions",
        "--disable-streaming",
    ]
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    output = process.stdout.read()
    _pid, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    answers = list((folder / "results" / "r").glob("*/generation.json"))
    if process.returncode or len(answers) != count:
        raise RuntimeError(f"{len(answers)} answers, exit {process.returncode}: {output.decode()[-2000:]}")
    first = (folder / "results" / "r" / "run_config.json").stat().st_mtime
    phase = max(answer.stat().st_mtime for answer in answers) - first
    peak = int((folder / "peak_kb").read_text()) / 1000
    return Timed(wall, phase, usage.ru_utime + usage.ru_stime, peak)


@contextmanager
def model_server(home: Path) -> Iterator[str]:
    """A model that takes its time, in a process of its own."""
    script = home / "script.json"
    script.write_text(json.dumps([{"say": "word", "delay": ANSWER_S}]))
    process = subprocess.Popen(
        [sys.executable, "-m", "valkyrie.testing.model_server", "--script", str(script)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield f"{process.stdout.readline().strip()}/v1"
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
