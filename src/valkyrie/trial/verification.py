"""Grade what an agent left where it cannot touch the grade.

By default the tests run in a second sandbox, in which no process of the agent ever ran: made from the same
source, with the system as the task's set-up left it and the agent's work carried over as data. A task that
cannot be graded so is graded in the sandbox the agent left, with its processes dead and the image's own tools
put back. Where grading gives no verdict, a control decides who broke it: the same tests on the state the
agent began with.
"""

from __future__ import annotations

import asyncio
import math
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Self

from benchmark_runner.terminal import safe
from sandboxes.errors import (
    SandboxCapacityError,
    SandboxConnectionError,
    SandboxDiedError,
    SandboxError,
    SandboxImageError,
    SandboxUnsupportedError,
)
from sandboxes.masker import Masker
from sandboxes.protocol import MOST_LISTED, ChangedPath, PackedWork, Sandbox, WorkLimits, is_below
from sandboxes.types import Command, OutputSink, SandboxCreateRequest
from valkyrie.benchmarks.protocol import Grading
from valkyrie.domain import Grade, Json, TaskSpec, VerifyMode
from valkyrie.errors import (
    AgentError,
    BenchmarkError,
    GraderError,
    GraderTimeoutError,
    InfrastructureError,
    SandboxFailedError,
)
from valkyrie.trial import storage
from valkyrie.trial.attempt import (
    BROKEN,
    OF_FILES,
    SETUP_BROKEN,
    Attempt,
    PhaseTimeoutError,
    blamed_on_agent,
    keep_sandbox,
    remove_sandbox,
    start_entrypoint,
)
from valkyrie.trial.outputs import AGENT, GRADING
from valkyrie.trial.storage import (
    AGENT_FOLDERS,
    BLOCKED,
    FORBIDDEN,
    HOMES,
    LINK_RULES,
    carries_tools,
    rules_for,
    shadows,
    tampered,
    tool_folders,
)

GRACE_S = 60.0
"""The sandbox ends a command that is late; this is how late the sandbox may be."""
CARRY_TIMEOUT_S = 900.0
SYSTEM = "system.tar"
"""In the attempt's start folder: what the task's set-up changed of the system."""
SHOWN_CHANGES = 50
SHOWN_SKIPPED = 20
LONGEST_REASON = 400
PATHS_AT_ONCE = 1000
"""In the words of one command."""
BYTECODE = "*/__pycache__/*.pyc"
"""Python writes these by itself: they are counted, not listed."""
_CONTROLLED_CAUSES = frozenset({"service_failed", "service_refused", "service_protocol", "benchmark"})
"""What a benchmark says failed, and an agent's work may have made it fail."""
_LIST_THERE = 'for path; do [ -e "$path" ] && printf "%s\\n" "$path"; done; exit 0'


@dataclass(slots=True)
class HeldSandbox:
    """The agent's sandbox of an attempt. It is removed once, as soon as nothing needs it any more."""

    attempt: Attempt
    sandbox: Sandbox
    removed: bool = False

    async def release(self) -> None:
        """Remove the sandbox, or keep it for a person to look into."""
        if self.removed:
            return
        self.removed = True
        attempt = self.attempt
        if attempt.context.keep_sandbox:
            await keep_sandbox(attempt.context, attempt.leased, self.sandbox, attempt.log)
        else:
            await asyncio.shield(remove_sandbox(attempt.context, self.sandbox.id, attempt.log))


@dataclass(frozen=True, slots=True)
class CarriedWork:
    """The packed work of one agent."""

    archive: Path
    removed: Sequence[str]
    left: Sequence[ChangedPath]
    evidence: Json
    all_listed: bool = True
    """`left` has every change of the system, so that all of them can be put back."""


def mode_of(attempt: Attempt, task: TaskSpec) -> VerifyMode:
    """Return where the task's tests run in this attempt; SHARED where the provider cannot carry work."""
    context = attempt.context
    if not task.grading_runs or not context.provider.capabilities().carries_work:
        return VerifyMode.SHARED
    return VerifyMode(context.settings.verify) if context.settings.verify else task.verify


