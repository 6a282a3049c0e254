"""What a person waits for at the keyboard."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from benchmarks.engine import line, scratch_home
from valkyrie.executor.client import ExecutorClient
from valkyrie.store import Store
from valkyrie.store.layout import DataFolder
from valkyrie.store.schema import run, trial

VALK = Path(sys.executable).with_name("valk")
RUNS, TRIALS_EACH = 100, 5000

CONTRACT = """\
name: stamp
install_cmd: "true"
run_cmd: "echo agent-started $(date +%s.%N) && cat {problem_statement_path} > /dev/null"
"""


def timed(command: list[str], home: Path | None = None, rounds: int = 15) -> float:
    """Median wall time of a command."""
    environment = {**os.environ, **({"VALKYRIE_HOME": str(home)} if home else {})}
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def version() -> Iterator[dict[str, Any]]:
    """`valk --version` against an empty Python, interleaved."""
    ours, bare = [], []
    for _ in range(10):
        bare.append(timed([sys.executable, "-c", "pass"], rounds=1))
        ours.append(timed([str(VALK), "--version"], rounds=1))
    note = "valk --version over python -c pass; bar: 6"
    yield line("version_ratio", statistics.median(ours), statistics.median(bare), "s", note)


def first_trial() -> Iterator[dict[str, Any]]:
    """From typing `run start` to the agent's command, cold, embedded."""
    found = []
    for _ in range(5):
        with scratch_home() as home:
            found.append(_first_trial(home))
    note = "run start to the agent's command, embedded, cold, median of 5; bar: 1.0"
    yield line("time_to_first_trial_s", statistics.median(found), None, "s", note)


def _first_trial(home: Path) -> float:
    agent = home / "stamp"
    agent.mkdir()
    (agent / "contract.yaml").write_text(CONTRACT)
    environment = {**os.environ, "VALKYRIE_HOME": str(home / "data")}
    command = [str(VALK), "run", "start", "--agent", str(agent), "--benchmark", "quickstart", "--slice", ":1"]
    began = time.time()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    logs = home / "data" / "runs"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for log in logs.rglob("*.log"):
            if match := re.search(r"agent-started (\d+\.\d+)", log.read_text()):
                ExecutorClient(DataFolder(home / "data")).ask("end")
                return float(match[1]) - began
        time.sleep(0.02)
    raise RuntimeError("the agent did not start within 30 s")


def large_store() -> Iterator[dict[str, Any]]:
    """`run list` and `run fetch` on a store with half a million trials."""
    with scratch_home() as home:
        run_id = fill(home)
        for name, command in (("run_list_s", ["run", "list"]), ("run_fetch_s", ["run", "fetch", run_id])):
            seconds = timed([str(VALK), *command], home, rounds=7)
            yield line(name, seconds, None, "s", f"{RUNS} runs × {TRIALS_EACH:,} trials; bar: 0.4")


def fill(home: Path) -> str:
    """A store of many finished runs; the id of one."""
    store = Store(DataFolder(home).database)
    run_id = ""
    for number in range(RUNS):
        run_id = str(uuid.uuid4())
        values = {
            "id": run_id, "state": "FINISHED", "agent": "nap", "benchmark": "null", "dataset": "5000",
            "provider": "null", "concurrency": 50, "fraction": True, "created_at": 1e9 + number,
            "arguments": {"trials": 1}, "agent_frozen": {}, "benchmark_source": {}, "enforcement": {},
            "n_finished": TRIALS_EACH, "n_passed": TRIALS_EACH, "score_sum": float(TRIALS_EACH),
            "final_score": 1.0, "score_graded": 1.0,
        }  # fmt: skip
        rows = [
            {"run_id": run_id, "position": n, "task_id": f"task-{n}", "k": 0, "digest": "d", "attempts": 1,
             "state": "FINISHED", "score": 1.0, "passed": True, "started_at": 1.0, "finished_at": 2.0}
            for n in range(TRIALS_EACH)
        ]  # fmt: skip
        with store.writing() as connection:
            connection.execute(insert(run).values(**values))
            connection.execute(insert(trial), rows)
    store.close()
    return run_id
