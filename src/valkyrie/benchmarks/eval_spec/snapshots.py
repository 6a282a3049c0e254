"""Bring a workspace to a folder of the host, within limits, and keep final states and artifacts."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.protocol import Sandbox
from sandboxes.trees import is_utf8
from sandboxes.types import CopyLimits, CopyReport, OutputSink
from sandboxes.values import A_LINK
from valkyrie.digest import content_digest
from valkyrie.errors import UsageError
from valkyrie.grade.globs import TooManyFilesError, WorkspaceGlob

LIMITS = CopyLimits(max_bytes=2 << 30, max_file_bytes=256 << 20, max_entries=200_000)
_TOO_LARGE = ("for a file", "over the limits")
_CUT_SHORT = ("not looked at", "left of")
MOST_TOLD = 10
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class WorkspaceSnapshot:
    """The state of a workspace at one moment."""

    folder: Path
    """Read only: it may be the user's own `--work-dir`. Links in a copy lead nowhere out of it; those in
    `--work-dir` may, and are not to be followed."""
    too_large: frozenset[str] = frozenset()
    """Files that were left behind for their size."""
    cut_short: bool = False
    """More than the limits allow was there: what is missing here may have been there."""
    untouched: bool = False
    """Nothing has been written since set-up."""


@dataclass(frozen=True, slots=True)
class InitialWorkspace:
    """What a workspace was when the agent got it."""

    folders: tuple[Path, ...]
    """Later ones lie over earlier ones."""
    too_large: frozenset[str] = frozenset()
    """Files that were there and are in none of the folders, for their size."""
    live_since: int | None = None
    """When set-up ended (ns), if the first folder is `--work-dir`: what changed there later, people or other
    trials changed, and not the agent."""
    not_looked_at: tuple[str, ...] = ()
    """Files and folders, relative to the workspace, that the agent was not shown."""


def files_in(
    folder: Path,
    *,
    but: frozenset[str] = frozenset(),
    unseen: Collection[str] = (),
    links: bool = False,
) -> Iterator[tuple[str, Path]]:
    """Regular files below a folder, by their path in it; names in `but` and paths in `unseen` are passed
    over, and so are links, unless `links` asks for those that lead to something in the folder."""
    top = os.path.realpath(folder)
    waiting = [("", os.fspath(folder), 0)]
    while waiting:
        prefix, path, depth = waiting.pop()
        with os.scandir(path) as found:
            entries = list(found)  # not read while callers hold the iterator: they may never come back
        for entry in entries:
            if entry.name in but or not is_utf8(entry.name) or prefix + entry.name in unseen:
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    waiting.append((f"{prefix}{entry.name}/", entry.path, depth + 1))
            elif entry.is_file(follow_symlinks=False) or (
                links and entry.is_symlink() and leads_inside(entry.path, top, unseen)
            ):
                yield prefix + entry.name, Path(entry.path)


def leads_inside(link: str, top: str, unseen: Collection[str] = ()) -> bool:
    """Whether a link is relative, and leads to a place in the folder `top` that the agent was shown."""
    try:
        if os.path.isabs(os.readlink(link)):  # noqa: PTH115, PTH117 - asked of each entry
            return False
        real = os.path.realpath(link, strict=False)
    except (OSError, ValueError):
        return False
    place = os.path.relpath(real, top)
    shown = not any(place == one or place.startswith(f"{one}/") for one in unseen)
    return (real == top or real.startswith(f"{top}/")) and shown


def make_links(folder: Path, links: Mapping[str, str], inner: str | None = None) -> int:
    """Make links in a copy of a folder that lead to places in it; how many were made.

    `inner` is what the folder is called in the sandbox it comes from: links may name it as a whole.

    What leads out, in whatever way, is not made: contents are hostile, and graders read them on this machine.
    """
    top = os.path.realpath(folder)
    made = []
    for path, target in sorted(links.items()):
        place = Path(top, path)
        leads = _relative(path, target, inner)
        if leads is None or os.path.lexists(place) or not _has_plain_parents(place, top):
            continue
        place.symlink_to(leads)
        made.append(place)
    leaving = [place for place in made if not leads_inside(os.fspath(place), top)]
    for place in leaving:
        place.unlink()
    return len(made) - len(leaving)


def _relative(path: str, target: str, inner: str | None) -> str | None:
    """What a link says, as seen from itself; None for one that leads out, or says nothing."""
    if not target or "\0" in target:
        return None
    above = path.count("/")
    if inner is not None and (target == inner or target.startswith(f"{inner}/")):
        return "/".join([*[".."] * above, target[len(inner) :].lstrip("/") or "."])
    return None if target.startswith("/") else target


def _has_plain_parents(place: Path, top: str) -> bool:
    """Whether the folders above are there and none is a link; a download makes all it looked into."""
    folders = [one for one in place.parents if len(os.fspath(one)) > len(top)]
    return all(one.is_dir() and not one.is_symlink() for one in folders)


async def download(sandbox: Sandbox, path: str, into: Path, log: OutputSink) -> WorkspaceSnapshot:
    """Bring a folder of the sandbox out; one the agent removed, or put a link for, is an empty one.

    What is at `into` from an earlier time goes.
    """
    if into.exists():
        await asyncio.to_thread(shutil.rmtree, into)
    try:
        report = await sandbox.download_folder(path, into, LIMITS)
    except SandboxFileNotFoundError as error:
        log("stderr", f"{path} is taken for empty: {error}\n")
        into.mkdir(parents=True, exist_ok=True)
        return WorkspaceSnapshot(into)
    made = await asyncio.to_thread(make_links, into, report.links, path) if report.links else 0
    return _told(report, path, into, log, made)


def _told(report: CopyReport, path: str, into: Path, log: OutputSink, made: int) -> WorkspaceSnapshot:
    lost = [(name, why) for name, why in report.skipped if why != A_LINK]
    for name, why in lost[:MOST_TOLD]:
        log("stderr", f"{path}/{name} is left behind: {why}\n")
    if links := len(report.links) - made:
        log("stderr", f"{path}: {links} links that lead out of it are left behind\n")
    cut_short = any(mark in why for _, why in lost for mark in _CUT_SHORT)
    unlisted = report.skipped_count > len(report.skipped) and bool(lost)
    too_large = frozenset(name for name, why in lost if why.endswith(_TOO_LARGE))
    return WorkspaceSnapshot(into, too_large, cut_short or unlisted)


# Final states of workspaces, kept for people: whole (`--workspace`), or the artifacts a stimulus names.

MOST_ARTIFACTS = 2_000
MOST_ARTIFACT_BYTES = 250 << 20
_MARK = re.compile(r"((?:.*/)?)\.([^/]+)\.valkyrie", re.DOTALL)
_UNFINISHED = re.compile(r"(?:.*/)?\.[^/]+\.(?:new|old)-[0-9a-f]{8}/.*", re.DOTALL)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def folder_name(name: str) -> str:
    """A stimulus' name as the name of a folder; two names never share one."""
    plain = _UNSAFE.sub("-", name).strip("-.")[:80]
    return name if name and plain == name else f"{plain or 'stimulus'}-{content_digest(name)[-8:]}"


