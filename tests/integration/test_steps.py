"""Tasks of several steps, from task.toml to the score: an agent is told one thing after another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from valkyrie.domain import Json
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

TOML = """
artifacts = ["told", "/nowhere", {source = "/app", destination = "whole", exclude = ["st*"]}]
[environment]
network_mode = "no-network"
[verifier.env]
WHO = "everyone"
[[verifier.collect]]
command = "wc -c < told > /logs/artifacts/size; false"
[[steps]]
name = "plan"
min_reward = 0.5
[[steps]]
name = "build"
verifier = {env = {WHO = "build"}}
artifacts = ["given"]
"""
GIVE = """
give() { echo "$WHO"; echo "{\\"reward\\": $1, \\"seen\\": 1}" > /logs/verifier/reward.json; }
"""
FILES = {
    "task.toml": TOML,
    "environment/start": "",
    "tests/words.sh": GIVE,
    "steps/plan/instruction.md": "Plan it.",
    "steps/plan/tests/test.sh": """
        . /tests/words.sh
        grep -q 'Plan it' told && give 1 || give 0
        touch /tests/left
    """,
    "steps/plan/solution/solve.sh": "cp /tmp/instruction.md told",
    "steps/build/instruction.md": "Build it.",
    "steps/build/tests/test.sh": """
        . /tests/words.sh
        grep -q 'Build it' told && [ -e start ] && [ -e given ] && [ -e made ] && give 0.5
    """,
    "steps/build/solution/solve.sh": """
        ls -A /tests /logs/verifier | grep -q '[a-z]$' || cp /tmp/instruction.md told
    """,
    "steps/build/workdir/given": "",
    "steps/build/workdir/setup.sh": "touch made",
}


def written(folder: Path) -> Path:
    final = {"task.toml": f'multi_step_reward_strategy = "final"\n{TOML}'}
    for task, files in {"mean": FILES, "final": FILES | final}.items():
        for name, text in files.items():
            (folder / task / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / task / name).write_text(text)
    return folder


def results(tracker: LocalTracker, folder: Path, agent: str) -> tuple[str, Json]:
    run = tracker.start(RunRequest(agent=agent, benchmark=str(folder), provider="local")).run
    tracker.wait(run.id, timeout=120)
    return run.id, tracker.results(run.id)["evaluation_results"]


@pytest.mark.slow
def test_each_step_is_told_tried_and_graded_before_the_next(tracker: LocalTracker, tmp_path: Path) -> None:
    tasks = written(tmp_path / "tasks")
    run_id, solved = results(tracker, tasks, "oracle")
    steps = [(step["name"], step["score"]) for step in solved["mean"]["steps"]]
    assert steps == [("plan", 1.0), ("build", 0.5)]
    assert solved["mean"]["rewards"] == {"reward": 0.75, "seen": 1.0}
    assert solved["final"]["rewards"] == {"reward": 0.5, "seen": 1.0}
    (kept,) = (tmp_path / "home").rglob(f"{run_id}/**/mean/**/artifacts")
    assert sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()) == [
        *(f"build/{name}" for name in ("given", "size", "told", "whole/given", "whole/made", "whole/told")),
        *(f"plan/{name}" for name in ("size", "told", "whole/told")),
    ]
    said = (tmp_path / "home").rglob(f"{run_id}/**/test-stdout.txt")
    assert sorted((path.parent.name, path.read_text()) for path in said) == [
        # No pass, and the task does not say where its tests run: in a fresh sandbox, then in the agent's.
        *(("build", "build\n"),) * 4,
        *(("plan", "everyone\n"),) * 2,
    ]
    _, idle = results(tracker, tasks, "nop")
    assert [step["name"] for step in idle["mean"]["steps"]] == ["plan"]
    assert (idle["mean"]["stopped_after"], idle["mean"]["score"]) == ("plan", 0.0)
