"""What a task itself wants kept of its sandbox when the agent is done: commands that gather it, paths.

All of it is the agent's: it may be missing, of any size and shape, or lie where something else is to be
kept. Whatever it is, the attempt is graded all the same.
"""

from __future__ import annotations

import asyncio
import posixpath
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from sandboxes.errors import SandboxError, SandboxFileNotFoundError
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, CopyLimits, OutputSink
from valkyrie.errors import AgentOutputError
from valkyrie.nouns import KeptPath, TaskSpec
from valkyrie.trial.collect import OUTPUT_LIMITS, fixed_part, save_file
from valkyrie.trial.log import AttemptLog


async def gather(task: TaskSpec, sandbox: Sandbox, log: AttemptLog, sink: OutputSink) -> None:
    """Run the task's own commands for it. One that fails is told of and changes nothing."""
    for one in task.gathering:
        command = Command.shell(one.command, cwd=task.cwd, env=task.env, user=one.user, timeout=one.timeout)
        try:
            code = await sandbox.run(command, sink)
            trouble = f"ended with exit code {code}" if code else ""
        except SandboxError as error:
            trouble = f"could not be run: {error}"
        if trouble:
            log.note(f"verifier.collect `{one.command[:200]}` {trouble}")
    if task.gathering:
        # They may have started programs of the agent's, which must not be there when the tests arrive.
        await sandbox.kill_all()


async def keep_paths(
    task: TaskSpec, sandbox: Sandbox, folder: Path, log: AttemptLog, limits: CopyLimits = OUTPUT_LIMITS
) -> None:
    """Copy what the task names into `folder`. What is not there, or is too much, is told of."""
    keeping = _Keeping(sandbox, log, limits.max_bytes, limits.max_entries)
    for declared in task.artifacts:
        one = replace(declared, source=posixpath.normpath(posixpath.join(task.cwd, declared.source)))
        try:
            await keeping.take(one, folder)
        except SandboxFileNotFoundError:
            if one.expected:
                log.note(f"artifact {one.source} is not there")
        except (AgentOutputError, SandboxError) as error:
            # Of a sandbox that is lost the grading tells.
            log.note(f"artifact {one.source} is not kept: {error}")


@dataclass(slots=True)
class _Keeping:
    """What may still be kept."""

    sandbox: Sandbox
    log: AttemptLog
    bytes: int
    entries: int

    async def take(self, one: KeptPath, folder: Path) -> None:
        """Copy it into `folder`, under a name nothing has there yet."""
        if await self.sandbox.is_folder(one.source):
            await self._folder(one, _free(folder, one))
            return
        found = await self.sandbox.list_files(one.source)
        if not found:
            raise SandboxFileNotFoundError(one.source)
        alone = found == [one.source]
        target = _free(folder, one, below=alone)
        for number, path in enumerate(found):
            if not self.entries:
                raise AgentOutputError(
                    f"a trial may keep {OUTPUT_LIMITS.max_entries} files, and there are "
                    f"{len(found) - number} more"
                )
            below = PurePosixPath(path).relative_to(fixed_part(one.source))
            await self._file(path, target if alone else target / below)

    async def _file(self, path: str, target: Path) -> None:
        self.entries -= 1
        try:
            self.bytes -= await save_file(self.sandbox, path, target, self.bytes)
        except AgentOutputError as error:
            target.unlink()
            self.log.note(str(error))

    async def _folder(self, one: KeptPath, target: Path) -> None:
        limits = CopyLimits(self.bytes, self.bytes, self.entries)
        report = await self.sandbox.download_folder(one.source, target, limits)
        if report.skipped_count:
            shown = "; ".join(f"{name}: {reason}" for name, reason in report.skipped[:5])
            self.log.note(f"{report.skipped_count} entries of {one.source} were left behind ({shown})")
        self.bytes -= report.bytes
        self.entries -= report.files
        await asyncio.to_thread(_leave_out, target, one)


def _leave_out(folder: Path, one: KeptPath) -> None:
    for path in sorted(folder.rglob("*"), reverse=True) if one.exclude else ():
        name = path.relative_to(folder).as_posix()
        if any(fnmatch(name, pattern) or fnmatch(path.name, pattern) for pattern in one.exclude):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _free(folder: Path, one: KeptPath, *, below: bool = False) -> Path:
    """Where it is kept: as it says, else by its name, its whole path, or a number where those are taken.

    What is `below` the folder cannot take its place.
    """
    places = (place for place in _places(folder, one) if not (below and place == folder))
    return next(place for place in places if _is_free(place, folder))


def _places(folder: Path, one: KeptPath) -> Iterator[Path]:
    source = fixed_part(one.source)
    name = source.name or "root"
    if one.destination is not None:
        yield folder / one.destination
    yield folder / name
    yield folder / source.relative_to("/")
    number = 2
    while True:
        yield folder / f"{name}-{number}"
        number += 1


def _is_free(place: Path, folder: Path) -> bool:
    """Nothing has its name, and no file is where a folder above it would be."""
    above = (parent for parent in place.parents if parent.is_relative_to(folder))
    return not place.exists() and all(parent.is_dir() or not parent.exists() for parent in above)