async def materialise(final: Path, target: Path, unseen: Collection[str] = ()) -> None:
    """A copy of a final state at `target`, whole or not at all, in place of an earlier one of ours.

    Links that lead out of it are not copied, nor what is at a path in `unseen`. Raises UsageError when
    something that we did not make is at `target`.
    """
    await asyncio.to_thread(_materialise, final, target, unseen)


async def keep_artifacts(
    final: Path, include: Sequence[str], exclude: Sequence[str], target: Path, unseen: Collection[str] = ()
) -> list[str]:
    """Copy the files that match a glob of `include` and none of `exclude` to `target`; their paths."""
    return await asyncio.to_thread(_keep_artifacts, final, include, exclude, target, unseen)


def merge(folders: Iterable[Path], into: Path, unseen: Collection[str] = ()) -> bool:
    """Copy the files of folders into one, later ones over earlier ones; whether that was too much."""
    into.mkdir(parents=True, exist_ok=True)
    layers = list(folders)
    cut_short = any(not _copy(files_in(folder, unseen=unseen), into) for folder in layers)
    for folder in reversed(layers):
        found = dict(files_in(folder, unseen=unseen, links=True))
        make_links(into, {name: str(path.readlink()) for name, path in found.items() if path.is_symlink()})
    return cut_short