def keeps_processes(attempt: Attempt, task: TaskSpec) -> bool:
    """Return whether the agent's processes live on while the tests run."""
    return task.keep_processes and mode_of(attempt, task) is VerifyMode.SHARED


async def note_start(attempt: Attempt, task: TaskSpec, sandbox: Sandbox) -> None:
    """Pack what setting the task up changed of the system, before anything of the agent runs.

    An agent that is installed first has been there already: then a clean sandbox is set up anew.
    """
    if (
        task.install_first
        or not attempt.context.provider.capabilities().carries_work
        or not task.grading_runs
    ):
        return
    if task.image is not None or task.source is not None:
        attempt.tool_folders = tool_folders(await _path_of(sandbox), task.cwd)
    attempt.start.mkdir(parents=True, exist_ok=True)
    packed = await sandbox.pack_work(rules_for(task, attempt.tool_folders).inverse, attempt.start / SYSTEM)
    if packed.cut_short:
        (attempt.start / SYSTEM).unlink()
    else:
        attempt.system_changes = frozenset(_paths_in(attempt.start / SYSTEM))


async def _path_of(sandbox: Sandbox) -> str:
    """Return where programs are looked for in a sandbox nobody hostile was in."""
    found: list[str] = []
    command = Command(("/bin/sh", "-c", 'printf %s "$PATH"'))
    with suppress(SandboxError):  # an image without a shell
        await sandbox.run(command, lambda _stream, text: found.append(text))
    return "".join(found)


async def set_up_after_agent(attempt: Attempt, task: TaskSpec, sandbox: Sandbox, sink: OutputSink) -> None:
    """Set up a sandbox the agent was in already: before a later step, or after it was installed.

    If that fails and works in a sandbox the agent never was in, the agent broke it.
    """
    context = attempt.context
    try:
        await context.benchmark.setup(task, sandbox, sink, attempt.start)
    except (BenchmarkError, InfrastructureError, SandboxError) as error:
        if not _may_break_setup(error):
            raise
        clean = await _create(attempt, context.sandbox_request(attempt.leased, task), "setup")
        try:
            await _set_up(attempt, task, clean, attempt.scratch / "setup", until=task.step)
        finally:
            await asyncio.shield(remove_sandbox(context, clean.id, attempt.log))
        message = f"Setting up fails after the agent was there, and works without it: {error}"
        raise AgentError(message, cause=SETUP_BROKEN) from error


def _may_break_setup(error: Exception) -> bool:
    """Return whether an agent that was in the sandbox before can bring it about: a service may go silent over
    it."""
    match error:
        case SandboxConnectionError():
            return False
        case SandboxDiedError():
            return not error.outside
        case InfrastructureError():
            return error.cause == "service_silent"
        case _:
            return True


async def verify(attempt: Attempt, task: TaskSpec, held: HeldSandbox, *, last: bool) -> Grade:
    """Grade the agent's work. `last`: no further step needs the agent's sandbox."""
    mode = mode_of(attempt, task)
    if not task.grading_runs or not attempt.context.provider.capabilities().carries_work:
        return await _grade_in_place(attempt, task, held.sandbox)
    if mode is VerifyMode.SHARED:
        with blamed_on_agent():
            changes = await held.sandbox.changes(rules_for(task, attempt.tool_folders).inverse)
        if len(changes) >= MOST_LISTED:
            raise AgentError("The agent changed more of the system than can be put back.", cause=BROKEN)
        return await _grade_shared(attempt, task, held.sandbox, changes, GRADING)
    work = await _pack(attempt, task, held.sandbox)
    if last and task.work_suffices:
        # What the shared mode needs besides is gone after a crash: only a fresh grading can go on.
        await _keep_work(attempt, work, commit=mode is VerifyMode.FRESH)
    if mode is VerifyMode.FRESH and last:
        await held.release()
    fresh = await _grade_fresh(attempt, task, work)
    if mode is VerifyMode.FRESH or fresh.passed:
        return fresh
    if not work.all_listed:
        attempt.log.note("the sandbox the agent left has more changes of the system than can be put back")
        return fresh
    try:
        shared = await _grade_shared(attempt, task, held.sandbox, work.left, f"{GRADING}/shared")
    except (AgentError, SandboxError, BenchmarkError, PhaseTimeoutError) as error:
        attempt.log.note(f"the sandbox the agent left gives no verdict: {error}")
        return fresh
    return _better(fresh, shared)


