"""What is kept of an attempt: the agent's outputs, taken out safely, within limits, without secrets."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.protocol import Sandbox
from sandboxes.types import CopyLimits
from valkyrie.agents.protocol import Agent
from valkyrie.errors import AgentOutputError
from valkyrie.trial.log import AttemptLog

OUTPUT_LIMITS = CopyLimits()
MASK = b"***"


async def collect_outputs(
    agent: Agent, task_id: str, sandbox: Sandbox, draft: Path, secrets: Sequence[str], log: AttemptLog
) -> None:
    """Bring out `final_output` and `output_artifacts`; a missing required one is the agent's fault."""
    if agent.final_output:
        await _collect_final(agent.final_output, sandbox, draft, secrets, log)
    left = OUTPUT_LIMITS.max_bytes
    for artifact in agent.output_artifacts:
        found = await _matches(artifact.source.replace("{task_id}", task_id), sandbox)
        if not found and artifact.required:
            raise AgentOutputError(
                f"The agent left no {artifact.source} (output artifact {artifact.path!r})."
            )
        if not found:
            log.note(f"optional output {artifact.path} not found")
        for source in found:
            target = draft / "artifacts" / artifact.path
            if len(found) > 1 or any(mark in artifact.source for mark in "*?["):
                target = target / Path(source).name
            left -= await _save(sandbox, source, target, left)
    await asyncio.to_thread(scrub, draft / "artifacts", secrets)


async def _collect_final(
    path: str, sandbox: Sandbox, draft: Path, secrets: Sequence[str], log: AttemptLog
) -> None:
    staging = draft / "agent_output"
    try:
        if await sandbox.is_folder(path):
            report = await sandbox.download_folder(path, staging, OUTPUT_LIMITS)
            if report.skipped_count:
                shown = "; ".join(f"{name}: {reason}" for name, reason in report.skipped[:5])
                log.note(f"{report.skipped_count} entries of {path} were left behind ({shown})")
        else:
            await _save(sandbox, path, staging / Path(path).name, OUTPUT_LIMITS.max_bytes)
    except SandboxFileNotFoundError:
        log.note(f"the agent left no {path}")
        return
    await asyncio.to_thread(scrub, staging, secrets)
    await asyncio.to_thread(_archive, staging, draft / "agent_output.tar.gz")


async def _matches(pattern: str, sandbox: Sandbox) -> list[str]:
    if any(mark in pattern for mark in "*?["):
        return await sandbox.list_files(pattern)
    return await sandbox.list_files(pattern.replace("[", "[[]"))


async def _save(sandbox: Sandbox, source: str, target: Path, limit: int) -> int:
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


def _archive(folder: Path, target: Path) -> None:
    with tarfile.open(target, "w:gz", compresslevel=1) as tar:
        for entry in sorted(folder.iterdir()):
            tar.add(entry, arcname=entry.name)
    shutil.rmtree(folder)


def scrub(folder: Path, secrets: Iterable[str]) -> None:
    """Replace secret values in every kept file. Short values would mangle ordinary text and are left."""
    values = [value.encode() for value in secrets if len(value) >= 4]
    if not values or not folder.exists():
        return
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            clean = content
            for value in values:
                clean = clean.replace(value, MASK)
            if clean != content:
                path.write_bytes(clean)
