"""Where graders' programs run: in a fresh sandbox, in the agent's own, or in both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.abilities import need_local_sandboxes
from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from tests.integration.evals.test_eval_command import records
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunFilter, TrialFilter, TrialView

CONTRACT = """\
name: installer
install_cmd: "true"
run_cmd: bash /bundle/installer/run.sh {problem_statement_path}
final_output: /root/.installer/answer
"""
SCRIPT = """\
printf '#!/bin/sh\\necho installed\\n' > /usr/local/bin/my-tool && chmod 755 /usr/local/bin/my-tool
mkdir -p /root/.installer && echo "the answer" > /root/.installer/answer
cd /workspace && echo made > made.txt && rm a.txt && ln -s made.txt link
"""
SYSTEM = {"type": "run-command", "config": {"command": "my-tool", "stdout_contains": "installed"}}
WORK = (
    {"type": "run-command", "config": {"command": "cat link; test ! -e a.txt", "stdout_contains": "made"}},
    {"type": "run-command", "config": {"command": "rm made.txt"}},
    {"type": "file-contains", "config": {"path": "made.txt", "value": "made"}},
    {"type": "diff-contains", "config": {"value": "+made"}},
    {"type": "output-contains", "config": {"substring": "the answer"}},
)


def evaluated(valk: Valk, folder: Path, *words: str) -> tuple[int, dict[str, TrialView]]:
    """How the command ended, and its trials by stimulus."""
    need_local_sandboxes(folder / "trying", network="none")
    (folder / "installer").mkdir()
    (folder / "installer/contract.yaml").write_text(CONTRACT)
    (folder / "installer/run.sh").write_text(SCRIPT)
    (folder / "a.txt").write_text("a\n")
    files = {"environment": {"files": [{"src": "a.txt", "dest": "a.txt"}]}}
    document = {
        "name": "verified",
        "defaults": {"executor": "agent:./installer"},
        "stimuli": [
            {"name": "system", "prompt": "Install it.", "graders": [SYSTEM], **files},
            {"name": "work", "prompt": "Make it.", "graders": list(WORK), **files},
        ],
    }
    (folder / "eval.yaml").write_text(json.dumps(document))
    ended = valk("eval", "-e", "eval.yaml", "--network", "none", *words)
    (results,) = (folder / "vally-results").iterdir()
    assert all("fault" not in one for one in records(results)), ended.out
    tracker = LocalTracker(folder / "home")
    try:
        (run,) = tracker.list(RunFilter()).runs
        trials, _ = tracker.trials(run.id, TrialFilter())
    finally:
        tracker.close()
    return ended.code, {one.task_id: one for one in trials}


def test_by_default_what_was_done_to_the_system_does_not_count(valk: Valk, tmp_path: Path) -> None:
    code, trials = evaluated(valk, tmp_path)
    assert (code, trials["system"].passed, trials["work"].passed) == (1, False, True)
    assert {one.confirmed for one in trials.values()} == {True}
    assert ["/usr/local/bin/my-tool", "added"] in (trials["system"].evidence or {})["system"]["paths"]


@pytest.mark.parametrize(("mode", "work_confirmed"), [("shared", False), ("both", True)])
def test_asked_for_the_agents_own_sandbox_it_does(
    valk: Valk, tmp_path: Path, mode: str, work_confirmed: bool
) -> None:
    code, trials = evaluated(valk, tmp_path, "--verify", mode)
    assert code == 0 and all(one.passed for one in trials.values())
    assert (trials["system"].confirmed, trials["work"].confirmed) == (False, work_confirmed)
