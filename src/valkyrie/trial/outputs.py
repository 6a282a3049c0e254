"""Keep an attempt's log, outputs and artifacts without secrets; read what the agent says it used."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import math
import os
import posixpath
import shutil
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import chain, count, takewhile
from pathlib import Path, PurePosixPath
from typing import TextIO

from sandboxes.errors import SandboxError, SandboxFileNotFoundError, SandboxUnsupportedError
from sandboxes.masker import Masker
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, CopyLimits, CopyReport, OutputSink, StreamName
from valkyrie.agents.protocol import Agent, AgentExit, AgentUsage, OutputArtifact, Trouble
from valkyrie.domain import KeptPath, TaskSpec
from valkyrie.errors import AgentOutputError

LOG_LIMIT = 64 * 1024 * 1024
FLUSH_AT = 32 * 1024
FLUSH_EVERY_S = 0.2
MESSAGE_LIMIT = 2000


class AttemptLog:
    """Output as it came, under a heading per phase.

    Headings alone make no file: an attempt that printed nothing costs nothing. Writing to the page cache
    is quick enough for the event loop; pieces are gathered so that chatty agents stay cheap.
    """

    __slots__ = ("_buffer", "_failed", "_file", "_masker", "_path", "_pending", "_size", "_timer")

    def __init__(self, path: Path, masker: Masker | None = None) -> None:
        self._path = path
        self._masker = masker
        self._failed: OSError | None = None
        self._file: TextIO | None = None
        self._buffer: list[str] = []
        self._pending = 0
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, _stream: StreamName, text: str) -> None:
        """One piece of output; OSError when the log cannot be written, which ends the attempt."""
        if self._failed:
            raise self._failed
        if self._size >= LOG_LIMIT:
            return
        self._size += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        self._pending += len(text)
        self._buffer.append(text)
        if self._size >= LOG_LIMIT:
            self._buffer.append(f"\n… output beyond {LOG_LIMIT >> 20} MiB is not kept …\n")
        if self._pending > FLUSH_AT:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_EVERY_S, self._flush_late)

    def heading(self, text: str) -> None:
        """A line that says which phase begins; kept back until something is printed."""
        self._buffer.append(f"── {time.strftime('%H:%M:%S')} {text}\n")

    def note(self, text: str) -> None:
        """A line of ours that is worth a file by itself. One that cannot be written is let go."""
        with contextlib.suppress(OSError):
            self.write("stderr", f"── {self._masker.text(text) if self._masker else text}\n")

    def close(self) -> None:
        """Write what is left, if anything was printed at all. A full disk is no reason to lose a grade."""
        with contextlib.suppress(OSError):
            if self._size:
                self._flush()
        self._buffer.clear()
        file, self._file = self._file, None
        if file:
            with contextlib.suppress(OSError):
                file.close()

    def _flush_late(self) -> None:
        """From the loop, where nobody would hear of an error: who writes next does."""
        try:
            self._flush()
        except OSError as error:
            self._failed = error

    def _flush(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8", errors="replace")
        self._file.write("".join(self._buffer))
        self._file.flush()
        self._buffer.clear()
        self._pending = 0


# What is kept of an attempt: the agent's outputs, taken out safely, within limits, without secrets.

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
    """Return where a file is kept; what a pattern matched keeps its path below the pattern's fixed part."""
    if not glob.has_magic(artifact.source):
        return PurePosixPath(artifact.path)
    above = fixed_part(artifact.source).as_posix().replace("{task_id}", task_id)
    below = PurePosixPath(source).parts[len(PurePosixPath(above).parts) :]
    return PurePosixPath(artifact.path, *(below or (PurePosixPath(source).name,)))


def fixed_part(pattern: str) -> PurePosixPath:
    """The folder in which a pattern begins; a path that is none is all fixed."""
    return PurePosixPath(*takewhile(lambda part: not glob.has_magic(part), PurePosixPath(pattern).parts))


def make_way(target: Path, top: Path) -> None:
    """Remove what an agent kept under a name that is not its own to give."""
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
            _note_skipped(report, path, log)
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


