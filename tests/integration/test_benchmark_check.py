"""`benchmark check` on real sandboxes: what weak tasks are open to, and where tasks must be verified."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from valkyrie.benchmarks.audit import CHEAT, BenchmarkAudit, TaskAudit
from valkyrie.benchmarks.task_dir.benchmark import read_lock
from valkyrie.domain import VerifyMode
from valkyrie.tracker.audit import AuditRequest, audit_benchmark, write_found

TESTS = Path(__file__).parents[1]
WEAK = TESTS / "weak_tasks"
SYSTEM = TESTS / "system_tasks"

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    return tmp_path / "home"


def check(folder: Path, **more: object) -> dict[str, TaskAudit]:
    return {task.task_id: task for task in audit(folder, **more).tasks}


def audit(folder: Path, **more: object) -> BenchmarkAudit:
    request = AuditRequest(str(folder), **{"oracle_runs": 1, **more})  # type: ignore[arg-type]
    return audit_benchmark(request, lambda *_: None)


def valk(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "valkyrie", "benchmark", "check", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def copied(name: str, target: Path) -> Path:
    shutil.copytree(WEAK / name, target / name)
    return target / name


@pytest.mark.slow
def test_each_weak_task_is_open_to_its_class_and_to_nothing_else(home: Path) -> None:
    found = check(WEAK)
    assert {name: [str(one) for one in task.open_to] for name, task in found.items()} == {
        name: [] if name == "clean" else [name] for name in found
    }
    assert {name: task.problems for name, task in found.items() if task.problems} == {}
    assert {task.mode for task in found.values()} == {VerifyMode.FRESH}
    assert all(finding.fix for task in found.values() for finding in task.findings)
    assert len(found) == 9 and found["clean"].clean and found["clean"].cheats["cheat/solve.sh"] == 0.0
    assert list((home / "checks").iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's system is read-only")
def test_what_a_task_needs_is_found_from_its_solution(tmp_path: Path) -> None:
    folder = tmp_path / "system_tasks"
    shutil.copytree(SYSTEM, folder)
    done = audit(folder)
    found = {task.task_id: (task.mode, task.keep_processes) for task in done.tasks}
    assert found == {
        "background-service": (VerifyMode.SHARED, True),
        "config-in-etc": (VerifyMode.SHARED, False),
        "installed-package": (VerifyMode.SHARED, False),
        "tool-in-usr-local": (VerifyMode.SHARED, False),
    }
    fixes = {task.task_id: task.findings[-1].fix for task in done.tasks}
    assert 'carry = ["/etc/weatherd.conf"]' in fixes["config-in-etc"]
    assert write_found(done, str(folder)) == folder / "benchmark.lock"
    locked = read_lock(folder).tasks
    assert {name: (one.mode, one.keep_processes) for name, one in locked.items()} == found


@pytest.mark.slow
def test_what_the_author_declares_is_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "background-service"
    shutil.copytree(SYSTEM / "background-service", folder)
    with (folder / "task.toml").open("a") as file:
        file.write('\n[verifier]\nenvironment_mode = "shared"\nkeep_processes = true\n')
    (task,) = check(folder).values()
    assert (task.mode, task.keep_processes, task.declared) == (VerifyMode.SHARED, True, True)
    assert task.clean, task.to_json()


def test_the_tasks_own_cheat_must_score_0(tmp_path: Path) -> None:
    folder = copied("clean", tmp_path)
    shutil.copy(folder / "solution" / "solve.sh", folder / "cheat" / "solve.sh")
    (task,) = check(folder).values()
    assert task.cheats["cheat/solve.sh"] == 1.0
    assert "cheat/solve.sh scores 1" in task.findings[0].seen


@pytest.mark.slow
def test_solutions_that_fail_or_waver_and_tests_that_pass_nothing(tmp_path: Path) -> None:
    wrong, wavers, lax = (tmp_path / "all" / name for name in ("wrong", "wavers", "lax"))
    for folder in (wrong, wavers, lax):
        shutil.copytree(WEAK / "clean", folder)
        shutil.rmtree(folder / "cheat")
    (wrong / "solution" / "solve.sh").write_text("echo 7 > /app/sum.txt\n")
    (wavers / "solution" / "solve.sh").write_text("[ $((RANDOM % 2)) = 0 ] && echo 129 > /app/sum.txt\n")
    (lax / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    found = check(tmp_path / "all", oracle_runs=16)
    assert "does not pass: 0, 0" in found["wrong"].problems[0]
    assert "not pass each time" in found["wavers"].problems[0]
    assert found["wrong"].mode is None and found["wavers"].mode is None
    assert [str(one) for one in found["lax"].open_to] == ["vacuous"]


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    folder = copied("clean", tmp_path)
    done = valk(folder, "--json", "--markdown", tmp_path / "report.md", "--badge", tmp_path / "badge.svg")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["clean"], found["n_tasks"]) == ("benchmark_check", True, 1)
    assert found["tasks"][0]["oracle"] == [1.0, 1.0] and found["tasks"][0]["mode"] == "fresh"
    assert found["lock"] == str(folder / "benchmark.lock")
    assert read_lock(folder).tasks["clean"].mode is VerifyMode.FRESH
    assert "| clean | 1 1 | 0 | fresh | 0 of 9 | nothing |" in (tmp_path / "report.md").read_text()
    assert "1/1 clean" in (tmp_path / "badge.svg").read_text()
    assert "cheating agents: 10 trials" in done.stderr


@pytest.mark.slow
def test_what_is_open_or_broken_ends_with_1_and_what_makes_no_sense_with_2(tmp_path: Path) -> None:
    folder = copied("vacuous", tmp_path)
    done = valk(folder, "--no-write", "--oracle-runs", "1")
    assert done.returncode == 1
    assert "vacuous" in done.stdout and "Check what the files hold" in done.stdout
    assert not (folder / "benchmark.lock").exists()
    (folder / "tests" / "test.sh").unlink()
    assert valk(folder).returncode == 1
    assert valk(tmp_path / "nowhere").returncode == 2
    assert valk(folder, "--oracle-runs", "0").returncode == 2
    assert valk("quickstart", "--task-ids", "nonesuch").returncode == 2
    refused = valk("quickstart", "--provider", "process")
    assert refused.returncode == 2 and "only where they are isolated" in refused.stderr


def test_the_cheating_agent_does_nothing_outside_a_sandbox(tmp_path: Path) -> None:
    words = ["/bin/sh", str(CHEAT / "cheat.sh"), "junk", str(tmp_path / "instruction.md")]
    (tmp_path / "instruction.md").write_text("Write `/app/x.txt` and y.txt.")
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2 and "only in a sandbox" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["instruction.md"]


def test_an_interrupted_check_leaves_nothing(tmp_path: Path, home: Path) -> None:
    folder = copied("clean", tmp_path)
    (folder / "solution" / "solve.sh").write_text("sleep 600\n")
    words = [sys.executable, "-m", "valkyrie", "benchmark", "check", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "solutions" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "ended before it was through" in out
    assert list((home / "checks").iterdir()) == []
    assert not (folder / "benchmark.lock").exists()
