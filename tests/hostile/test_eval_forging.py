"""Agents that forge or break what grades an eval: none passes, none is left out; honest ones do not mind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.abilities import need_local_sandboxes
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunFilter, TrialFilter

pytestmark = pytest.mark.slow

CONTRACT = """\
name: forger
install_cmd: chmod +x forgeries.sh
run_cmd: /bundle/forger/forgeries.sh {problem_statement_path}
"""
SCRIPT = Path(__file__).with_name("eval_forgeries.sh")
CHECK = """\
import json
with open("answer.txt") as file:
    raise SystemExit(0 if json.loads(file.read()) == 42 else 1)
"""
GREP = {"type": "run-command", "config": {"command": "grep -qx 42 answer.txt", "timeout": "20s"}}
PYTHON = {
    "type": "run-command",
    "config": {"command": "python3", "args": ["-I", "hidden/check.py"], "timeout": "20s"},
}
PROGRAM = {"type": "program", "config": {"program": "sh", "args": ["hidden/check.sh"], "timeout": "20s"}}
OTHERS: Mapping[str, list[Any]] = {
    "second-program": [{"type": "run-command", "config": {"command": "sh run.sh"}}, GREP],
    "git-config": [
        {"type": "run-command", "config": {"command": "git status --porcelain >/dev/null; true"}},
        GREP,
    ],
    "redos": [{"type": "output-matches", "config": {"pattern": "^(a+)+$"}}],
}
"""Graders of single ways; the others have all three kinds of programs."""
OWN_PASSES = frozenset({"second-program", "git-config"})
"""Ways whose first grader runs the agent's own program: that it passes says nothing."""
WAYS = [
    way
    for way in re.findall(r"^([a-z-]+)\)", SCRIPT.read_text(), re.MULTILINE)
    if way not in ("honest", "nothing")
]


def spec_of(ways: list[str]) -> str:
    document = {
        "name": "forged",
        "defaults": {"executor": "agent:./forger", "timeout": "60s"},
        "grading_environment": {
            "files": [
                {"src": "hidden/check.py", "dest": "hidden/check.py"},
                {"src": "hidden/check.sh", "dest": "hidden/check.sh"},
            ]
        },
        "stimuli": [
            {
                "name": way,
                "prompt": way,
                "environment": {"files": [{"src": "a.txt", "dest": "a.txt"}]},
                "graders": OTHERS.get(way, [GREP, PYTHON, PROGRAM]),
            }
            for way in ways
        ],
    }
    return json.dumps(document)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The record of each way, and of an honest agent, in one eval."""
    root = tmp_path_factory.mktemp("eval-forging")
    need_local_sandboxes(root / "trying", network="none")
    project = root / "project"
    for name in ("forger", "hidden"):
        (project / name).mkdir(parents=True)
    (project / "forger/contract.yaml").write_text(CONTRACT)
    shutil.copy(SCRIPT, project / "forger/forgeries.sh")
    (project / "hidden/check.py").write_text(CHECK)
    (project / "hidden/check.sh").write_text("grep -qx 42 answer.txt\n")
    (project / "a.txt").write_text("a\n")
    (project / "eval.yaml").write_text(spec_of(["honest", "nothing", *WAYS]))
    command = [sys.executable, "-m", "valkyrie", "eval", "-e", "eval.yaml", "--network", "none"]
    environment = {**os.environ, "VALKYRIE_HOME": str(root / "home")}
    done = subprocess.run(
        [*command, "--workers", "3"], cwd=project, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (results,) = (project / "vally-results").glob("*/results.jsonl")
    found = {one["stimulus"]: one for one in map(json.loads, results.read_text().splitlines())}
    tracker = LocalTracker(root / "home")
    try:
        (run,) = tracker.list(RunFilter()).runs
        trials, _ = tracker.trials(run.id, TrialFilter(limit=1000))
    finally:
        tracker.close()
    return {one.task_id: {**found[one.task_id], "trial": one} for one in trials}


def test_an_honest_agent_passes(records: Mapping[str, Any]) -> None:
    honest = records["honest"]
    assert honest["gradeResult"]["passed"] is True, honest["gradeResult"]
    assert (honest["trial"].state, honest["trial"].score) == ("FINISHED", 1.0)
    assert honest["trial"].confirmed is True


@pytest.mark.parametrize("way", ["nothing", *WAYS])
def test_no_way_passes_or_is_left_out(records: Mapping[str, Any], way: str) -> None:
    record, trial = records[way], records[way]["trial"]
    assert (trial.state, trial.passed, trial.attempts) == ("FINISHED", False, 1), (
        trial.message,
        record.get("gradeResult"),
    )
    passed = [one["passed"] for one in record["gradeResult"]["details"]]
    assert not any(passed[1:] if way in OWN_PASSES else passed), record["gradeResult"]
    if way not in OWN_PASSES:
        assert trial.score == 0.0
