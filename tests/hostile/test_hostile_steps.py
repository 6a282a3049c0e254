"""Hostile agents on tasks of several steps, and on what tasks want kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.local import provider as probe
from sandboxes.local.provider import LocalProvider
from sandboxes.types import Command, SandboxCreateRequest
from tests.hostile.test_hostile_agents import Scene
from tests.integration.conftest import end_executor
from valkyrie.agents.installed import skills_shown
from valkyrie.domain import TaskSpec
from valkyrie.tracker.local import LocalTracker
from valkyrie.trial.outputs import ARCHIVE
from valkyrie.views import RunRequest

pytestmark = pytest.mark.slow

ATTACKS = (
    "spy planted daemon gathered filed linked taken monsters long homeless squatter told elsewhere fill"
).split()

CONTRACT = """\
name: hostile
install_cmd: "true"
run_cmd: bash /bundle/hostile/step_attacks.sh {task_id} < {problem_statement_path}
final_output: /logs/agent
"""
TASK = """\
artifacts = [
    "report", "/app/*.log", {source = "notes", destination = "notes", exclude = ["x*"]}, "/app/part/*/same"
]
[environment]
storage_mb = 96
network_mode = "no-network"
[[verifier.collect]]
command = "[ ! -x ./summary ] || ./summary"
[[steps]]
name = "first"
[[steps]]
name = "second"
"""
TEST = """\
# TESTS-CANARY: only the honest get a reward, and a forger has time to forge.
sleep 0.3
if [ -f /app/honest ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
touch /tests/left
"""


def lay_out(root: Path) -> Path:
    agent = root / "hostile"
    agent.mkdir()
    (agent / "contract.yaml").write_text(CONTRACT)
    shutil.copy(Path(__file__).with_name("step_attacks.sh"), agent)
    for attack in ATTACKS:
        task = root / "tasks" / attack
        (task / "environment").mkdir(parents=True)
        (task / "task.toml").write_text(TASK)
        for step in ("first", "second"):
            for folder in ("tests", "solution"):
                (task / "steps" / step / folder).mkdir(parents=True)
            (task / "steps" / step / "instruction.md").write_text(
                step if step == "first" else "second LATER-CANARY"
            )
            (task / "steps" / step / "tests" / "test.sh").write_text(TEST)
            (task / "steps" / step / "solution" / "solve.sh").write_text("# SOLUTION-CANARY\ntouch honest\n")
    return agent


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    if not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed; scripts/setup-system installs it")
    root = tmp_path_factory.mktemp("hostile")
    agent = lay_out(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALKYRIE_HOME", str(root / "home"))
        patch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "60")
        tracker = LocalTracker(root / "home")
        request = RunRequest(agent=str(agent), benchmark=str(root / "tasks"), provider="local", concurrency=4)
        run = tracker.wait(tracker.start(request).run.id, timeout=110)
        yield Scene(root, tracker, run)
        tracker.close()
        end_executor(root / "home")


def test_every_attack_was_graded_zero_at_the_first_attempt(scene: Scene) -> None:
    assert scene.run.state == "FINISHED", scene.run.error
    unlike = [row for row in scene.trials.values() if row.score != 0 or row.attempts != 1]
    assert [(row.task_id, row.state, row.score, row.message) for row in unlike] == []


def test_every_attack_was_graded_in_both_steps(scene: Scene) -> None:
    results = scene.tracker.results(scene.run.id)["evaluation_results"]
    assert {
        attack: [(step["name"], step["score"]) for step in one["steps"]] for attack, one in results.items()
    } == {attack: [("first", 0.0), ("second", 0.0)] for attack in ATTACKS}


def test_how_the_agent_ended_in_an_earlier_step_is_not_forgotten(scene: Scene) -> None:
    assert scene.trials["planted"].exit_reason == "OS_KILLED"
    assert scene.trials["spy"].exit_reason is None
    steps = scene.tracker.results(scene.run.id)["evaluation_results"]["planted"]["steps"]
    assert [step.get("agent_caused_exit_reason") for step in steps] == ["OS_KILLED", None]


def test_nothing_leaked(scene: Scene) -> None:
    lines = [line for attack in ATTACKS for line in scene.log(attack).splitlines()]
    assert [line for line in lines if line.startswith("LEAK")] == []


def test_what_is_kept_leaves_its_folder_nowhere_and_covers_nothing(scene: Scene) -> None:
    assert files(scene.kept("filed") / "artifacts") == {
        "first/artifacts": "mine\n",
        "second/artifacts": "mine\n",
    }
    assert files(scene.kept("linked") / "artifacts") == {}
    first = files(scene.kept("taken") / "artifacts" / "first")
    assert first == {
        **dict.fromkeys(("app", "notes", "same", "report/x"), "mine\n"),
        "app-2/one.log": "one\n",
        "app-2/two.log": "two\n",
        "notes-2/note": "note\n",
        "part/a/same": "a\n",
        "part/b/same": "b\n",
        "report-2": "report\n",
    }
    archives = [path for path in scene.kept("taken").rglob(ARCHIVE) if path.is_file()]
    assert {path.parent.name for path in archives} == {"first", "attempt-1"}
    assert files(scene.kept("monsters") / "artifacts" / "first") == {"app/two.log": "small\n"}


def files(folder: Path) -> dict[str, str]:
    found = [path for path in folder.rglob("*") if not path.is_dir() and path.name != ARCHIVE]
    assert all(path.is_file() and not path.is_symlink() for path in found)
    return {str(path.relative_to(folder)): path.read_text() for path in found}


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandbox has one id only")
@pytest.mark.parametrize("planted", [".claude", ".claude/skills"])
async def test_skills_are_not_brought_through_links_of_an_earlier_step(tmp_path: Path, planted: str) -> None:
    """Root copies them, and gives them and their folder to the agent: not that of others."""
    if probe.probe_machine().problem is not None:
        pytest.skip("no local sandboxes here")
    task = TaskSpec("t", "d", "Do.", cwd="/app", user="nobody", skills_dir="/opt/skills")
    said: list[str] = []
    async with LocalProvider(tmp_path / "state") as provider:
        sandbox = await provider.create_sandbox(SandboxCreateRequest(network="none"))
        await sandbox.upload_file("/opt/skills/tidy/SKILL.md", b"Tidy up.")
        await sandbox.exec("mkdir -p /app /srv/roots; chown nobody /app")
        plant = f"mkdir -p $(dirname /app/{planted}); ln -s /srv/roots /app/{planted}"
        await sandbox.run(Command.shell(plant, user="nobody"))
        async with skills_shown(sandbox, task, ".claude/skills", lambda _, text: said.append(text)):
            found = await sandbox.exec("stat -c %U /srv/roots; ls -A /srv/roots")
            assert found.output.split() == ["root"]
        await sandbox.exec("rm /app/.claude /app/.claude/skills")
        async with skills_shown(sandbox, task, ".claude/skills", lambda _, text: said.append(text)):
            assert await sandbox.download_file("/app/.claude/skills/tidy/SKILL.md") == b"Tidy up."
        assert not await sandbox.list_files("/app/.claude/skills/tidy/SKILL.md")
    assert said == ["/app/.claude/skills is, or is below, a link; the agent gets no skills there\n"]
