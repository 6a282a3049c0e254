"""Prepare a sandbox for the agent: instruction, working folder, environment files, health check.

Neither tests nor solution ever pass through here.
"""

from __future__ import annotations

import asyncio
import posixpath
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink
from valkyrie.benchmarks.dockerfile import Recipe
from valkyrie.benchmarks.host_image import repeat_dockerfile
from valkyrie.benchmarks.tail import Tail
from valkyrie.benchmarks.task_toml import Healthcheck
from valkyrie.benchmarks.transfer import make_folder, put_folder
from valkyrie.errors import BenchmarkError
from valkyrie.nouns import TaskSpec

SETUP_SCRIPT = "setup.sh"
_STAGED_SCRIPT = "/tmp/valkyrie-setup.sh"


@dataclass(frozen=True, slots=True)
class Preparation:
    """What one task wants done before its agent starts."""

    environment: Path | None
    """The task's `environment/` folder, if it is to be used here."""
    recipe: Recipe | None = None
    """The Dockerfile to repeat on the host's file system; then nothing else is copied."""
    healthcheck: Healthcheck | None = None
    folder_of_image: bool = False
    """The working folder is the image's own, which is there."""


async def prepare(task: TaskSpec, preparation: Preparation, sandbox: Sandbox, log: OutputSink) -> None:
    """Do it. Raises BenchmarkError when the task's own setup fails."""
    await _make_log_folders(sandbox)
    await sandbox.upload_file(task.problem_path, task.instruction.encode())
    environment = preparation.environment
    if preparation.recipe is not None and environment is not None:
        await make_folder(sandbox, task.cwd)
        await repeat_dockerfile(preparation.recipe, environment, sandbox, log)
    elif environment is not None:
        await _lay_out(task, environment, "environment", sandbox, log)
    elif not (preparation.folder_of_image and sandbox.image_defaults):
        await make_folder(sandbox, task.cwd)
    if preparation.healthcheck is not None:
        await _wait_until_healthy(task, preparation.healthcheck, sandbox, log)


async def prepare_step(task: TaskSpec, preparation: Preparation, sandbox: Sandbox, log: OutputSink) -> None:
    """Tell the step's own instruction, and lay its files over what is there."""
    await _reclaim(task, sandbox, log)
    await sandbox.upload_file(task.problem_path, task.instruction.encode())
    if preparation.environment is not None:
        await _lay_out(task, preparation.environment, f"steps/{task.step}/workdir", sandbox, log)
    if preparation.healthcheck is not None:
        await _wait_until_healthy(task, preparation.healthcheck, sandbox, log)


async def _reclaim(task: TaskSpec, sandbox: Sandbox, log: OutputSink) -> None:
    """Places a step needs, where an earlier one left something else: an agent can refuse no step that way."""
    for folder in (posixpath.dirname(task.problem_path), task.cwd):
        # A link to a folder will do, as one may be part of the image.
        if await sandbox.run(Command(("/bin/sh", "-c", 'cd -- "$1"', "sh", folder)), None) != 0:
            log("stderr", f"{folder} is no folder any more; it is made anew\n")
            await sandbox.clear_folder(folder)
    await sandbox.remove(task.problem_path)


async def _make_log_folders(sandbox: Sandbox) -> None:
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        logs = Path(scratch)
        logs.chmod(0o755)
        for name, mode in (("agent", 0o777), ("artifacts", 0o777), ("verifier", 0o755)):
            (logs / name).mkdir()
            (logs / name).chmod(mode)
        await sandbox.upload_folder(logs, "/logs")


async def _lay_out(task: TaskSpec, folder: Path, called: str, sandbox: Sandbox, log: OutputSink) -> None:
    """Put a folder's files into the working folder, and run its `setup.sh`.

    That runs from outside the working folder, so that not even a `git add -A` in it keeps it. `called` is
    the folder as the task's author knows it.
    """
    await put_folder(sandbox, folder, task.cwd)
    if not (folder / SETUP_SCRIPT).is_file():
        return
    await sandbox.remove(f"{task.cwd}/{SETUP_SCRIPT}")
    await sandbox.upload_file(_STAGED_SCRIPT, (folder / SETUP_SCRIPT).read_bytes())
    tail = Tail(log)
    try:
        code = await sandbox.run(Command(("bash", _STAGED_SCRIPT), cwd=task.cwd, env=task.env), tail)
    finally:
        await sandbox.remove(_STAGED_SCRIPT)
    if code != 0:
        raise BenchmarkError(
            f"task {task.id}: {called}/{SETUP_SCRIPT} ended with exit code {code}{tail.quoted()}",
            cause="task_setup_failed",
        )


async def _wait_until_healthy(task: TaskSpec, check: Healthcheck, sandbox: Sandbox, log: OutputSink) -> None:
    """As in compose files: failures in the start period do not count, then `retries` of them are too many."""
    started, failures = time.monotonic(), 0
    tail = Tail(log)
    image = sandbox.image_defaults if "entrypoint" in task.of_image else None
    user = image.user if image else None
    while True:
        command = Command.shell(check.command, cwd=task.cwd, env=task.env, user=user, timeout=check.timeout)
        code = await sandbox.run(command, tail)
        if code == 0:
            return
        starting = time.monotonic() - started < check.start_period
        failures += 0 if starting else 1
        if failures >= check.retries:
            raise BenchmarkError(
                f"task {task.id}: health check `{check.command}` failed {failures} times, "
                f"last with exit code {code}{tail.quoted()}",
                cause="task_unhealthy",
            )
        await asyncio.sleep(check.start_interval if starting else check.interval)
