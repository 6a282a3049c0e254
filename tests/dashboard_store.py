"""A data folder with runs whose names, messages, logs and files try to break out of a page."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.stored_runs import add_executor, ended, run_values, tick
from valkyrie.domain import Category, Outcome, TrialState
from valkyrie.store import Store, journal, runs
from valkyrie.store.layout import DataFolder

HOSTILE = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>\x1b[31m‮"
TASKS = ("easy", "hard", f"task {HOSTILE}", "broken", "waits")
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(3)"><script>alert(4)</script></svg>'


def fill(home: Path) -> tuple[str, str]:
    """Make two runs on the same tasks; return their ids. The second did worse, and its texts are hostile."""
    data = DataFolder(home)
    data.make()
    store = Store(data.database)
    add_executor(store, "me", expires_in=3600)
    good = _add(store, agent="good", label="nightly")
    bad = _add(store, agent=f"bad {HOSTILE}", model=HOSTILE, label=HOSTILE, started_by=HOSTILE)
    leased = tick(store, good, bad).leased
    with store.writing() as connection:
        changes = []
        for one in leased:
            better = one.run_id == good
            if one.task_id == "waits":
                continue
            if one.task_id == "broken" and not better:
                said = {"category": Category.AGENT, "cause": "agent_failed", "message": HOSTILE}
                finish = ended(one, TrialState.ERROR, exit_code=3, **said)
                changes.append(finish.__class__(**{**_fields(finish), "outcome": Outcome.FAILED}))
                continue
            passed = better or one.task_id == "easy"
            changes.append(
                ended(
                    one,
                    score=float(passed),
                    passed=passed,
                    confirmed=passed,
                    score_confirmed=float(passed),
                    cost=0.25 if better else 0.5,
                    result={"reason": HOSTILE},
                    timing={"build": 0.2, "agent": 1.5, "grade": 0.3},
                    evidence={
                        "system": {"added": 1, "changed": 0, "removed": 0, "paths": [[HOSTILE, "added"]]}
                    },
                )
            )
        journal.record(connection, changes)
    for one in leased:
        _keep(data, one.run_id, one.task_id)
    store.close()
    return good, bad


def _fields(finish: journal.Finish) -> dict[str, object]:
    return {name: getattr(finish, name) for name in finish.__dataclass_fields__}


def _add(store: Store, **more: object) -> str:
    values = run_values(benchmark="bench", **more)
    trials = [runs.NewTrial(task, 0, f"sha256:{task}", None, None) for task in TASKS]
    with store.writing() as connection:
        runs.create(connection, {**values, "concurrency": 10}, trials)
    return str(values["id"])


def _keep(data: DataFolder, run_id: str, task_id: str) -> None:
    """Keep a log, a trajectory of 120 steps, and files of an attempt."""
    folder = data.run(run_id).attempt(task_id, 0, 1)
    (folder / "agent").mkdir(parents=True)
    steps: list[dict[str, object]] = [{"step_id": 1, "source": "user", "message": f"Do it. {HOSTILE}"}]
    for number in range(2, 121):
        call = {"tool_call_id": f"c{number}", "function_name": "bash", "arguments": {"command": HOSTILE}}
        steps.append(
            {
                "step_id": number,
                "source": "agent",
                "message": f"step {number} {HOSTILE}",
                "tool_calls": [call],
                "observation": {
                    "results": [{"source_call_id": f"c{number}", "content": f"seen {number} {HOSTILE}"}]
                },
                "metrics": {"prompt_tokens": 1000 + number, "completion_tokens": 20, "cost_usd": 0.01},
            }
        )
    trajectory = {"schema_version": "ATIF-v1.8", "agent": {"name": "bad", "version": "1"}, "steps": steps}
    (folder / "agent" / "trajectory.json").write_text(json.dumps(trajectory))
    (folder / "agent" / "picture.svg").write_bytes(SVG)
    (folder / "agent" / "<b>name.html").write_text(f"<script>alert(5)</script>{HOSTILE}")
    data.run(run_id).log(task_id, 0, 1).write_text(
        f"began at {time.time():.0f}\n{HOSTILE}\nthe end of the log\n"
    )