async def grade_kept(attempt: Attempt, task: TaskSpec) -> Grade:
    """Grade the work an earlier attempt kept, without running the agent."""
    record = storage.read_record(attempt.draft)
    digest = str(record["digest"]) if record else ""
    context = attempt.context
    archive = await storage.fetch(context.work, context.away, context.run_id, digest) if record else None
    if record is None or archive is None:
        raise GraderError(
            f"The kept work of task {task.id!r} is gone; `valk run retry` runs its agent again."
        )
    changes = [ChangedPath(path, kind) for path, kind in record["left"]]
    work = CarriedWork(archive, record["removed"], changes, record["evidence"])
    return await _grade_fresh(attempt, task, work)


async def _grade_in_place(attempt: Attempt, task: TaskSpec, sandbox: Sandbox | None) -> Grade:
    """Grade without a second sandbox: nothing runs in the first one, or its provider cannot carry work."""
    try:
        grade = await evaluate(attempt, task, sandbox)
    except Exception as error:  # noqa: BLE001 - whoever is to blame is named, everything else passes
        return await _blame(attempt, task, error)
    confirmed = True if not task.grading_runs else None
    score = grade.score if confirmed else None
    return replace(grade, confirmed=confirmed, score_confirmed=score)


async def grade_saved(attempt: Attempt, task: TaskSpec) -> Grade:
    """Go on grading from what the benchmark saved of an earlier attempt."""
    return await _grade_in_place(attempt, task, None)


async def _pack(attempt: Attempt, task: TaskSpec, sandbox: Sandbox) -> CarriedWork:
    """Pack the agent's work into a file of this machine."""
    attempt.scratch.mkdir(parents=True, exist_ok=True)
    archive = attempt.scratch / storage.WORK
    archive.unlink(missing_ok=True)
    with blamed_on_agent():
        async with attempt.phase("carry", CARRY_TIMEOUT_S):
            packed = await sandbox.pack_work(rules_for(task, attempt.tool_folders), archive, _limits_of(task))
    if packed.skipped_count:
        shown = "; ".join(f"{path}: {reason}" for path, reason in _skipped(packed)[:5])
        attempt.log.note(f"{packed.skipped_count} entries are not carried into the grading sandbox ({shown})")
    listed = packed.left_count < MOST_LISTED
    return CarriedWork(archive, packed.removed, packed.left, _evidence_of(attempt, packed), listed)


def _limits_of(task: TaskSpec) -> WorkLimits:
    """Return what is packed fits on the disk it came from, and on its copy: a sparse file is as large as it
    says."""
    usual, disk = WorkLimits(), task.limits.disk_mb
    return usual if disk is None else usual._replace(max_bytes=min(usual.max_bytes, disk << 21))


def _evidence_of(attempt: Attempt, packed: PackedWork) -> Json:
    found: Json = {"work": {"bytes": packed.bytes, "files": packed.files}}
    if system := _system_changes(attempt, packed.left):
        found["system"] = system
    if packed.skipped_count:
        found["not_carried"] = {"count": packed.skipped_count, "paths": _skipped(packed)}
    if packed.cut_short:
        found["work"]["cut_short"] = True
    return found


def _skipped(packed: PackedWork) -> list[tuple[str, str]]:
    return [(printable(path), printable(reason)) for path, reason in packed.skipped[:SHOWN_SKIPPED]]


