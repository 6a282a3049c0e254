"""The workspace of a trial: what is in it before the agent starts, and what is in it afterwards.

It begins with a repository (`environment.git`), or with a view of `--work-dir` where nothing but skills is
declared; files, attachments and skills are laid over that, then the set-up commands run. In a `null` sandbox
nothing is laid out before someone wants to look: the workspace is a folder of this machine, with what the
agent uploaded on top.

What a grading must know is kept below `start`, a folder of the attempt that no agent sees.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from sandboxes.null import NullSandbox
from sandboxes.protocol import TIMEOUT_EXIT_CODE, Command, OutputSink, Sandbox
from sandboxes.types import Mount
from valkyrie.benchmarks.eval_spec import snapshots
from valkyrie.benchmarks.eval_spec.layout import (
    SETUP_FAILED,
    Checkouts,
    content_digest,
    file_problems,
    git_problems,
    lay_out,
    placed,
    put_tree,
    skill_places,
    skill_problems,
    skills_of,
)
from valkyrie.benchmarks.eval_spec.snapshots import (
    InitialWorkspace,
    WorkspaceSnapshot,
    download,
    folder_name,
    keep_artifacts,
    materialise,
    merge,
)
from valkyrie.benchmarks.eval_spec.source import WORKSPACE, EvalOptions
from valkyrie.benchmarks.task_dir.execution import OutputTail
from valkyrie.errors import BenchmarkError
from valkyrie.git.local import commit_in
from valkyrie.specs.model import Finding, SpecError, Stimulus, WorkspaceRepository

__all__ = [
    "Checkouts",
    "content_digest",
    "diff",
    "folder_name",
    "keep_artifacts",
    "materialise",
    "mounts",
    "prepare",
    "problems",
    "skill_names",
    "snapshot",
    "unseen",
]

STATIC = "workspace"
"""Files and skills as they were put together."""
AFTER_COMMANDS = "after-commands"
FINAL = "final"
_RECORD = "workspace.json"


def problems(stimulus: Stimulus, options: EvalOptions) -> list[Finding]:
    """Everything that keeps a workspace from being set up, as far as it shows beforehand."""
    return list(_problems(stimulus, options))


def _problems(stimulus: Stimulus, options: EvalOptions) -> Iterator[Finding]:
    environment = stimulus.environment
    yield from file_problems(environment.files, "environment.files")
    yield from file_problems(stimulus.attachments, "attachments")
    yield from file_problems(stimulus.grading_files, "grading_environment.files")
    if environment.git is not None:
        yield from git_problems(environment.git)
    elif (work_dir := _work_dir(stimulus, options)) is not None and not work_dir.is_dir():
        yield Finding("work-dir-missing", "error", f"--work-dir {work_dir} is not a folder", stimulus.place)
    yield from skill_problems(stimulus, options)
    patch = stimulus.golden_patch_file
    if patch is not None and not patch.source.is_file():
        message = (
            f"`golden_patch`: {str(patch.src)[:200]!r} is no file in {patch.base.absolute()}; write it, or "
            "leave the key out"
        )
        yield Finding("environment-file-missing", "error", message, patch.place)


def skill_names(stimulus: Stimulus, options: EvalOptions) -> list[str]:
    """Return what the agent may load."""
    return [skill.name for skill in skills_of(stimulus, options)]


def mounts(stimulus: Stimulus, options: EvalOptions) -> tuple[Mount, ...]:
    """Return what the sandbox shows of this machine: a view of `--work-dir`, whose changes stay in the
    sandbox."""
    work_dir = _work_dir(stimulus, options)
    if work_dir is None:
        return ()
    hidden = _hidden(work_dir, stimulus, options)
    return (Mount(source=str(work_dir), target=WORKSPACE, copy_on_write=True, hidden=hidden),)


def _work_dir(stimulus: Stimulus, options: EvalOptions) -> Path | None:
    """Return where the workspace starts from, if that is `--work-dir`."""
    return Path(options.work_dir) if stimulus.environment.empty and options.work_dir else None


async def prepare(
    stimulus: Stimulus,
    options: EvalOptions,
    sandbox: Sandbox,
    start: Path,
    log: OutputSink,
    *,
    needs_diff: bool = False,
    checkouts: Checkouts | None = None,
) -> None:
    """Set the workspace up. Raises BenchmarkError (`task_setup_failed`) when the spec's own set-up fails.

    `checkouts` keeps repositories for further trials; without it each one is fetched anew.
    """
    if isinstance(sandbox, NullSandbox):
        if stimulus.environment.commands:
            raise BenchmarkError(
                f"stimulus {stimulus.name!r} has set-up commands, and nothing runs in a null sandbox; "
                "use --provider local",
                cause=SETUP_FAILED,
            )
        return
    work_dir = _work_dir(stimulus, options)
    if work_dir is not None:
        hidden = _hidden(work_dir, stimulus, options)
        await _show_work_dir(work_dir, sandbox, start, checkouts, hidden)
    elif (git := stimulus.environment.git) is not None:
        await put_tree(sandbox, await _checked_out(git, start, checkouts), WORKSPACE)
    empty = WORKSPACE not in sandbox.views
    if await _lay_out_static(stimulus, options, start / STATIC, empty=empty or needs_diff) or empty:
        await sandbox.upload_folder(start / STATIC, WORKSPACE)
    for command in stimulus.environment.commands:
        await _run_setup(command, stimulus, sandbox, log)
    if needs_diff and stimulus.environment.commands:
        made = await download(sandbox, WORKSPACE, start / AFTER_COMMANDS, log)
        _write_json(start / f"{AFTER_COMMANDS}.json", sorted(made.too_large))


async def _show_work_dir(
    work_dir: Path, sandbox: Sandbox, start: Path, checkouts: Checkouts | None, hidden: Sequence[str]
) -> None:
    """Show what the sandbox does not show of it already, and a `.git` that works in there."""
    git = work_dir / ".git"
    if WORKSPACE not in sandbox.views:
        await put_tree(sandbox, work_dir, WORKSPACE, without=frozenset(hidden))
    elif git.is_dir() and git.stat().st_uid != 0:
        # Git refuses a repository of someone else's, and in there we are root.
        await sandbox.run(Command(("chown", "0:0", WORKSPACE, f"{WORKSPACE}/.git")))
    if git.is_file() and commit_in(work_dir, "HEAD") is not None:
        # A linked worktree: its repository is elsewhere on this machine, and stays there.
        here = WorkspaceRepository("worktree", str(work_dir), work_dir, shallow=True)
        checkout = await _checked_out(here, start, checkouts)
        await sandbox.remove(f"{WORKSPACE}/.git")
        await sandbox.upload_folder(checkout / ".git", f"{WORKSPACE}/.git")


async def _checked_out(git: WorkspaceRepository, start: Path, checkouts: Checkouts | None) -> Path:
    kept = checkouts or Checkouts(start / "git")
    return await kept.of(git)


async def _lay_out_static(
    stimulus: Stimulus, options: EvalOptions, folder: Path, *, empty: bool = True
) -> bool:
    """Put files and skills together; whether there are any. Without, `empty` makes an empty folder."""
    try:
        skills = skills_of(stimulus, options)
    except SpecError as error:
        raise BenchmarkError(str(error), cause=SETUP_FAILED) from error
    files = (*stimulus.environment.files, *stimulus.attachments)
    if files or skills:
        places = (*placed(files), *skill_places(skills, options))
        await asyncio.to_thread(lay_out, folder, places)
        return True
    if empty:
        folder.mkdir(parents=True, exist_ok=True)
    return False


async def _run_setup(command: str, stimulus: Stimulus, sandbox: Sandbox, log: OutputSink) -> None:
    limit = stimulus.environment.command_timeout
    tail, began = OutputTail(log), time.monotonic()
    code = await sandbox.run(Command.shell(command, cwd=WORKSPACE, timeout=limit), tail)
    if code == 0:
        return
    late = code == TIMEOUT_EXIT_CODE and time.monotonic() - began >= limit
    ended = f"did not end within {limit:g} s (commandTimeout)" if late else f"ended with exit code {code}"
    raise BenchmarkError(
        f"stimulus {stimulus.name!r}: set-up command `{command}` {ended}{tail.quoted()}", cause=SETUP_FAILED
    )


async def snapshot(
    stimulus: Stimulus,
    options: EvalOptions,
    sandbox: Sandbox,
    start: Path,
    log: OutputSink,
    *,
    checkouts: Checkouts | None = None,
) -> Path:
    """The workspace as it is now, as a folder of this machine: to be read only, its contents hostile.

    To be called before any grader's program runs; `diff` then tells what changed.
    """
    on_null = isinstance(sandbox, NullSandbox)
    if on_null:
        await _lay_out_static(stimulus, options, start / STATIC)
    before = await _before(stimulus, options, start, checkouts)
    if on_null:
        final = await _on_null(sandbox, before, start, log)
    else:
        final = await download(sandbox, WORKSPACE, start / FINAL, log)
    await asyncio.to_thread(_write_record, start, before, final)
    return final.folder


def unseen(stimulus: Stimulus, options: EvalOptions, final: Path) -> tuple[str, ...]:
    """Return what in a final state the agent was not shown: it may be `--work-dir` itself, and not a view of
    it."""
    work_dir = _work_dir(stimulus, options)
    return _hidden(work_dir, stimulus, options) if work_dir is not None and final == work_dir else ()


async def diff(start: Path, final: Path) -> str:
    """Return what changed between the end of set-up and the `snapshot` that gave `final`, as git tells it."""
    before, after = await asyncio.to_thread(_read_record, start, final)
    return await asyncio.to_thread(snapshots.diff, before, after)


async def _before(
    stimulus: Stimulus, options: EvalOptions, start: Path, checkouts: Checkouts | None
) -> InitialWorkspace:
    if stimulus.environment.commands:
        noted = start / f"{AFTER_COMMANDS}.json"
        too_large = json.loads(noted.read_text("utf-8")) if noted.is_file() else ()
        return InitialWorkspace((start / AFTER_COMMANDS,), frozenset(too_large))
    static = start / STATIC
    if (work_dir := _work_dir(stimulus, options)) is not None:
        laid_over = (static,) if static.exists() else ()
        since = static.stat().st_mtime_ns if laid_over else None
        hidden = _hidden(work_dir, stimulus, options)
        return InitialWorkspace((work_dir, *laid_over), live_since=since, not_looked_at=hidden)
    if (git := stimulus.environment.git) is not None:
        return InitialWorkspace((await _checked_out(git, start, checkouts), static))
    return InitialWorkspace((static,))


def _hidden(work_dir: Path, stimulus: Stimulus, options: EvalOptions) -> tuple[str, ...]:
    """Return what below the folder tells how the agent is graded, or what other trials did; relative to
    it."""
    paths = [*options.hidden, *(str(entry.source) for entry in stimulus.grading_files)]
    if options.workspace is not None:
        paths.append(options.workspace)
    return _inside(str(work_dir), tuple(paths))


@lru_cache(maxsize=256)
def _inside(folder: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of these are below the folder, relative to it. Trials of one eval ask for the same."""
    top = os.path.realpath(folder)
    inside: set[str] = set()
    for path in paths:
        above, name = os.path.split(Path(path))
        place = os.path.join(os.path.realpath(above), name)  # noqa: PTH118 - like the rest here
        # What stands there may be a link to something else in there.
        inside |= {os.path.relpath(place, top), os.path.relpath(os.path.realpath(place), top)}
    return tuple(sorted(path for path in inside if path.split("/")[0] not in ("..", ".")))


