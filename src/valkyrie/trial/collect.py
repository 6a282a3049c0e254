"""What is kept of an attempt: the agent's outputs, taken out safely, within limits, without secrets."""

from __future__ import annotations

import asyncio
import glob
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, takewhile
from pathlib import Path, PurePosixPath

from sandboxes.errors import SandboxError, SandboxFileNotFoundError, SandboxUnsupportedError
from sandboxes.masker import Masker
from sandboxes.protocol import Sandbox
from sandboxes.types import CopyLimits
from valkyrie.agents.protocol import Agent, OutputArtifact
from valkyrie.errors import AgentOutputError
from valkyrie.trial.log import AttemptLog

OUTPUT_LIMITS = CopyLimits()
AGENT = "agent"
"""The folder of an attempt that holds what the agent's own log said."""
ARTIFACTS = "artifacts"
"""The folder of an attempt that holds what agent and task wanted kept."""
ARCHIVE = "agent_output.tar.gz"
"""The file of an attempt that holds the agent's `final_output`."""
GRADING = "grading"
"""The folder of an attempt that holds what the benchmark kept as evidence."""


@contextmanager
def tools_may_be_gone(agent: Agent, log: AttemptLog) -> Iterator[None]:
    """Go on without outputs where the image has no program to copy them, or has none any more."""
    try:
        yield
    except SandboxUnsupportedError as error:
        if any(artifact.required for artifact in agent.output_artifacts):
            raise AgentOutputError(f"The agent's outputs cannot be copied out: {error}") from error
        log.note(f"what the agent left is not kept: {error}")


async def collect_outputs(
    agent: Agent,
    task_id: str,
    sandbox: Sandbox,
    draft: Path,
    masker: Masker | None,
    log: AttemptLog,
    *,
    limits: CopyLimits | None = None,
) -> None:
    """Bring out `final_output` and `output_artifacts`; a required one that is missing, or too large, is the
    agent's fault, an optional one never fails a trial."""
    limits = limits or OUTPUT_LIMITS
    if agent.final_output:
        await _collect_final(agent.final_output, sandbox, draft, masker, log, limits)
    room = _Room(limits.max_bytes, limits.max_entries)
    for artifact in agent.output_artifacts:
        try:
            await _collect_artifact(artifact, task_id, sandbox, draft, room, log)
        except (AgentOutputError, SandboxError) as error:
            if artifact.required:
                raise
            # The work is graded all the same; of a sandbox that is lost the grading tells.
            log.note(f"optional output {artifact.path} is not kept whole: {error}")


@dataclass(slots=True)
class _Room:
    """What may still be kept of an attempt."""

    bytes: int
    entries: int


async def _collect_artifact(
    artifact: OutputArtifact, task_id: str, sandbox: Sandbox, draft: Path, room: _Room, log: AttemptLog
) -> None:
    # The id stands for itself, also where it looks like a pattern.
    found = await sandbox.list_files(artifact.source.replace("{task_id}", glob.escape(task_id)))
    if not found and artifact.required:
        raise AgentOutputError(f"The agent left no {artifact.source} (output artifact {artifact.path!r}).")
    if not found:
        log.note(f"optional output {artifact.path} not found")
    if len(found) > room.entries:
        raise AgentOutputError(
            f"{artifact.source} matches too many files; {OUTPUT_LIMITS.max_entries} a trial may be kept."
        )
    room.entries -= len(found)
    for source in found:
        target = draft / ARTIFACTS / _place(artifact, task_id, source)
        make_way(target, draft)
        try:
            room.bytes -= await save_file(sandbox, source, target, room.bytes)
        except BaseException:
            target.unlink(missing_ok=True)  # half of it would be taken for the whole
            raise


def _place(artifact: OutputArtifact, task_id: str, source: str) -> PurePosixPath:
    """Where a file is kept; what a pattern matched keeps its path below the pattern's fixed part."""
    if not glob.has_magic(artifact.source):
        return PurePosixPath(artifact.path)
    above = fixed_part(artifact.source).as_posix().replace("{task_id}", task_id)
    below = PurePosixPath(source).parts[len(PurePosixPath(above).parts) :]
    return PurePosixPath(artifact.path, *(below or (PurePosixPath(source).name,)))