def printable(text: str) -> str:
    """Return names that agents chose, as text that any terminal and any database takes."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in whole)


def _is_system(attempt: Attempt, change: ChangedPath) -> bool:
    """Return whether it is the agent's change to the system, and not the set-up's or a place for tests."""
    places = (*FORBIDDEN, *AGENT_FOLDERS)
    apart = any(change.path == place or is_below(change.path, place) for place in places)
    return not apart and change.path not in attempt.system_changes


def _system_changes(attempt: Attempt, found_changes: Sequence[ChangedPath]) -> Json | None:
    """Return what the agent changed of the system, in numbers and by name; what programs run on first."""
    changes = [one for one in found_changes if _is_system(attempt, one)]
    seen = [one for one in changes if not fnmatch(one.path, BYTECODE)]
    counts = {kind: sum(1 for one in seen if one.kind == kind) for kind in ("added", "changed", "removed")}
    tools = set(tampered(seen))
    shown = sorted(seen, key=lambda one: (one.path not in tools, one.kind == "added"))[:SHOWN_CHANGES]
    found: Json = {**counts, "paths": [[printable(one.path), one.kind] for one in shown]} if seen else {}
    if len(seen) < len(changes):
        found["bytecode"] = len(changes) - len(seen)
    return found or None


async def _keep_work(attempt: Attempt, work: CarriedWork, *, commit: bool) -> None:
    """Keep the work for grading it again; `commit` that a later attempt can go on grading from it."""
    context = attempt.context
    digest = await asyncio.to_thread(_keep, attempt, work)
    if digest is None:
        reason = work.evidence["work"]["reason"]
        attempt.log.note(f"the agent's work is not kept for grading it again: {reason}")
        return
    await storage.share(context.work, context.away, context.run_id, digest)
    if commit:
        await attempt.save_work()


def _keep(attempt: Attempt, work: CarriedWork) -> str | None:
    """Keep the work's archive and a record of it; return its digest, or None if it is not kept."""
    digest = storage.digest_of(work.archive)
    reason = attempt.context.work.keep(work.archive, digest, attempt.context.masker)
    work.evidence["work"] |= {"digest": digest, "kept": reason is None}
    if reason is not None:
        work.evidence["work"]["reason"] = reason
        return None
    left = [[one.path, one.kind] for one in work.left[:SHOWN_CHANGES]]
    record = {"digest": digest, "removed": list(work.removed), "left": left, "evidence": work.evidence}
    storage.write_record(attempt.draft, record)
    return digest


async def _grade_fresh(attempt: Attempt, task: TaskSpec, work: CarriedWork) -> Grade:
    """Grade the work in a sandbox in which no process of the agent ever ran."""
    evidence = {"mode": VerifyMode.FRESH.value, **work.evidence}
    if carries_tools(task):
        evidence["open_to_tampering"] = True
    try:
        async with GradingSandboxes(attempt, task, work) as sandboxes:
            grade = await evaluate(attempt, task, await sandboxes.renew(), renew=sandboxes.renew)
    except Exception as error:  # noqa: BLE001 - whoever is to blame is named, everything else passes
        grade = await _blame(attempt, task, error)
    return replace(
        grade, confirmed=True, score_confirmed=grade.score, evidence={**evidence, **grade.evidence}
    )


@dataclass(slots=True)
class GradingSandboxes:
    """Sandboxes with one agent's work in which no process of it ever ran, one at a time."""

    attempt: Attempt
    task: TaskSpec
    work: CarriedWork
    _held: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def renew(self) -> Sandbox:
        """Make the next one; the one before it is removed."""
        await self._held.aclose()
        return await self._held.enter_async_context(self._with_work())

    @asynccontextmanager
    async def _with_work(self) -> AsyncIterator[Sandbox]:
        async with clean_sandbox(self.attempt, self.task, "grade") as sandbox:
            task = self.task.placed(sandbox.image_defaults)
            with masked(self.attempt) as sink:
                await start_entrypoint(task, sandbox, sink)
            async with self.attempt.phase("carry", CARRY_TIMEOUT_S):
                await sandbox.unpack_work(
                    self.work.archive, rules_for(task, self.attempt.tool_folders), self.work.removed
                )
            yield sandbox

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._held.aclose()


async def _grade_shared(
    attempt: Attempt, task: TaskSpec, sandbox: Sandbox, changes: Sequence[ChangedPath], place: str
) -> Grade:
    """Grade in the sandbox the agent left, with the image's own tools put back."""
    evidence: Json = {"mode": VerifyMode.SHARED.value, "open_to_tampering": True}
    if system := _system_changes(attempt, changes):
        evidence["system"] = system
    if keeps_processes(attempt, task):
        evidence["keep_processes"] = True
    try:
        await _put_tools_back(attempt, task, sandbox, changes)
        grade = await evaluate(attempt, task, sandbox, place)
    except Exception as error:
        if place != GRADING:
            raise
        grade = await _blame(attempt, task, error)
    return replace(grade, confirmed=False, score_confirmed=0.0, evidence={**evidence, **grade.evidence})


