"""What is not refused, but should be known before a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.plan.premises import embedded
from valkyrie.errors import UsageError
from valkyrie.tracker.prepare import prepare
from valkyrie.views import RunRequest


def tasks(root: Path, toml: str) -> Path:
    for name in ("one", "two"):
        (root / name / "tests").mkdir(parents=True)
        (root / name / "task.toml").write_text(toml)
        (root / name / "instruction.md").write_text("Do it.")
        (root / name / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    return root


def test_what_task_files_ask_for_and_do_not_get_is_said_once(tmp_path: Path) -> None:
    folder = tasks(tmp_path / "tasks", "[environment]\nmemry_mb = 3\n")
    plan = prepare(
        RunRequest(agent="nop", benchmark=str(folder), provider="null"), *embedded(tmp_path / "home")
    )
    assert plan.problems == []
    assert plan.notices == [
        "Tasks 'one', 'two': unknown key environment.memry_mb is ignored. Did you mean 'memory_mb'?"
    ]


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan"), 1e308])
def test_time_limits_are_stretched_within_reason(tmp_path: Path, factor: float) -> None:
    folder = tasks(tmp_path / "tasks", "")
    request = RunRequest(agent="nop", benchmark=str(folder), provider="null", timeout_multiplier=factor)
    with pytest.raises(UsageError, match="--timeout-multiplier must be above 0 and at most 1000"):
        prepare(request, *embedded(tmp_path / "home"))


def test_a_network_list_is_refused_with_what_there_is_instead(tmp_path: Path) -> None:
    folder = tasks(tmp_path / "tasks", '[environment]\nnetwork_mode = "allowlist"\n')
    request = RunRequest(agent="nop", benchmark=str(folder), provider="process")
    problems = prepare(request, *embedded(tmp_path / "home")).problems
    assert any("'allowlist'" in problem and "'no-network'" in problem for problem in problems)
