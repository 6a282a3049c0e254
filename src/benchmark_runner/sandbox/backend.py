"""One answer: install an agent in a sandbox, run it there on a question, take what it leaves."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic_core import from_json

from benchmark_runner.artifacts import folder_name
from benchmark_runner.schemas import GenerationResult, GenerationStatus
from sandboxes.errors import SandboxCommandError, SandboxError, SandboxUnsupportedError

if TYPE_CHECKING:
    from benchmark_runner.agent_bundle.resolution import ResolvedContract
    from benchmark_runner.sandbox.setup import Bundle
    from sandboxes.protocol import Sandbox
    from sandboxes.types import Resources, SandboxSource

INSTALL_S = 600
KILL_AFTER_S = 10
"""Between the signal that asks an agent to end and the one that does not."""
GUARD_S = 60
"""So much longer than the command's own limit may the sandbox take to say that it was reached."""
TAKE_S = 300
LARGEST_ANSWER = 16 * 1024 * 1024
MOST_OUTPUT = 1024 * 1024
"""Characters of what a command prints that are kept: the first half, and the last."""
ERROR_TAIL = 2000
PROBLEM_PATH = "/tmp/problem_statement.txt"
TIMED_OUT, KILLED = 124, 137


@dataclass(frozen=True, slots=True)
class SandboxTaskSpec:
    """Where a task is worked on."""

    source: SandboxSource | None = None
    """None: the provider's own ground."""
    resources: Resources | None = None
    cwd: str = "/workspace"
    agent_timeout: float | None = None
    """Seconds `run_cmd` may take. None: the run's own limit; zero or less: none."""
    question: str | None = None
    """None: the service puts it into the sandbox."""
    problem_path: str = PROBLEM_PATH


@dataclass(frozen=True, slots=True)
class SandboxAgent:
    """What answers: a contract with its parameters filled, and the files it needs."""

    contract: ResolvedContract
    bundle: Bundle | None = None
    unpacked: Path | None = None
    """The bundle's files on this machine."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Logs:
    """What is kept of one task besides its answer, without secrets."""

    folder: Path
    redact: Callable[[str], str] = str

    def keep(self, name: str, text: str) -> None:
        """Write one file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(self.redact(text).encode("utf-8", "replace"))


class _Failed(Exception):
    """The agent did not get to an answer; the message is the task's error."""


async def generate(
    sandbox: Sandbox,
    agent: SandboxAgent,
    task_id: str,
    spec: SandboxTaskSpec,
    limit: float | None,
    logs: Logs,
) -> GenerationResult:
    """Install and run an agent in a sandbox; what it did wrong is in the result. A lost sandbox raises."""
    try:
        if agent.contract.final_output is None:
            raise _Failed("the contract has no final_output, so there is no answer to take")
        await _must(sandbox, f"mkdir -p {shlex.quote(spec.cwd)}", f"folder {spec.cwd} cannot be made")
        await _install(sandbox, agent, spec.cwd, logs)
        if agent.contract.egress_allowlist:
            hosts = [urlsplit(url).hostname or url for url in agent.contract.egress_allowlist]
            await sandbox.modify_egress_rules(hosts)
        began = time.monotonic()
        code, printed = await _run(sandbox, agent, task_id, spec, limit)
        logs.keep("agent.log", printed)
        spent = limit is not None and time.monotonic() - began >= limit
        if code == TIMED_OUT or (spent and code == KILLED):
            said = f" after {limit:g} seconds" if limit is not None else ""
            return _ended(task_id, GenerationStatus.MAX_TIME, f"agent timed out{said}")
        async with asyncio.timeout(TAKE_S):
            return await _answer(sandbox, agent.contract.final_output, task_id, code, printed, logs)
    except _Failed as error:
        return _ended(task_id, GenerationStatus.ERROR, logs.redact(str(error)))


async def _install(sandbox: Sandbox, agent: SandboxAgent, cwd: str, logs: Logs) -> None:
    place = cwd
    if agent.bundle is not None and agent.unpacked is not None:
        place = agent.bundle.place
        await _upload(sandbox, agent.unpacked, place)
    if not agent.contract.install_cmd:
        return
    command = f"cd {shlex.quote(place)} && {_limited(agent.contract.install_cmd, INSTALL_S)}"
    code, printed = await run_in(sandbox, command, INSTALL_S + KILL_AFTER_S + GUARD_S)
    logs.keep("install.log", printed)
    if code in (TIMED_OUT, KILLED):
        raise _Failed(f"install_cmd took longer than {INSTALL_S} seconds.{_tail(printed)}")
    if code != 0:
        raise _Failed(f"install_cmd failed with exit code {code}.{_tail(printed)}")


async def _upload(sandbox: Sandbox, folder: Path, place: str) -> None:
    try:
        await sandbox.upload_folder(folder, place)
    except SandboxUnsupportedError:
        programs = []
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            target = f"{place}/{path.relative_to(folder).as_posix()}"
            await sandbox.upload_file(target, await asyncio.to_thread(path.read_bytes))
            if path.stat().st_mode & 0o111:
                programs.append(shlex.quote(target))
        if programs:
            await _must(sandbox, f"chmod +x -- {' '.join(programs)}", "the bundle's programs")


