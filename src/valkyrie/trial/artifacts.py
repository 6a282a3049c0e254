"""What a task itself wants kept of its sandbox when the agent is done: commands that gather it, paths."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink
from valkyrie.errors import AgentOutputError
from valkyrie.nouns import KeptPath, TaskSpec
from valkyrie.trial.collect import OUTPUT_LIMITS, save_file
from valkyrie.trial.log import AttemptLog

ARTIFACTS = "artifacts"
"""The folder of an attempt that holds what agent and task wanted kept."""


async def gather(task: TaskSpec, sandbox: Sandbox, log: AttemptLog, sink: OutputSink) -> None:
    """Run the task's own commands for it. One that fails is told of and changes nothing."""
    for one in task.gathering:
        command = Command.shell(one.command, cwd=task.cwd, env=task.env, user=one.user, timeout=one.timeout)
        code = await sandbox.run(command, sink)
        if code != 0:
            log.note(f"verifier.collect `{one.command[:200]}` ended with exit code {code}")


async def keep_paths(task: TaskSpec, sandbox: Sandbox, folder: Path, log: AttemptLog) -> None:
    """Copy what the task names into `folder`. What is not there, or is too much, is told of."""
    left = OUTPUT_LIMITS.max_bytes
    for one in task.artifacts:
        target = _free(folder, one)
        try:
            left -= await _keep(one, sandbox, target, left, log)
        except SandboxFileNotFoundError:
            if one.expected:
                log.note(f"artifact {one.source} is not there")
        except AgentOutputError as error:
            log.note(f"artifact {one.source} is not kept: {error}")
            target.unlink(missing_ok=True)


async def _keep(one: KeptPath, sandbox: Sandbox, target: Path, room: int, log: AttemptLog) -> int:
    """How many bytes it had."""
    if not await sandbox.is_folder(one.source):
        found = await sandbox.list_files(one.source)
        if not found:
            raise SandboxFileNotFoundError(one.source)
        many = found != [one.source]
        places = [(path, target / PurePosixPath(path).name if many else target) for path in found]
        size = 0
        for path, place in places:
            size += await save_file(sandbox, path, place, room - size)
        return size
    report = await sandbox.download_folder(one.source, target, OUTPUT_LIMITS)
    if report.skipped_count:
        shown = "; ".join(f"{name}: {reason}" for name, reason in report.skipped[:5])
        log.note(f"{report.skipped_count} entries of {one.source} were left behind ({shown})")
    _leave_out(target, one)
    return report.bytes


def _leave_out(folder: Path, one: KeptPath) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder).as_posix()
        if any(fnmatch(name, pattern) or fnmatch(path.name, pattern) for pattern in one.exclude):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _free(folder: Path, one: KeptPath) -> Path:
    """Where it is kept: as it says, else by its name, or its whole path where that name is taken."""
    if one.destination is not None:
        return folder / one.destination
    path = PurePosixPath(one.source)
    place = folder / path.name
    return folder / path.relative_to("/") if place.exists() else place