def _materialise(final: Path, target: Path, unseen: Collection[str]) -> None:
    mark = target.parent / f".{target.name}.valkyrie"
    _refuse_foreign(target, mark)
    target.parent.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    new, old = (target.parent / f".{target.name}.{word}-{token}" for word in ("new", "old"))
    try:
        new.mkdir()
        _copy(_not_kept_before(dict(files_in(final, unseen=unseen, links=True))), new)
        if target.exists():
            target.rename(old)
        new.rename(target)
        mark.write_text(_identity(target))
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)


def _not_kept_before(files: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Files but those of final states that lie among them, as they do below a `--work-dir`.

    Each would hold those before it, and so grow without end.
    """
    marks = [match for name in files if (match := _MARK.fullmatch(name))]
    kept = tuple(f"{mark[1]}{mark[2]}/" for mark in marks)
    for name, path in files.items():
        if not name.startswith(kept) and not _MARK.fullmatch(name) and not _UNFINISHED.fullmatch(name):
            yield name, path


def _refuse_foreign(target: Path, mark: Path) -> None:
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise UsageError(
            f"--workspace: {target} is there and is no folder; remove it, or name another place."
        )
    made = mark.read_text() if mark.is_file() and not mark.is_symlink() else None
    if made != _identity(target) and any(target.iterdir()):
        raise UsageError(
            f"--workspace: {target} is not empty, and no eval made it; remove it, or name another place."
        )


def _identity(folder: Path) -> str:
    """Which folder it is: one made anew under the same name is another."""
    info = folder.stat()
    return f"{info.st_dev}:{info.st_ino}"


def _keep_artifacts(
    final: Path, include: Sequence[str], exclude: Sequence[str], target: Path, unseen: Collection[str]
) -> list[str]:
    root = Path(os.path.realpath(final))
    try:
        refused = set(_matching(root, exclude, unseen))
        chosen = [path for path in dict.fromkeys(_matching(root, include, unseen)) if path not in refused]
    except TooManyFilesError:
        return []
    chosen = chosen[:MOST_ARTIFACTS]
    if chosen:
        target.mkdir(parents=True, exist_ok=True)
        _copy(((path, root / path) for path in chosen), target, MOST_ARTIFACT_BYTES)
    return [path for path in chosen if (target / path).is_file()]


def _matching(root: Path, patterns: Sequence[str], unseen: Collection[str]) -> Iterator[str]:
    """Regular files below `root` that a glob matches, those below a folder it matches included."""
    for pattern in patterns:
        for found in WorkspaceGlob(pattern).find(root, unseen):
            if found.is_symlink():
                continue
            if found.is_dir():
                yield from (str((found / name).relative_to(root)) for name, _ in files_in(found))
            elif found.is_file():
                yield str(found.relative_to(root))


def _copy(files: Iterable[tuple[str, Path]], into: Path, most_bytes: int = LIMITS.max_bytes) -> bool:
    """Copy files to their places below a folder of ours, within limits; whether all were."""
    left, entries = most_bytes, LIMITS.max_entries
    for name, path in files:
        left -= path.lstat().st_size
        entries -= 1
        if left < 0 or entries < 0:
            return False
        place = into / name
        if place.is_dir():
            shutil.rmtree(place)
        _make_room(place, into)
        shutil.copyfile(path, place, follow_symlinks=False)
        shutil.copymode(path, place, follow_symlinks=False)
    return True


def _make_room(place: Path, top: Path) -> None:
    """Folders for a file, in place of files of those names."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        for parent in place.relative_to(top).parents:
            if (top / parent).is_file():
                (top / parent).unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