async def _put_tools_back(
    attempt: Attempt, task: TaskSpec, sandbox: Sandbox, changes: Sequence[ChangedPath]
) -> None:
    """Restore changed tools of the image; remove programs that hide one of them, and links to the tests."""
    strict = mode_of(attempt, task) is not VerifyMode.SHARED
    paths, hiding = tampered(changes, attempt.tool_folders, strict=strict), shadows(changes)
    paths += await _links_to_tests(attempt, sandbox)
    if not paths and not hiding:
        return
    async with clean_sandbox(attempt, task, "tools") as pristine:
        places = sorted({place for hidden in hiding.values() for place in hidden})
        there = set(await _there(pristine, places)) if places else set()
        paths += [path for path, hidden in hiding.items() if there.intersection(hidden)]
        if paths:
            attempt.log.note(
                f"put back before grading: {', '.join(map(printable, paths[:10]))}{' …' * (len(paths) > 10)}"
            )
            await sandbox.put_back(paths, pristine)


async def _links_to_tests(attempt: Attempt, sandbox: Sandbox) -> list[str]:
    """Links among all that changed that lead to the tests, as soon as these are there."""
    listing = attempt.scratch / "links.tar"
    attempt.scratch.mkdir(parents=True, exist_ok=True)
    listing.unlink(missing_ok=True)
    with blamed_on_agent():
        packed = await sandbox.pack_work(
            LINK_RULES, listing, WorkLimits(max_bytes=0, max_entries=MOST_LISTED)
        )
    listing.unlink(missing_ok=True)
    if packed.skipped_count > len(packed.skipped):
        raise AgentError("The agent left more in its sandbox than can be looked at.", cause=BROKEN)
    found = [path for path, reason in packed.skipped if reason.startswith("a link to ")]
    # A home that is a link has the start-up files of another folder.
    homes = [home.removesuffix("/*") for home in HOMES]
    return found + [f"{home}/{BLOCKED}" for home in homes if not await sandbox.is_folder(home)]


async def _there(pristine: Sandbox, paths: Sequence[str]) -> list[str]:
    """Those of the paths that exist; no program of an image has a name that is no text."""
    found: list[str] = []
    asked = [path for path in paths if path.isprintable()]
    for at in range(0, len(asked), PATHS_AT_ONCE):
        command = Command(("/bin/sh", "-c", _LIST_THERE, "sh", *asked[at : at + PATHS_AT_ONCE]))
        await pristine.run(command, lambda _stream, text: found.append(text))
    return "".join(found).splitlines()


def _better(fresh: Grade, shared: Grade) -> Grade:
    """The shared grade if it is the better one: it stands, unconfirmed; else the fresh one."""
    seen: Json = {"score": fresh.score, "passed": fresh.passed}
    if (shared.score or 0.0) > (fresh.score or 0.0) or (shared.passed and not fresh.passed):
        evidence = {**fresh.evidence, **shared.evidence, "fresh": seen}
        return replace(shared, score_confirmed=fresh.score, evidence=evidence)
    return fresh


@asynccontextmanager
async def clean_sandbox(attempt: Attempt, task: TaskSpec, purpose: str) -> AsyncIterator[Sandbox]:
    """A sandbox like the agent's at its start, but for the files outside the system."""
    context = attempt.context
    async with attempt.phase("build", task.timeouts.build):
        request = context.sandbox_request(attempt.leased, task)
        sandbox = await _create(attempt, request, purpose)
    try:
        system = attempt.start / SYSTEM
        if not system.exists():
            await _set_up(attempt, task, sandbox, attempt.scratch / purpose)
        elif not _is_empty(system):
            placed = task.placed(sandbox.image_defaults)
            await sandbox.unpack_work(system, rules_for(placed, attempt.tool_folders).inverse)
        yield sandbox
    finally:
        await asyncio.shield(remove_sandbox(context, sandbox.id, attempt.log))