async def _on_null(
    sandbox: Sandbox, before: InitialWorkspace, start: Path, log: OutputSink
) -> WorkspaceSnapshot:
    """Return what lies on this machine, and over it what the agent uploaded; copied only where there are
    both."""
    written = await sandbox.is_folder(WORKSPACE)
    filled = [folder for folder in before.folders if any(folder.iterdir())]
    if not written and len(filled) <= 1:
        return WorkspaceSnapshot((filled or [start / STATIC])[0], untouched=True)
    final = start / FINAL
    if final.exists():
        await asyncio.to_thread(shutil.rmtree, final)
    cut_short = await asyncio.to_thread(merge, filled, final, before.not_looked_at)
    if not written:
        return WorkspaceSnapshot(final, cut_short=cut_short, untouched=True)
    uploaded = await download(sandbox, WORKSPACE, start / "uploaded", log)
    await asyncio.to_thread(merge, [uploaded.folder], final)
    return replace(uploaded, folder=final, cut_short=cut_short or uploaded.cut_short)


def _write_record(start: Path, before: InitialWorkspace, final: WorkspaceSnapshot) -> None:
    _write_json(
        start / _RECORD,
        {
            "folders": list(map(str, before.folders)),
            "too_large_before": sorted(before.too_large),
            "live_since": before.live_since,
            "not_looked_at": list(before.not_looked_at),
            "cut_short": final.cut_short,
            "too_large": sorted(final.too_large),
            "untouched": final.untouched,
        },
    )


def _read_record(start: Path, final: Path) -> tuple[InitialWorkspace, WorkspaceSnapshot]:
    data = json.loads((start / _RECORD).read_text("utf-8"))
    before = InitialWorkspace(
        tuple(map(Path, data["folders"])),
        frozenset(data["too_large_before"]),
        data["live_since"],
        tuple(data["not_looked_at"]),
    )
    return before, WorkspaceSnapshot(
        final, frozenset(data["too_large"]), data["cut_short"], data["untouched"]
    )


def _write_json(path: Path, data: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), "utf-8")
