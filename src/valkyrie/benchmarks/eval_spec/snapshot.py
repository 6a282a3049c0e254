"""A workspace brought to a folder of the host, within limits: contents are hostile, and only ever read."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.openat import is_utf8
from sandboxes.protocol import Sandbox
from sandboxes.types import CopyLimits, CopyReport, OutputSink
from sandboxes.values import A_LINK

LIMITS = CopyLimits(max_bytes=2 << 30, max_file_bytes=256 << 20, max_entries=200_000)
_TOO_LARGE = ("for a file", "over the limits")
_CUT_SHORT = ("not looked at", "left of")
MOST_TOLD = 10
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Snapshot:
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
class Before:
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


async def download(sandbox: Sandbox, path: str, into: Path, log: OutputSink) -> Snapshot:
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
        return Snapshot(into)
    made = await asyncio.to_thread(make_links, into, report.links, path) if report.links else 0
    return _told(report, path, into, log, made)


def _told(report: CopyReport, path: str, into: Path, log: OutputSink, made: int) -> Snapshot:
    lost = [(name, why) for name, why in report.skipped if why != A_LINK]
    for name, why in lost[:MOST_TOLD]:
        log("stderr", f"{path}/{name} is left behind: {why}\n")
    if links := len(report.links) - made:
        log("stderr", f"{path}: {links} links that lead out of it are left behind\n")
    cut_short = any(mark in why for _, why in lost for mark in _CUT_SHORT)
    unlisted = report.skipped_count > len(report.skipped) and bool(lost)
    too_large = frozenset(name for name, why in lost if why.endswith(_TOO_LARGE))
    return Snapshot(into, too_large, cut_short or unlisted)
