"""What an ordinary user's sandbox cannot give a task is said before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.cgroups import CgroupSupport
from sandboxes.local import ground, probe
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.planning import PreparedRun, prepare
from valkyrie.views import RunRequest


@pytest.fixture(params=[ground.ROOTLESS, ground.SHIFTED])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(probe, "_found", [probe.Machine(request.param, CgroupSupport())])
    return str(request.param)


def planned(root: Path, toml: str, dockerfile: str = "") -> PreparedRun:
    task = root / "tasks" / "one"
    (task / "tests").mkdir(parents=True)
    (task / "environment").mkdir()
    (task / "task.toml").write_text(f'[environment]\nnetwork_mode = "no-network"\n{toml}')
    (task / "instruction.md").write_text("Do it.")
    (task / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    if dockerfile:
        (task / "environment" / "Dockerfile").write_text(dockerfile)
    request = RunRequest(agent="nop", benchmark=str(root / "tasks"), host_image=bool(dockerfile))
    return prepare(request, DataFolder(root / "home"))


@pytest.mark.parametrize("table", ["agent", "verifier"])
@pytest.mark.parametrize("user", ['"agent"', "1000"])
def test_another_user_needs_root(tmp_path: Path, mode: str, table: str, user: str) -> None:
    problems = planned(tmp_path, f"[{table}]\nuser = {user}\n").problems
    if mode == ground.SHIFTED:
        assert problems == []
    else:
        (problem,) = problems
        assert "'one'" in problem and user.strip('"') in problem and "Run as root" in problem


@pytest.mark.parametrize("user", ['"root"', "0"])
def test_root_is_in_every_sandbox(tmp_path: Path, mode: str, user: str) -> None:
    assert planned(tmp_path, f"[agent]\nuser = {user}\n[verifier]\nuser = {user}\n").problems == []


def test_repeating_a_dockerfile_on_a_read_only_system_is_doubtful(tmp_path: Path, mode: str) -> None:
    plan = planned(tmp_path, "", "FROM debian:12\nRUN apt-get install -y jq\n")
    told = [notice for notice in plan.notices if "read-only" in notice]
    assert plan.problems == []
    assert len(told) == (1 if mode == ground.ROOTLESS else 0)


def test_a_dockerfile_without_commands_is_not(tmp_path: Path, mode: str) -> None:
    plan = planned(tmp_path, "", "FROM debian:12\nWORKDIR /app\nCOPY . .\n")
    assert [notice for notice in plan.notices if "read-only" in notice] == []
