"""The task that is scored is the one its author wrote: WORKDIR, USER, ENTRYPOINT and `.dockerignore`."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandboxes.docker import DockerProvider
from sandboxes.errors import SandboxImageError
from sandboxes.protocol import ImageDefaults
from sandboxes.testing.base import output_of
from sandboxes.types import Command, ImageSource, SandboxCreateRequest
from tests.docker_engine import IMAGE, PrivateEngine
from tests.integration.conftest import tracker
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

__all__ = ["tracker"]
pytestmark = pytest.mark.slow

BASE = "valkyrie-test-base:latest"
ENTRY = """#!/bin/sh
echo "$(id -un) $PWD $COLOUR" > /tmp/entered
sleep 7777 &
exec "$@"
"""
CHECK = """
ok=1
expect() { [ "$1" = "$2" ] || { echo "expected $2, got $1"; ok=0; }; }
expect "$(cat where)" /work
expect "$(cat who)" worker
expect "$(cat entered)" "worker /work green"
expect "$(cat before)" "1"
expect "$PWD" /work
expect "$(id -un)" worker
expect "$(ps -eo args | grep -c '[s]leep 7777')" 1
expect "$(grep -cE 'secret.key|Dockerfile|dockerignore' listed)" 0
echo $ok > /logs/verifier/reward.txt
"""
SOLVE = """touch where who entered before listed
pwd > where; id -un > who; cp /tmp/entered entered
ps -eo args | grep -c '[s]leep 7777' > before
ls -A > listed
"""


@pytest.fixture(scope="module")
def base(engine: PrivateEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with a folder, a user and an entrypoint of its own."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "entry.sh").write_text(ENTRY)
    (folder / "entry.sh").chmod(0o755)
    (folder / "Dockerfile").write_text(
        f"FROM {IMAGE}\nRUN useradd -m worker && mkdir /work && chown worker /work && chmod 750 /work\n"
        'COPY entry.sh /entry.sh\nWORKDIR /work\nUSER worker\nENTRYPOINT ["/entry.sh"]\n'
    )
    subprocess.run(["docker", "-H", engine.url, "build", "-t", BASE, folder], check=True, capture_output=True)
    yield BASE
    engine.docker("image", "rm", "-f", BASE)


@pytest.fixture
async def provider(engine: PrivateEngine, tmp_path: Path) -> AsyncIterator[DockerProvider]:
    async with DockerProvider(tmp_path / "state") as provider:
        yield provider
        await provider.reap({})
    assert engine.left() == []


def write_task(task: Path, toml: str, dockerfile: str | None = None) -> Path:
    files = {
        "task.toml": f"""{toml}[environment.env]\nCOLOUR = "green"\n""",
        "instruction.md": "Say where you are.",
        "solution/solve.sh": SOLVE,
        "tests/test.sh": CHECK,
    }
    if dockerfile:
        files |= {
            "environment/Dockerfile": dockerfile,
            "environment/.dockerignore": "*.key\n.dockerignore\nDockerfile\n",
            "environment/secret.key": "not for the agent",
            "environment/question.txt": "Where?",
        }
    for name, text in files.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    return task.parent


def test_the_task_is_the_one_its_author_wrote(
    tracker: LocalTracker, engine: PrivateEngine, base: str, tmp_path: Path
) -> None:
    quiet = 'network_mode = "no-network"\n'
    write_task(tmp_path / "tasks" / "named", f'[environment]\ndocker_image = "{base}"\n{quiet}')
    copied = f"FROM {base}\nCOPY . .\n"
    tasks = write_task(tmp_path / "tasks" / "built", f"[environment]\n{quiet}", copied)
    request = RunRequest(
        agent="oracle", benchmark=str(tasks), provider="docker", concurrency=2, verify="fresh"
    )
    run = tracker.wait(tracker.start(request).run.id, timeout=280)
    logs = "".join(path.read_text() for path in (tmp_path / "home").rglob("log*") if path.is_file())
    assert (run.state, run.score.final_score, run.score.graded) == ("FINISHED", 1.0, 2), logs[-3000:]
    engine.docker("image", "prune", "-af", "--filter", "label=valkyrie.kind=build")


def test_without_a_workdir_anywhere_it_is_the_root(
    tracker: LocalTracker, engine: PrivateEngine, tmp_path: Path
) -> None:
    toml = f'[environment]\ndocker_image = "{IMAGE}"\nnetwork_mode = "no-network"\n'
    tasks = write_task(tmp_path / "tasks" / "bare", toml)
    (tasks / "bare" / "solution" / "solve.sh").write_text("pwd > answer\n")
    check = '[ "$PWD" = / ] && [ "$(cat /answer)" = / ] && [ ! -e /app ] && ok=1'
    (tasks / "bare" / "tests" / "test.sh").write_text(
        f"ok=0; {check}; echo $ok > /logs/verifier/reward.txt\n"
    )
    request = RunRequest(agent="oracle", benchmark=str(tasks), provider="docker", verify="fresh")
    run = tracker.wait(tracker.start(request).run.id, timeout=280)
    assert (run.state, run.score.final_score, run.score.graded) == ("FINISHED", 1.0, 1), run.error


def test_a_build_that_fails_by_itself_is_tried_once(
    tracker: LocalTracker, engine: PrivateEngine, tmp_path: Path
) -> None:
    broken = f"FROM {IMAGE}\nRUN echo about to fail; exit 3\n"
    tasks = write_task(tmp_path / "tasks" / "broken", "", broken)
    write_task(tmp_path / "tasks" / "unread", "", f"FROM {IMAGE}\nNONSENSE x\n")
    request = RunRequest(agent="nop", benchmark=str(tasks), provider="docker", trials=2)
    run = tracker.wait(tracker.start(request).run.id, timeout=280)
    groups = {group.cause: group for group in tracker.errors(run.id)}
    assert set(groups) == {"task_image_broken"}
    for task in ("broken", "unread"):
        for k in (0, 1):
            assert len(tracker.attempts(run.id, task, k)) == 1, (task, k)
    logs = (tmp_path / "home" / "sandboxes" / "docker" / "builds").glob("*.log")
    assert sum("about to fail" in log.read_text() for log in logs) == 1


async def test_an_entrypoint_that_never_gets_there_is_the_images_fault(
    provider: DockerProvider, engine: PrivateEngine
) -> None:
    def image(name: str, entrypoint: str) -> str:
        made = engine.docker("create", "--entrypoint", "x", IMAGE).strip()
        engine.docker("commit", "-c", f"ENTRYPOINT {entrypoint}", made, name)
        engine.docker("rm", made)
        return name

    ends = image("valkyrie-test-ends:latest", '["/bin/sh", "-c", "echo cannot go on; exit 5"]')
    sandbox = await provider.create_sandbox(
        SandboxCreateRequest(source=ImageSource(image=ends), network="none")
    )
    with pytest.raises(SandboxImageError, match=r"(?s)exit code 5.*cannot go on"):
        await sandbox.start_entrypoint({})
    absent = image("valkyrie-test-absent:latest", '["/no/such/program"]')
    sandbox = await provider.create_sandbox(
        SandboxCreateRequest(source=ImageSource(image=absent), network="none")
    )
    with pytest.raises(SandboxImageError, match="no/such/program"):
        await sandbox.start_entrypoint({})
    await provider.reap({})
    engine.docker("image", "rm", "-f", ends, absent)


async def test_defaults_are_the_images_whatever_an_agent_leaves(provider: DockerProvider, base: str) -> None:
    request = SandboxCreateRequest(source=ImageSource(image=base), network="none")
    sandbox = await provider.create_sandbox(request)
    assert sandbox.image_defaults == ImageDefaults("/work", "worker", ("/entry.sh",))
    said: list[str] = []
    await asyncio.wait_for(sandbox.start_entrypoint({"COLOUR": "red"}, lambda _, text: said.append(text)), 60)
    assert await output_of(sandbox, "cat /tmp/entered") == "worker /work red\n"
    await sandbox.run(Command.shell("rm -rf /work /entry.sh; sed -i /worker/d /etc/passwd"))
    await sandbox.kill_all()
    again = await provider.get_sandbox(sandbox.id)
    assert again.image_defaults == sandbox.image_defaults
    plain = await provider.create_sandbox(
        SandboxCreateRequest(source=ImageSource(image=IMAGE), network="none")
    )
    assert plain.image_defaults == ImageDefaults("/")
    assert await output_of(plain, "pwd") == "/\n"
