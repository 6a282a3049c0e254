"""Hostile agents through the whole engine: contained, graded 0 or categorised, the host untouched."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxes.local import provider
from tests.integration.conftest import end_executor
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, RunView, TrialFilter

pytestmark = pytest.mark.slow

ATTACKS = "spy neighbour network kernel planted linked daemon massacre bomb hog fill outputs crowd".split()

CONTRACT = """\
name: hostile
install_cmd: "true"
run_cmd: bash /bundle/hostile/attacks.sh {task_id} {canary} < {problem_statement_path}
final_output: /logs/agent
kwargs:
  canary: {type: str, required: true}
"""

TASK = """\
[agent]
timeout_sec = {seconds}
[verifier]
timeout_sec = 30
[environment]
cpus = 1
memory_mb = 256
storage_mb = 96
network_mode = "no-network"
"""

TEST = """\
#!/bin/bash
# TESTS-CANARY: only the honest get a reward, and a forger has time to forge.
sleep 0.5
if [ -f /app/honest ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""


class Scene:
    """One run of every attack, and what is known of the host."""

    def __init__(self, root: Path, tracker: LocalTracker, run: RunView) -> None:
        self.root, self.tracker, self.run = root, tracker, run
        rows, _ = tracker.trials(run.id, TrialFilter(limit=100))
        self.trials = {row.task_id: row for row in rows}

    def log(self, attack: str) -> str:
        return "".join(self.tracker.logs(self.run.id, attack))

    def kept(self, attack: str) -> Path:
        found = self.tracker.attempts(self.run.id, attack)[-1].artifacts
        assert found is not None
        return Path(found)


def lay_out(root: Path) -> Path:
    """The hostile agent, and a task for each of its attacks in `tasks` beside it."""
    agent = root / "hostile"
    agent.mkdir()
    (agent / "contract.yaml").write_text(CONTRACT)
    shutil.copy(Path(__file__).with_name("agent_attacks.sh"), agent / "attacks.sh")
    for attack in ATTACKS:
        task = root / "tasks" / attack
        (task / "tests").mkdir(parents=True)
        (task / "solution").mkdir()
        (task / "task.toml").write_text(TASK.format(seconds=4 if attack == "bomb" else 60))
        (task / "instruction.md").write_text("Be good.")
        (task / "tests" / "test.sh").write_text(TEST)
        (task / "solution" / "solve.sh").write_text("# SOLUTION-CANARY\ntouch /app/honest\n")
    return agent


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    if not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed; scripts/setup-system installs it")
    root = tmp_path_factory.mktemp("hostile")
    canary = root / "host-canary"
    canary.write_text("HOST-SECRET")
    agent = lay_out(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALKYRIE_HOME", str(root / "home"))
        patch.setenv("VALKYRIE_HOST_CANARY", "HOST_CANARY")
        patch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "60")
        tracker = LocalTracker(root / "home")
        request = RunRequest(
            agent=str(agent), benchmark=str(root / "tasks"), concurrency=4, kwargs={"canary": str(canary)}
        )
        run = tracker.wait(tracker.start(request).run.id, timeout=280)
        yield Scene(root, tracker, run)
        tracker.close()
        end_executor(root / "home")


def test_every_attack_was_graded_zero(scene: Scene) -> None:
    assert scene.run.state == "FINISHED", scene.run.error
    unlike = [row for row in scene.trials.values() if row.score != 0]
    assert [(row.task_id, row.state, row.score, row.message) for row in unlike] == []


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_leaked(scene: Scene, attack: str) -> None:
    lines = scene.log(attack).splitlines() if _has_log(scene, attack) else []
    leaks = [line for line in lines if line.startswith("LEAK")]
    assert leaks == []


def _has_log(scene: Scene, attack: str) -> bool:
    return scene.tracker.attempts(scene.run.id, attack)[-1].log is not None


def test_endings_are_told_apart(scene: Scene) -> None:
    if provider.probe_machine().support.memory:
        assert scene.trials["hog"].exit_reason == "OS_KILLED"
    else:  # refused the memory by rlimit, and ended by itself
        assert scene.trials["hog"].exit_reason is None
    assert scene.trials["massacre"].exit_reason == "OS_KILLED"
    assert scene.trials["bomb"].exit_reason in ("TIMEOUT", "OS_KILLED")
    assert scene.trials["spy"].exit_reason is None


def test_outputs_bring_no_host_file_and_no_monster(scene: Scene) -> None:
    with tarfile.open(scene.kept("outputs") / "agent_output.tar.gz") as tar:
        members = {member.name: member for member in tar.getmembers()}
        assert set(members) == {"fine.txt"}
        assert all(member.isreg() for member in members.values())
    log = scene.log("outputs")
    assert "left behind" in log
    with tarfile.open(scene.kept("crowd") / "agent_output.tar.gz") as tar:
        assert sum(1 for _ in tar) <= 10_001


def test_the_host_is_untouched(scene: Scene) -> None:
    assert (scene.root / "host-canary").read_text() == "HOST-SECRET"
    assert "/app/own" not in Path("/proc/sys/kernel/core_pattern").read_text()
    assert str(scene.root) not in Path("/proc/self/mountinfo").read_text()
    size = sum(path.lstat().st_size for path in (scene.root / "home").rglob("*") if path.is_file())
    assert size < 300 << 20