async def _create(attempt: Attempt, request: SandboxCreateRequest, purpose: str) -> Sandbox:
    """Make a sandbox for grading. That it cannot be made is nobody's doing in the trial."""
    named = request.model_copy(update={"name": f"{request.name}-{purpose}"})
    try:
        return await attempt.context.provider.create_sandbox(named)
    except (SandboxUnsupportedError, SandboxCapacityError, SandboxImageError):
        raise
    except SandboxError as error:
        raise SandboxFailedError(f"No sandbox for grading could be made: {error}") from error


async def _set_up(
    attempt: Attempt, task: TaskSpec, sandbox: Sandbox, start: Path, until: str | None = None
) -> None:
    """Set the task up once more; of a task with steps its first one, or all `until` the one of that name."""
    whole = await attempt.context.task(attempt.leased)
    steps = list(whole.steps) or [task]
    names = [step.step for step in steps]
    start.mkdir(parents=True, exist_ok=True)
    with masked(attempt) as sink:
        async with attempt.phase("setup", task.timeouts.setup):
            for step in steps[: names.index(until) + 1 if until else 1]:
                placed = step.placed(sandbox.image_defaults)
                await attempt.context.benchmark.setup(placed, sandbox, sink, start)
        await sandbox.kill_all()


async def evaluate(
    attempt: Attempt,
    task: TaskSpec,
    sandbox: Sandbox | None,
    place: str = GRADING,
    *,
    control: bool = False,
    renew: Callable[[], Awaitable[Sandbox]] | None = None,
) -> Grade:
    """Let the benchmark judge; what it kept as evidence appears whole or not at all."""
    context = attempt.context
    task = task.placed(sandbox.image_defaults) if sandbox else task
    ended = None if control else attempt.exit
    saved = attempt.leased.saved
    with masked(attempt) as sink:
        grading = Grading(
            task,
            sandbox,
            sink,
            evidence=attempt.part(place, task),
            final_output=context.agent.final_output,
            saved=saved["state"] if saved and not control else None,
            save=_save_nothing if control else attempt.save,
            agent=attempt.scratch / "control-agent" if control else attempt.part(AGENT, task),
            told=ended.told if ended else None,
            tokens=(used.input_tokens, used.output_tokens) if (used := attempt.usage) and ended else None,
            start=attempt.scratch / "control" if control else attempt.start if sandbox else None,
            exit_code=0 if control else ended.exit_code if ended else None,
            exit_reason=ended.reason if ended else None,
            seconds=None if control else attempt.timing.get("agent"),
            k=attempt.leased.k,
            earlier=attempt.grades,
            control=control,
            renew=renew,
        )
        async with attempt.phase("grade", task.timeouts.grade and task.timeouts.grade + GRACE_S):
            grade = await context.benchmark.evaluate(grading)
    if context.masker:
        grade = replace(grade, result=context.masker.data(grade.result))
    grade = _with_reason(grade, context.masker)
    if grade.score is not None and not math.isfinite(grade.score):
        raise GraderError(f"The benchmark's score is {grade.score}, which is no number.")
    return grade


def _with_reason(grade: Grade, masker: Masker | None) -> Grade:
    """Keep among the evidence why it is no pass: one line, which may hold text of the agent's."""
    if grade.passed or not grade.reason:
        return grade
    # Masked first: what is left out of a line must not make a secret unlike itself.
    line = safe(masker.text(grade.reason) if masker else grade.reason)
    line = line.encode("utf-8", "replace").decode()
    kept = line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 1]}…"
    return replace(grade, evidence={**grade.evidence, "reason": kept}) if kept else grade


async def _save_nothing(_state: Json) -> None:
    return


