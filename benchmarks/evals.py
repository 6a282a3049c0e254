"""Eval specs through the real command: against Inspect on the same cases, and against bare bubblewrap."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import line, scratch_home
from benchmarks.null_trials import CONCURRENCY
from benchmarks.sandboxed import AT_ONCE, bare_rate
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunFilter

CASES, FEW = 500, 100
ROUNDS = 3
STATIC = f"{CASES} mock stimuli, two static graders each, {CONCURRENCY} at once, best of {ROUNDS}"
PROGRAMS = f"{CASES} mock stimuli, one run-command each on local, {AT_ONCE} at once, best of {ROUNDS}"
PHASE = "from the first trial's start to the last one's end"
Graders = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Speed:
    """Trials a second."""

    whole: float
    """Of the whole command, process start included."""
    marginal: float
    """Of the whole command too, between few cases and all of them: start-up taken out."""
    phase: float
    """While trials are run."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One `valkyrie eval`, from its start to its end."""

    wall_s: float
    cpu_s: float
    """Of the process and of all it waited for."""
    phase_s: float
    """From the first lease to the score."""


def measure(peer: Speed | None) -> Iterator[dict[str, Any]]:
    """Static graders, then one program each."""
    # Removed at the end: a file system that just lost thousands of files is slow to make new ones.
    with scratch_home() as home:
        yield from measure_static(home, peer)
        yield from measure_programs(home)


def measure_static(home: Path, peer: Speed | None) -> Iterator[dict[str, Any]]:
    """Nothing but the engine, the graders and the files that stay."""
    few, runs, workers = [], [], ("--workers", str(CONCURRENCY))
    for number in range(ROUNDS):
        few.append(timed_eval(home / f"few-{number}", static_graders, *workers, cases=FEW))
        runs.append(timed_eval(home / f"static-{number}", static_graders, *workers))
    wall, small = (min(one.wall_s for one in some) for some in (runs, few))
    about = f"{STATIC}; whole command, process start included"
    yield line("eval_static_s", wall, None, "s", f"{about}; bar: 3", cpu_s=least_cpu(runs))
    yield line("eval_static_per_s", CASES / wall, peer.whole if peer else None, "1/s", about)
    rate, note = (CASES - FEW) / (wall - small), f"the same, marginal, N = {FEW} to {CASES}"
    yield line("eval_static_marginal_per_s", rate, peer.marginal if peer else None, "1/s", note)
    rate, note = CASES / min(one.phase_s for one in runs), f"{PHASE}; bar: 10 × Inspect"
    yield line("eval_static_trials_per_s", rate, peer.phase if peer else None, "1/s", note)


def measure_programs(home: Path) -> Iterator[dict[str, Any]]:
    """In turns with bare bubblewrap."""
    if not shutil.which("bwrap"):
        yield line("eval_run_command_of_bare", 0.0, None, "1/s", "skipped: bubblewrap is not installed")
        return
    bare, runs, flags = [], [], ("--provider", "local", "--workers", str(AT_ONCE))
    for number in range(ROUNDS):
        bare.append(asyncio.run(bare_rate()))
        runs.append(timed_eval(home / f"programs-{number}", one_program, *flags))
    wall, floor = min(one.wall_s for one in runs), statistics.median(bare)
    yield line("eval_run_command_s", wall, None, "s", PROGRAMS, cpu_s=least_cpu(runs))
    note = "whole command, process start included; two sandboxes a trial"
    yield line("eval_run_command_of_bare", CASES / wall, floor, "1/s", note)
    alone = CASES / min(one.phase_s for one in runs)
    yield line("eval_run_command_trials_of_bare", alone, floor, "1/s", PHASE)


def least_cpu(runs: list[Timed]) -> float:
    """What a round takes when little else disturbs it."""
    return round(min(one.cpu_s for one in runs), 2)


def static_graders(number: int) -> str:
    """What Inspect's `includes` and `match` check: the word somewhere, and at the end."""
    return (
        f"      - {{type: output-contains, config: {{substring: word-{number}}}}}\n"
        f"      - {{type: output-matches, config: {{pattern: 'word-{number}$'}}}}\n"
    )


def one_program(number: int) -> str:
    """One command in a sandbox."""
    return f"      - {{type: run-command, config: {{command: test word-{number}}}}}\n"


def spec(graders: Graders, cases: int) -> str:
    """An eval spec; the mock agent answers with the prompt. `peers/inspect_tasks.py` has the same cases."""
    stimuli = "".join(
        f"  - name: case-{number}\n"
        f"    prompt: 'Case {number}: explain the change, then say word-{number}'\n"
        f"    graders:\n{graders(number)}"
        for number in range(1, cases + 1)
    )
    return f"name: bench\ndefaults: {{executor: mock, runs: 1}}\nstimuli:\n{stimuli}"


def timed_eval(home: Path, graders: Graders, *flags: str, cases: int = CASES) -> Timed:
    """Run the command in a project and on a data folder of its own, and see that every verdict passed."""
    project = home / "project"
    project.mkdir(parents=True)
    (project / "eval.yaml").write_text(spec(graders, cases))
    command = [sys.executable, "-m", "valkyrie", "eval", "-e", "eval.yaml", "--output-dir", "out", *flags]
    environment = {**os.environ, "VALKYRIE_HOME": str(home / "data")}
    output = home / "output"
    with output.open("wb") as sink:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=project, env=environment, stdout=sink, stderr=sink)
        _pid, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"eval ended with {process.returncode}: {output.read_text()[-2000:]}")
    check(project / "out", cases)
    return Timed(wall, usage.ru_utime + usage.ru_stime, phase_seconds(home / "data"))


def check(results: Path, cases: int) -> None:
    """An eval that failed quickly must not look like a fast one."""
    (file,) = results.glob("*/results.jsonl")
    passed = [json.loads(one)["gradeResult"]["passed"] for one in file.read_text().splitlines()]
    if passed != [True] * cases:
        raise RuntimeError(f"{passed.count(True)} of {cases} trials passed")


def phase_seconds(data: Path) -> float:
    """From the first lease to the score of the one run there is."""
    tracker = LocalTracker(data)
    (run,) = tracker.list(RunFilter()).runs
    tracker.close()
    return (run.finished_at or 0.0) - (run.started_at or 0.0)