def _note_skipped(report: CopyReport, source: str, log: AttemptLog) -> None:
    if report.skipped_count:
        shown = "; ".join(f"{name}: {reason}" for name, reason in report.skipped[:5])
        log.note(f"{report.skipped_count} entries of {source} were left behind ({shown})")


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
    """Take over what the agent left in an earlier attempt; files are linked, not copied."""
    if earlier.is_dir():
        shutil.copytree(
            earlier, draft, ignore=shutil.ignore_patterns(GRADING), copy_function=os.link, dirs_exist_ok=True
        )


# What a task itself wants kept of its sandbox when the agent is done: commands that gather it, paths.
#
# All of it is the agent's: it may be missing, of any size and shape, or lie where something else is to be
# kept. Whatever it is, the attempt is graded all the same.


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
    allowance = _Allowance(sandbox, log, limits.max_bytes, limits.max_entries)
    for declared in task.artifacts:
        one = replace(declared, source=posixpath.normpath(posixpath.join(task.cwd, declared.source)))
        try:
            await allowance.take(one, folder)
        except SandboxFileNotFoundError:
            if one.expected:
                log.note(f"artifact {one.source} is not there")
        except (AgentOutputError, SandboxError) as error:
            # Of a sandbox that is lost the grading tells.
            log.note(f"artifact {one.source} is not kept: {error}")


@dataclass(slots=True)
class _Allowance:
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
        _note_skipped(report, one.source, self.log)
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
    """Return where it is kept: as it says, else by its name, its whole path, or a number where those are
    taken.

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


# What an agent says it used, cost and met, read as far as it can be trusted.

METRICS = "metrics.json"
MOST_BYTES = 1024 * 1024
MOST_TOKENS = 10**12
"""Of one attempt: sums over a run must stay numbers a database can hold."""
MOST_DOLLARS = 1_000_000.0
"""An attempt that says it cost more is not believed: sums must stay numbers."""

_ARCHIVE = CopyLimits()


class _UnusableError(Exception):
    """There is a file, and nothing in it that can be taken."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What an agent wrote of itself."""

    cost: float | None = None
    """US dollars."""
    tokens: AgentUsage | None = None
    """Tokens alone; None where it named none."""


def reported_metrics(folder: Path, note: Callable[[str], None] = lambda _: None) -> Reported:
    """Return cost and tokens from an attempt's collected outputs, as far as they can be taken.

    Looked for at the top of `agent_output.tar.gz`, then in `artifacts/`: `{"cost": {"total": 1.23}}`,
    `{"cost": 1.23}` or `{"total_cost_usd": 1.23}`, and `"tokens": {"input": 51000, "cached": 200,
    "output": 4200}`. `note` hears why a file that is there is not taken.
    """
    for where, read in _metric_files(folder):
        try:
            content = read()
            if content is not None:
                return _metrics_in(content, note)
        except OSError as error:
            note(f"the cost in {where} is not taken: {error.strerror or error}")
        except (_UnusableError, tarfile.TarError, EOFError) as error:
            note(f"the cost in {where} is not taken: {error}")
    return Reported()


def _metric_files(folder: Path) -> Iterator[tuple[str, Callable[[], bytes | None]]]:
    yield f"agent_output/{METRICS}", lambda: _archived(folder / "agent_output.tar.gz")
    yield f"artifacts/{METRICS}", lambda: _plain(folder / "artifacts" / METRICS)


def _archived(archive: Path) -> bytes | None:
    """The member at the archive's top, read in passing: nothing is unpacked, no link is followed."""
    if not archive.is_file():
        return None
    passed = 0
    with tarfile.open(archive, "r|gz") as tar:
        for number, member in enumerate(tar):
            passed += member.size
            if number >= 2 * _ARCHIVE.max_entries or passed > 2 * _ARCHIVE.max_bytes:
                raise _UnusableError("the archive is larger than one of ours can be")
            if member.name.removeprefix("./") != METRICS:
                continue
            if not member.isreg():
                raise _UnusableError("it is not a plain file")
            _check_size(member.size)
            file = tar.extractfile(member)
            return file.read() if file else None
    return None