def fixed_part(pattern: str) -> PurePosixPath:
    """The folder in which a pattern begins; a path that is none is all fixed."""
    return PurePosixPath(*takewhile(lambda part: not glob.has_magic(part), PurePosixPath(pattern).parts))


def make_way(target: Path, top: Path) -> None:
    """What an agent had kept under a name that is not its own to give yields to what the name is for."""
    for above in target.parents:
        if above.is_relative_to(top) and above.is_file():
            above.unlink()
    if target.is_dir():
        shutil.rmtree(target)


async def _collect_final(
    path: str, sandbox: Sandbox, draft: Path, masker: Masker | None, log: AttemptLog, limits: CopyLimits
) -> None:
    staging = draft / "agent_output"
    try:
        if await sandbox.is_folder(path):
            report = await sandbox.download_folder(path, staging, limits)
            if report.skipped_count:
                shown = "; ".join(f"{name}: {reason}" for name, reason in report.skipped[:5])
                log.note(f"{report.skipped_count} entries of {path} were left behind ({shown})")
        else:
            await save_file(sandbox, path, staging / Path(path).name, limits.max_bytes)
    except SandboxFileNotFoundError:
        log.note(f"the agent left no {path}")
        return
    except AgentOutputError as error:
        log.note(f"the agent's output is not kept: {error}")
        shutil.rmtree(staging, ignore_errors=True)
        return
    await asyncio.to_thread(_archive, staging, draft / ARCHIVE, masker)


async def save_file(sandbox: Sandbox, source: str, target: Path, limit: int) -> int:
    """Stream one file out; how many bytes it had."""
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with target.open("wb") as file:
        async for chunk in sandbox.stream_download(source):
            size += len(chunk)
            if size > limit:
                raise AgentOutputError(
                    f"{source} is larger than what may be kept ({OUTPUT_LIMITS.max_bytes >> 20} MiB a trial)."
                )
            file.write(chunk)
    return size


def _archive(folder: Path, target: Path, masker: Masker | None) -> None:
    scrub(folder, masker)
    scrub_names(folder, masker)
    with tarfile.open(target, "w:gz", compresslevel=1) as tar:
        for entry in sorted(folder.iterdir()):
            tar.add(entry, arcname=entry.name)
    shutil.rmtree(folder)


def scrub(folder: Path, masker: Masker | None) -> None:
    """Mask secret values in every kept file."""
    if masker is not None and folder.exists():
        for path in list(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                masker.file(path)


def scrub_names(folder: Path, masker: Masker | None) -> None:
    """Mask secret values in the names an agent gave its files."""
    if masker is not None and folder.exists():
        for path in sorted(folder.rglob("*"), reverse=True):
            if (name := masker.text(path.name)) != path.name:
                path.rename(_unlike(path.with_name(name)))


def _unlike(path: Path) -> Path:
    """The path, or one like it that nothing has."""
    others = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(one for one in chain((path,), others) if not os.path.lexists(one))


def publish(draft: Path, kept: Path, masker: Masker | None) -> None:
    """Let what was put together appear under its own name: whole, and without secrets.

    What was published before stays; a file of the same name gives way.
    """
    scrub(draft, masker)
    scrub_names(draft / ARTIFACTS, masker)
    kept.parent.mkdir(parents=True, exist_ok=True)
    if kept.exists():
        _lay_over(draft, kept)
    else:
        draft.rename(kept)


def _lay_over(folder: Path, target: Path) -> None:
    for entry in folder.iterdir():
        place = target / entry.name
        there = place.is_dir() and not place.is_symlink()
        if there and entry.is_dir() and not entry.is_symlink():
            _lay_over(entry, place)
            continue
        if there:
            shutil.rmtree(place)
        entry.rename(place)
    folder.rmdir()


def inherit_outputs(earlier: Path, draft: Path) -> None:
    """What the agent left in an earlier attempt is also this one's; files are linked, not copied."""
    if earlier.is_dir():
        shutil.copytree(
            earlier, draft, ignore=shutil.ignore_patterns(GRADING), copy_function=os.link, dirs_exist_ok=True
        )