async def _blame(attempt: Attempt, task: TaskSpec, error: Exception) -> Grade:
    """Score 0 if the agent's work broke the grader, as a control shows; else raise the error again."""
    if not _may_be_the_work(error):
        raise error
    attempt.log.note(f"no verdict: {error}; the same tests run without the agent's work, as a control")
    control = await _control(attempt, task)
    if control["verdict"] is None:
        attempt.log.note(f"the control gives no verdict either: {control['error']}")
        raise error
    slow = isinstance(error, GraderTimeoutError) or (
        isinstance(error, PhaseTimeoutError) and error.phase == "grade"
    )
    limit = task.timeouts.grade
    if slow and limit is not None and control["seconds"] > limit / 2:
        attempt.log.note(
            f"the control took {control['seconds']:g} s of {limit:g} s: the tests are too slow here"
        )
        raise error
    message = f"Grading gave no verdict on the agent's work, and gave one without it: {error}"
    return counted_as_zero(attempt, BROKEN, message, {"control": control})


def counted_as_zero(attempt: Attempt, cause: str, message: str, evidence: Json | None = None) -> Grade:
    """The grade of an agent that kept itself from being graded.

    On a service's own scale nobody knows the worst score: there it is the agent's error.
    """
    if not attempt.context.benchmark.fraction:
        raise AgentError(message, cause=cause)
    masker = attempt.context.masker
    text = (masker.text(message) if masker else message).encode("utf-8", "replace").decode()[:2000]
    return Grade(
        0.0,
        passed=False,
        result={"rewards": {"reward": 0.0}, "cause": cause},
        confirmed=True,
        score_confirmed=0.0,
        cause=cause,
        message=text,
        evidence=evidence or {},
    )


def _may_be_the_work(error: Exception) -> bool:
    """Return whether an agent's work can bring this about; what the host saw outside the sandbox it
    cannot."""
    match error:
        case GraderError():
            return True
        case BenchmarkError():
            return error.cause in _CONTROLLED_CAUSES
        case SandboxConnectionError():
            return False
        case SandboxDiedError():
            return not error.outside
        case SandboxError():
            return True
        case PhaseTimeoutError():
            return error.phase in ("carry", "grade")
        case UnicodeError() | RecursionError():
            return True
        case OSError():
            return error.errno in OF_FILES
        case _:
            return False


async def _control(attempt: Attempt, task: TaskSpec) -> Json:
    """Return what the same tests say of the state the agent began with; asked once for each task and run."""
    context = attempt.context
    key = "-".join(map(str, filter(None, (task.digest, task.step, attempt.leased.grading))))
    async with context.controls.lock(key):
        known = await asyncio.to_thread(context.controls.read, key)
        if known is None:
            known = await _run_control(attempt, task)
            await asyncio.to_thread(context.controls.write, key, known)
    return known


async def _run_control(attempt: Attempt, task: TaskSpec) -> Json:
    context = attempt.context
    began = time.monotonic()
    sandbox = await _create(attempt, context.sandbox_request(attempt.leased, task), "control")
    try:
        await _set_up(attempt, task, sandbox, attempt.scratch / "control")
        with masked(attempt) as sink:
            await start_entrypoint(task, sandbox, sink)
        began = time.monotonic()
        grade = await evaluate(attempt, task, sandbox, f"{GRADING}/control", control=True)
        found: Json = {"verdict": {"score": grade.score, "passed": grade.passed}}
    except (BenchmarkError, SandboxError, PhaseTimeoutError) as error:
        if isinstance(error, SandboxConnectionError) or (
            isinstance(error, SandboxDiedError) and error.outside
        ):
            raise
        found = {"verdict": None, "error": str(error)[:500]}
    finally:
        await asyncio.shield(remove_sandbox(context, sandbox.id, attempt.log))
    return {**found, "seconds": round(time.monotonic() - began, 3)}


def masked(attempt: Attempt) -> AbstractContextManager[OutputSink]:
    """The attempt's log as a sink that no secret passes."""
    masker = attempt.context.masker
    return masker.sink(attempt.log.write) if masker else nullcontext(attempt.log.write)


def _is_empty(archive: Path) -> bool:
    with archive.open("rb") as file:
        return not file.read(512).strip(b"\0")


def _paths_in(archive: Path) -> list[str]:
    if _is_empty(archive):
        return []
    with tarfile.open(archive, "r:") as tar:
        return ["/" + member.name.strip("/") for member in tar]