def _plain(path: Path) -> bytes | None:
    """A file of its own: neither a link nor something that would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _UnusableError("it is not a plain file")
        _check_size(found.st_size)
        return file.read(MOST_BYTES)


def _check_size(size: int) -> None:
    if size > MOST_BYTES:
        raise _UnusableError(f"the file is larger than {MOST_BYTES >> 20} MiB")


def _metrics_in(content: bytes, note: Callable[[str], None]) -> Reported:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _UnusableError(f"it is not JSON ({type(error).__name__})") from None
    if not isinstance(said, dict):
        raise _UnusableError("it is not a JSON object")
    tokens = _tokens(said.get("tokens"), note)
    cost = said.get("cost")
    if isinstance(cost, dict):
        cost = cost.get("total")
    cost = said.get("total_cost_usd") if cost is None else cost
    if cost is None and tokens is not None:
        return Reported(None, tokens)
    return Reported(_dollars(cost), tokens)


def _tokens(said: object, note: Callable[[str], None]) -> AgentUsage | None:
    """Return the tokens that were named; `input` counts cached ones too."""
    if not isinstance(said, dict):
        return None
    read: dict[str, int] = {}
    for name in ("input", "cached", "output"):
        count = said.get(name)
        if count is None:
            continue
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_TOKENS:
            note(f"the tokens in {METRICS} are not taken: {name} is no whole number up to {MOST_TOKENS:,}")
            return None
        read[name] = count
    if not read:
        return None
    whole = read.get("input", 0)
    return AgentUsage(whole, min(read.get("cached", 0), whole), read.get("output", 0))


def _dollars(value: object) -> float:
    if value is None:
        raise _UnusableError("it names neither cost nor total_cost_usd")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _UnusableError("the cost is not a number")
    if not 0 <= value <= MOST_DOLLARS:  # nor is NaN
        raise _UnusableError(f"the cost is not between 0 and {MOST_DOLLARS:,.0f} US dollars")
    return float(value)


async def note_metrics(folder: Path, log: AttemptLog) -> Reported:
    """Return what the agent said it used and cost; why it is not believed goes into the attempt's log."""
    said: list[str] = []
    found = await asyncio.to_thread(reported_metrics, folder, said.append)
    for text in said:
        log.note(text)
    return found


# What an agent says of how it went, as far as it is believed: agents may say anything.

LONGEST_NAME = 200


def believed(ended: AgentExit, masker: Masker | None) -> AgentExit:
    """The same exit with numbers that can be added up, and without secrets in its words."""
    if ended.usage is None and ended.trouble is None:
        return ended
    return replace(
        ended,
        usage=ended.usage and _usage(ended.usage, masker),
        trouble=ended.trouble and _trouble(ended.trouble, masker),
    )


def _usage(said: AgentUsage, masker: Masker | None) -> AgentUsage:
    return AgentUsage(
        input_tokens=_count(said.input_tokens),
        cached_tokens=min(_count(said.cached_tokens), _count(said.input_tokens)),
        output_tokens=_count(said.output_tokens),
        cost=_said_dollars(said.cost),
        cost_source=_words(said.cost_source, masker),
        model=_words(said.model, masker),
        steps=_count(said.steps),
    )


def _trouble(said: Trouble, masker: Masker | None) -> Trouble:
    message = _words(said.message, masker, MESSAGE_LIMIT) or ""
    return Trouble(said.cause, message, _number(said.retry_after))


def _count(value: object) -> int:
    whole = value if isinstance(value, int) and not isinstance(value, bool) else 0
    return min(max(whole, 0), MOST_TOKENS)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return float(min(value, MOST_TOKENS))


def _said_dollars(value: object) -> float | None:
    number = _number(value)
    return None if number is None else min(number, MOST_DOLLARS)


def _words(value: object, masker: Masker | None, most: int = LONGEST_NAME) -> str | None:
    if not isinstance(value, str):
        return None
    # Half a character is in no text a database takes.
    whole = value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    return (masker.text(whole) if masker else whole)[:most]