async def _run(
    sandbox: Sandbox, agent: SandboxAgent, task_id: str, spec: SandboxTaskSpec, limit: float | None
) -> tuple[int, str]:
    script = agent.contract.command(spec.problem_path, task_id)
    command = f"cd {shlex.quote(spec.cwd)} && PYTHONSAFEPATH=1 {_limited(script, limit)}"
    return await run_in(sandbox, command, limit + KILL_AFTER_S + GUARD_S if limit is not None else None)


def _limited(script: str, limit: float | None) -> str:
    """Put a whole script under one limit; `timeout` alone would end the first of its commands only.

    As on the platform, a pipeline fails when any part of it does, where there is a bash.
    """
    shell = f"$(command -v bash >/dev/null && echo bash -o pipefail || echo sh) -c {shlex.quote(script)}"
    # A fraction of a second is more than some versions of `timeout` understand.
    return shell if limit is None else f"timeout -k {KILL_AFTER_S} {max(1, round(limit))} {shell}"


async def run_in(sandbox: Sandbox, command: str, timeout: float | None) -> tuple[int, str]:
    """The exit code of a command, and what it printed, however much that was, within bounds."""
    printed = _Printed()
    try:
        async with aclosing(sandbox.command(command, timeout=timeout)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                printed.add(piece)
    except SandboxCommandError as error:
        return error.exit_code, printed.text()
    return 0, printed.text()


class _Printed:
    """The beginning and the end of an output."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._room = self._kept = MOST_OUTPUT // 2
        self._left_out = 0

    def add(self, text: str) -> None:
        if self._room > 0:
            self._head.append(text[: self._room])
            self._room -= len(self._head[-1])
            text = text[len(self._head[-1]) :]
        while text:
            piece, text = text[: 1 << 16], text[1 << 16 :]
            self._tail.append(piece)
            self._kept -= len(piece)
            while self._kept < 0 and len(self._tail) > 1:
                dropped = len(self._tail.popleft())
                self._kept += dropped
                self._left_out += dropped

    def text(self) -> str:
        """Return what is kept, with a note about what is not."""
        note = f"\n… {self._left_out} characters left out …\n" if self._left_out else ""
        return "".join((*self._head, note, *self._tail))


async def _answer(
    sandbox: Sandbox, final_output: str, task_id: str, code: int, printed: str, logs: Logs
) -> GenerationResult:
    """Return what the agent left: its `generation.json`, even when it failed, else the text of its one
    file."""
    for name in dict.fromkeys((folder_name(task_id), task_id)):
        if ".." in name.split("/"):
            continue
        content = await _taken(sandbox, f"{final_output.rstrip('/')}/{name}/generation.json")
        if content is not None:
            logs.keep("generation_raw.json", content)
            return _parsed(logs.redact(content), task_id)
    if code != 0:
        raise _Failed(f"the agent failed with exit code {code} and left no generation.json.{_tail(printed)}")
    text = await _taken(sandbox, final_output)
    if text is None:
        raise _Failed(f"the agent left no {final_output}/{task_id}/generation.json.{_tail(printed)}")
    return GenerationResult(task_id=task_id, status=GenerationStatus.SUCCESS, data=logs.redact(text).strip())


async def _taken(sandbox: Sandbox, path: str) -> str | None:
    """A file's content, if there is such a file."""
    content = bytearray()
    try:
        async with aclosing(sandbox.stream_download(path)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                content += piece
                if len(content) > LARGEST_ANSWER:
                    raise _Failed(f"the agent's {path} is larger than {LARGEST_ANSWER >> 20} MiB")
    except FileNotFoundError:
        return None
    return content.decode("utf-8", "replace")


def _parsed(content: str, task_id: str) -> GenerationResult:
    """An agent's own account. What the framework knows itself is not taken from it."""
    try:
        document = from_json(content)
        said = GenerationResult.model_validate(
            {**document, "task_id": task_id} if isinstance(document, dict) else document
        )
    except ValidationError as error:
        raise _Failed(f"the agent's generation.json is no generation result: {problems(error)}") from None
    except ValueError as error:
        raise _Failed(f"the agent's generation.json is no JSON: {error}") from None
    version = said.generation_version
    return said.model_copy(
        update={
            "task_id": task_id,
            "question": None,
            "model": None,
            "log_dir": None,
            "generation_version": version if version and len(version) <= 200 else None,
        }
    )


async def _must(sandbox: Sandbox, command: str, what: str) -> None:
    result = await sandbox.exec(command)
    if result.exit_code != 0:
        raise SandboxError(
            f"{what}: {result.output[-ERROR_TAIL:].strip() or f'exit code {result.exit_code}'}"
        )


def _ended(task_id: str, status: GenerationStatus, error: str) -> GenerationResult:
    return GenerationResult(task_id=task_id, status=status, data="", error=error)


def _tail(printed: str) -> str:
    end = printed.strip()[-ERROR_TAIL:]
    return f"\nIt printed last:\n{end}" if end else ""


def problems(error: ValidationError, most: int = 3) -> str:
    """A model's complaints in a line, without the values."""
    found = [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in error.errors()[:most]]
    rest = error.error_count() - most
    return "; ".join(found) + (f"; and {rest} more" if rest > 0 else "")
